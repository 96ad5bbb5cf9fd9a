"""`tardis-machine lake`: backfill, verify, stream, silver, quarantine, show, maintain."""

import logging
import os
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from tardis_machine import log as logs
from tardis_machine.cli import gold
from tardis_machine.cli.config import sections as server_sections
from tardis_machine.cli.consent import consented, expect_terminal
from tardis_machine.cli.tables import Command, asked_times, expect_some, open_filled, open_tables
from tardis_machine.config import ConfigError, Loaded, load, options
from tardis_machine.extras import require
from tardis_machine.history import claim_cache_dir
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.lake.config import (
    BackfillConfig,
    MaintainConfig,
    QuarantineConfig,
    ShowConfig,
    SilverConfig,
    SparkConfig,
    StreamConfig,
    VerifyConfig,
)
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.sinks.config import BusesConfig
from tardis_machine.lake.sources import STREAMS
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.config import PublishConfig

if TYPE_CHECKING:
    from tardis_machine.lake.rebuild import Part
    from tardis_machine.lake.tables import Tables
    from tardis_machine.lake.units import Unit
    from tardis_machine.lake.verify import Difference

log = logging.getLogger(__name__)

_PROG: Final = "tardis-machine lake"
_EXECUTOR_CACHE: Final = 20 << 30
_LISTENER_S: Final = 30.0


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run one of the commands."""
    given = list(arguments)
    name = given.pop(0) if given and not given[0].startswith("-") else None
    if name is None and given and given[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if name not in COMMANDS:
        first = f"a command comes before {given[0]}: " if name is None and given else ""
        raise ConfigError("lake", name, f"{first}expected one of {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    positional = _taken(given) if command.arguments else []
    own = (*command.sections, SparkConfig)
    loaded = load(
        own,
        given,
        environ,
        prog=f"{_PROG} {name}{command.arguments}",
        description=command.does,
        epilog=f"Example:\n  {command.example}",
        also=[each for each in server_sections() if each not in own],
    )
    config = loaded[SparkConfig]
    logs.configure(config.log_format, debug=config.debug)
    # Of a batch that fails it writes the stack, which is told in a line when the stream has ended.
    logging.getLogger("py4j").setLevel(logging.WARNING if config.debug else logging.CRITICAL)
    # It writes what is raised as well, with all of the JVM's stack.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for warning in loaded.warnings:
        log.warning(warning)
    if command.asks(loaded):
        expect_terminal([*_PROG.split(), *arguments], own)
    for module in ("pyspark", "pyarrow", "ptars"):
        require(module, extra="spark")
    if config.debug:
        return command.run(loaded, positional)
    logging.getLogger().addFilter(_is_not_py4js)
    with _told_in_a_line():
        return command.run(loaded, positional)


def _taken(given: list[str]) -> list[str]:
    """Take what a command is about from its arguments: it stands before its flags, or behind."""
    if given and not given[0].startswith("-"):
        return [given.pop(0)]
    if len(given) < 2 or given[-1].startswith("-"):
        return []
    flag, equals, _ = given[-2].partition("=")
    return [] if flag.startswith("-") and not equals else [given.pop()]


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """Leave out where in its code an interrupt met Py4J, which it does not log by its name."""
    return record.module != "java_gateway"


@contextmanager
def _told_in_a_line() -> Iterator[None]:
    """Say what Spark could not do without where in its code, and in this one, that was."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - needs the extra
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from tardis_machine.lake.running import reason_of  # noqa: PLC0415
    from tardis_machine.lake.session import died  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as error:
        told = died(error) or f"Spark: {reason_of(error)}"
        raise LakeError(f"{told} (--debug prints all of it)") from error


def _backfill(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.cli import backfill  # noqa: PLC0415 - needs the extra

    return backfill.run(
        loaded, partial(_tables_of_history, loaded), partial(_where, loaded[HistoryConfig])
    )


def _verify(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine import exchanges  # noqa: PLC0415 - takes a moment
    from tardis_machine.lake import manifest, verify  # noqa: PLC0415 - needs the extra

    config = loaded[VerifyConfig]
    _check_names(config.flag("exchange"), config.exchange, exchanges.names())
    wanted = verify.Wanted(config.exchange, *asked_times(config))
    tables = _tables_of_history(loaded, config.tables)
    expect_some(tables, config)
    units = verify.units(manifest.finished(tables), wanted)
    differences = verify.verify(
        tables, units, _where(loaded[HistoryConfig], tables), _show_verified
    )
    differing = [each for each in differences if not isinstance(each.expected, str)]
    failed = len(differences) - len(differing)
    also = f", {failed} could not be replayed" if failed else ""
    print(f"{len(units)} units compared, {len(differing)} data types differ{also}")
    for each in differing:
        print(f"redo: {each.command} --to-tables {shlex.quote(tables.root)}")
    return 1 if differences else 0


def _quarantine(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import quarantine  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.release import release  # noqa: PLC0415

    config = loaded[QuarantineConfig]
    tables = open_filled(loaded, config)
    if config.release:
        outcome = release(tables)
        print(f"{outcome.released:,} released, {outcome.left:,} left")
        for exchange, day in outcome.redo:
            print(f"lines of {exchange} {day} come in by `lake backfill --force --yes` of that day")
        return 0
    held = quarantine.held(tables)
    print(f"{sum(each.records for each in held):,} records in quarantine")
    for each in held[: config.limit]:
        where = f"{each.exchange or ''} {each.day or ''}".strip()
        print(f"{each.records:>10,}  {each.stage:<10} {where:<24} {each.reason}")
    if len(held) > config.limit:
        print(f"and {len(held) - config.limit} more reasons: --limit")
    return 0


def _stream(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import streaming  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.keeping import keep  # noqa: PLC0415
    from tardis_machine.lake.metrics import StreamMetrics  # noqa: PLC0415
    from tardis_machine.lake.sources import expect_client, records  # noqa: PLC0415
    from tardis_machine.lake.sources.streams import Asked  # noqa: PLC0415

    config = loaded[StreamConfig]
    bus = BUSES[config.from_bus]
    settings = loaded[bus.config_type]
    if not settings.enabled:
        flags = " and ".join(settings.flag(name) for name in bus.config_type.needs)
        raise ConfigError("--from-bus", config.from_bus, f"needs {flags}")
    expect_client(config.from_bus, settings)
    tables = open_tables(loaded, config.to_tables)
    checkpoint = config.checkpoint or streaming.default_checkpoint(tables.root, config.from_bus)
    asked = Asked(
        config.starting,
        config.max_events_per_batch,
        config.on_data_loss == "skip",
        checkpoint,
    )
    rows = records(tables.spark, config.from_bus, settings, asked)
    metrics = StreamMetrics()
    if config.metrics_port is not None:
        metrics.serve(config.metrics_host, config.metrics_port)
    listener = metrics.listener()
    tables.spark.streams.addListener(listener)
    start = partial(
        streaming.start,
        tables,
        rows,
        checkpoint,
        once=config.once,
        interval_s=config.interval_s,
        bronze_only=config.bronze_only,
        wrote=metrics.wrote,
    )
    try:
        with _told_to_stop() as stopping:
            keep(start, stopping, restarts=config.restarts, started_again=metrics.restarts.inc)
    finally:
        metrics.wait_for_end(_LISTENER_S)
        tables.spark.streams.removeListener(listener)
    return 0


def _silver(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import streaming  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.keeping import keep  # noqa: PLC0415
    from tardis_machine.lake.tables import EVENTS  # noqa: PLC0415

    config = loaded[SilverConfig]
    tables = open_tables(loaded, config.tables)
    if config.rebuild:
        return _rebuild(tables, config)
    if not tables.exists(EVENTS):
        print(f"there are no events in {tables.root} yet")
    else:
        place = streaming.default_checkpoint(tables.root, "silver")
        with _told_to_stop() as stopping:
            keep(partial(streaming.start_silver, tables, place), stopping, restarts=0)
    return 0


def _rebuild(tables: "Tables", config: SilverConfig) -> int:
    from tardis_machine.lake.rebuild import compare, rebuild  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.tables import SILVER  # noqa: PLC0415

    parts = compare(tables)
    silver = [part for part in parts if part.case in SILVER]
    fate = "dropped" if config.drop_what_bronze_lacks else "kept"
    for (table, exchange), group in groupby(
        sorted(silver, key=lambda part: (part.table, part.exchange)),
        lambda part: (part.table, part.exchange),
    ):
        own = list(group)
        if days := [part for part in own if part.events]:
            print(f"{table} {exchange}: {_days(days)} to rebuild")
        if days := [part for part in own if part.lacking]:
            rows = sum(part.lacking for part in days)
            print(
                f"{table} {exchange}: {rows:,} rows that Bronze lacks to be {fate}, {_days(days)}"
            )
    if config.dry_run:
        print("Nothing was done.")
        return 0
    if not config.yes and not consented("Rebuild these days?"):
        return 1
    rebuild(tables, parts, drop_what_bronze_lacks=config.drop_what_bronze_lacks)
    return 0


def _days(parts: "Sequence[Part]") -> str:
    days = sorted(part.day_text for part in parts)
    return f"{len(days):,} days, {days[0]} to {days[-1]}"


def _show(loaded: Loaded, names: Sequence[str]) -> int:
    from tardis_machine.lake import show  # noqa: PLC0415 - needs the extra

    if not any(names):
        raise ConfigError("TABLE", None, "is needed, such as trades")
    config = loaded[ShowConfig]
    _check_names("TABLE", names, show.names())
    tables = open_tables(loaded, config.tables)
    rows = show.frame(tables, names[0])
    if not config.where:
        print(show.text(rows, config.limit))
        return 0
    try:
        print(show.matching(rows, config.where, config.limit))
    except LakeError as error:
        raise ConfigError(config.flag("where"), config.where, str(error)) from None
    return 0


def _maintain(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import maintain  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.catalog import TABLES  # noqa: PLC0415

    config = loaded[MaintainConfig]
    _check_names(config.flag("only"), config.only, list(TABLES))
    tables = open_filled(loaded, config)
    everything = not (config.compact or config.vacuum or config.statistics)
    for name, table in maintain.existing(tables, config.only).items():
        if config.compact or everything:
            maintain.compact(tables, table)
        if config.vacuum or everything:
            maintain.vacuum(tables, table, config.retain_hours)
        if config.statistics or everything:
            size = maintain.size(tables, name)
            print(f"{name:<24}{size.rows:>14,} rows {size.files:>8,} files {size.bytes:>16,} bytes")
    return 0


def _check_names(flag: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a name that there is not before Spark starts."""
    for name in names:
        if name not in known:
            raise ConfigError(flag, name, f"expected one of {', '.join(known)}")


def _tables_of_history(loaded: Loaded, root: str) -> "Tables":
    """Open the tables in a session whose executors can replay history."""
    from tardis_machine.lake.sources import tardis  # noqa: PLC0415 - needs the extra

    _export(loaded[HistoryConfig])
    tables = open_tables(loaded, root)
    tardis.register(tables.spark)
    return tables


def _where(history: HistoryConfig, tables: "Tables") -> dict[str, str]:
    """Tell the source where history is, and how much of it executors may keep."""
    bound = history.cache_max_bytes
    master = tables.spark.conf.get("spark.master", None) or ""
    if master.startswith("local") and not history.sample_data:
        # Refused here rather than by each task.
        claim_cache_dir(history.cache_dir, history.flag("cache_dir"))
    if bound is None and not master.startswith("local"):
        bound = _EXECUTOR_CACHE  # on a disk that nobody looks after
    return {
        **({"cacheDir": str(history.cache_dir)} if history.cache_dir else {}),
        **({"cacheMaxBytes": str(bound)} if bound else {}),
        **({"apiWaitS": str(history.api_wait_s)} if history.api_wait_s is not None else {}),
        "endpoint": history.endpoint,
        "sampleData": str(history.sample_data).lower(),
    }


def _export(history: HistoryConfig) -> None:
    """Leave secrets to the environment, which this machine's workers inherit."""
    for option in options(HistoryConfig):
        value = getattr(history, option.name)
        if option.setting.secret and value is not None:
            os.environ.pop(f"{option.variable}_FILE", None)
            os.environ[option.variable] = value


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Give an event that a signal sets; what is half done then is done again later."""
    stopping = threading.Event()

    def stop(*_: Any) -> None:
        stopping.set()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _show_verified(unit: "Unit", differences: Sequence["Difference"]) -> None:
    wrong = {each.data_type: each for each in differences}
    for data_type in unit.data_types:
        where = f"{unit.exchange} {unit.start_text} to {unit.end_text} {data_type}"
        if data_type not in wrong:
            print(f"{where}: the same", flush=True)
            continue
        held, expected = wrong[data_type].held, wrong[data_type].expected
        if isinstance(expected, str):
            print(f"{where}: cannot be replayed: {expected}", flush=True)
        elif isinstance(held, str):
            print(f"{where}: cannot be read: {held}", flush=True)
        else:
            same = " of other content" if held.rows == expected.rows else ""
            print(f"{where}: {held.rows:,} rows{same}, {expected.rows:,} replayed", flush=True)


COMMANDS: Final[dict[str, Command]] = {
    "backfill": Command(
        "Brings days of history into Bronze and Silver, or to buses; what is there already is left "
        "out.",
        (
            BackfillConfig,
            HistoryConfig,
            BusesConfig,
            PublishConfig,
            *(bus.config_type for bus in BUSES.values()),
        ),
        _backfill,
        "tardis-machine lake backfill --exchange bitmex --symbols XBTUSD --types trade,book_change"
        "\n    --from 2024-03-01 --to 2024-03-08 --to-tables /data/lake",
        asks=lambda loaded: loaded[BackfillConfig].asks,
    ),
    "verify": Command(
        "Compares what backfills have finished with a fresh replay, and says what to redo.",
        (VerifyConfig, HistoryConfig),
        _verify,
        "tardis-machine lake verify --tables /data/lake --exchange bitmex --from 2024-03-01",
    ),
    "stream": Command(
        "Keeps Bronze and Silver fresh from a bus, with the publisher's flags of that bus.",
        (StreamConfig, *(BUSES[name].config_type for name in STREAMS)),
        _stream,
        "tardis-machine lake stream --from-bus kafka --kafka-brokers localhost:9092"
        "\n    --kafka-topic bronze --to-tables /data/lake",
    ),
    "silver": Command(
        "Brings what Bronze gained since the last time into Silver, or rebuilds it from Bronze.",
        (SilverConfig,),
        _silver,
        "tardis-machine lake silver --tables /data/lake",
        asks=lambda loaded: loaded[SilverConfig].asks,
    ),
    "quarantine": Command(
        "Lists what no table could take and why, or tries it again.",
        (QuarantineConfig,),
        _quarantine,
        "tardis-machine lake quarantine --tables /data/lake --release",
    ),
    "show": Command(
        "Prints a readable sample of a table, or of the view book_levels.",
        (ShowConfig,),
        _show,
        "tardis-machine lake show trades --tables /data/lake --where \"symbol = 'XBTUSD'\"",
        arguments=" TABLE",
    ),
    "maintain": Command(
        "Compacts and vacuums the tables and prints their sizes; all of it unless flags choose.",
        (MaintainConfig,),
        _maintain,
        "tardis-machine lake maintain --tables /data/lake --compact",
    ),
    **gold.COMMANDS,
}


def _usage() -> str:
    lines = [f"  {name:<12}{command.does}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {_PROG} COMMAND [flags]", "", *lines, "", "Each has --help."])
