"""A bus as a sink: `df.write.format("tardis-bus")`, batch and stream, sent by the executors.

Options: `bus` (such as `kafka`), the bus's own settings by their names (`brokers`, `topic`,
`key_template`, …), the publisher's (`retry_max`, `retry_min_ms`, `retry_max_s`,
`send_timeout_s`), `max_rate` (records a second, shared by `concurrent_tasks`), `dead_letter_dir`
(a folder of the driver's machine: without it the first record that is refused fails the write)
and `max_dead_letters`. Names may be in camelCase. Secrets are never options, since plans show
those: they come from the driver's environment (TM_KAFKA_SASL_PASSWORD, …), or with
`register(spark, config)`. Any frame with a column `value` of Bronze envelopes will do; each
partition is sent in its order, so have all of a key in one (`by_key`).
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tardis_machine.config import ConfigError, Section, claim, options, resolve
from tardis_machine.lake import session
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sinks.sending import Sending, Sent
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_FORMAT: Final = "tardis-bus"
_VALUE: Final = "value"
_OWN: Final = ("bus", "max_rate", "concurrent_tasks", "dead_letter_dir", "max_dead_letters")
_SPARKS: Final = ("path", "checkpointlocation", "queryname", "outputmode")
"""What Spark itself is told by options."""
_RETRIES: Final = ("retry_max", "retry_min_ms", "retry_max_s", "send_timeout_s")


def register(spark: "SparkSession", *configs: BusConfig) -> None:
    """Make the sink known to a session, with settings of buses that options then only add to."""
    session.register(spark, data_source(configs))


def by_key(events: "DataFrame") -> "DataFrame":
    """Bring what order is kept for into one partition each, in order: rows of `bronze/events`."""
    keyed = events.repartition("exchange", "symbol", "payload_case")
    return keyed.sortWithinPartitions("local_ts", "position")


def data_source(configs: Sequence[BusConfig] = ()) -> type[DataSource]:
    """Make a sink that has settings in itself: as options, plans would show the secrets."""
    known = {type(config): config for config in configs}

    class BusDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return _FORMAT

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            if overwrite:
                raise LakeError('a bus cannot be overwritten: use mode("append")')
            return BusWriter(writing(self.options, schema, known))

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return BusStreamWriter(writing(self.options, schema, known))

    return BusDataSource


@dataclass
class Done(WriterCommitMessage):
    """What a task tells the driver."""

    sent: Sent


@dataclass(frozen=True)
class Writing:
    """How a frame is written."""

    sending: Sending
    dead_letter_dir: Path | None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Done:
        return Done(self.sending.run(batches))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Keep the dead letters, and say what was done."""
        done = [message for message in messages if isinstance(message, Done)]
        letters = [letter for each in done for letter in each.sent.letters]
        if letters and self.dead_letter_dir is not None:
            DeadLetters(self.dead_letter_dir, self.sending.bus).add(letters)
        totals: Counter[str] = Counter()
        for each in done:
            for account in each.sent.accounts.values():
                totals.update(account._asdict())
        log.info("sent", extra={"bus": self.sending.bus, **totals})


class BusWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writing.commit(messages)


class BusStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream; a batch done again after a crash is sent again, with the same ids."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writing.commit(messages)


def writing(
    given: Mapping[str, str], schema: Any, known: Mapping[type[BusConfig], BusConfig]
) -> Writing:
    """Read a sink's options; raises ConfigError, LakeError."""
    if _VALUE not in schema.names:
        names = ", ".join(schema.names)
        raise LakeError(f"the frame has no column `value` of Bronze envelopes, only {names}")
    plain = {name.replace("_", ""): value for name, value in given.items() if name not in _SPARKS}
    own = {name: plain.pop(name.replace("_", ""), None) for name in _OWN}
    bus = own["bus"]
    if bus not in BUSES:
        raise ConfigError("bus", bus, f"expected one of {', '.join(BUSES)}")
    publish = _section(PublishConfig, _taken(PublishConfig, plain, _RETRIES))
    config = _config(BUSES[bus].config_type, plain, known)
    directory = own["dead_letter_dir"]
    rate = _number("max_rate", own["max_rate"])
    if rate is not None:
        rate /= _number("concurrent_tasks", own["concurrent_tasks"]) or 1
    most = _number("max_dead_letters", own["max_dead_letters"])
    sending = Sending(
        bus,
        Shipped(config),
        publish,
        max_rate=rate,
        max_dead_letters=0 if directory is None else int(most or 10_000),
    )
    if directory is None:
        return Writing(sending, None)
    return Writing(sending, claim("dead_letter_dir", Path(directory).absolute()))


def _config(
    kind: type[BusConfig], plain: dict[str, str], known: Mapping[type[BusConfig], BusConfig]
) -> BusConfig:
    """Join settings that were registered, options and the environment."""
    for option in options(kind):
        if option.setting.secret and option.name.replace("_", "") in plain:
            raise ConfigError(
                option.name,
                "***",
                f"is a secret, and plans show options: set {option.variable}, or register(spark, "
                f"{kind.__name__}(…))",
            )
    given = _taken(kind, plain, [option.name for option in options(kind)])
    if plain:
        names = ", ".join([*_OWN, *_RETRIES, *(option.name for option in options(kind))])
        raise ConfigError(next(iter(plain)), None, f"unknown option; expected some of {names}")
    if kind in known:
        if given:
            raise ConfigError(
                next(iter(given)), None, f"was given with register(spark, {kind.__name__}(…))"
            )
        return known[kind]
    config: BusConfig = _section(kind, given)
    if not config.enabled:
        raise ConfigError(" and ".join(kind.needs), None, f"is needed by {kind.section}")
    config.expect_client()
    return config


def _taken(kind: type[Section], plain: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    """Take a section's settings out of the options, by the keys of its flags."""
    keys = {option.name: option.key for option in options(kind)}
    return {
        keys[name]: plain.pop(name.replace("_", ""))
        for name in names
        if name.replace("_", "") in plain
    }


def _section(kind: type[Any], given: Mapping[str, str]) -> Any:
    environ = dict(os.environ)
    environ.pop("TM_CONFIG", None)
    return resolve([kind], given, environ)[kind]


def _number(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number <= 0:
        raise ConfigError(name, text, "expected a number above 0")
    return number
