"""Days of history to buses: each unit by the executors, in order, and written down when done."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tardis_machine.lake import manifest
from tardis_machine.lake.backfill import read
from tardis_machine.lake.decode.envelopes import envelopes
from tardis_machine.lake.manifest import MALFORMED, Count
from tardis_machine.lake.records import schema_of
from tardis_machine.lake.running import Progress, Report, run_lanes
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sinks.sending import UNREADABLE, Account, Sending, Sent
from tardis_machine.lake.tables import Tables
from tardis_machine.lake.units import DISCONNECT, Unit, plan
from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters
from tardis_machine.replays.requests import ReplayNormalizedOptions

_ANSWER: Final[dict[str, str]] = {
    "data_type": "STRING",
    **dict.fromkeys(Account._fields, "BIGINT"),
    "letter": "BINARY",
}
"""What a task answers: a row for each data type, and one for each dead letter."""


class Target(NamedTuple):
    """A bus, and what it is still to get."""

    bus: str
    config: BusConfig
    units: list[Unit]


@dataclass(frozen=True)
class Terms:
    """How buses are sent to."""

    publish: PublishConfig
    max_rate: float | None = None
    """Events a second, of each bus."""
    max_dead_letters: int = 10_000
    attempts: int = 3
    wait_s: float = 2.0
    buckets: int = 1
    """Tasks that a day's symbols are spread over, where no key is of several symbols."""


def layer(bus: str, config: BusConfig) -> str:
    """Name a bus in the manifest: another topic, or another service, is another layer."""
    where = destinations({bus: config})[bus]
    return f"{bus}:{hashlib.sha256(where.encode()).hexdigest()[:16]}"


def target(
    tables: Tables,
    bus: str,
    config: BusConfig,
    replays: Sequence[ReplayNormalizedOptions],
    *,
    force: bool = False,
) -> Target:
    """Find what a bus has not got yet, according to the manifest."""
    layers = (layer(bus, config),)
    done = manifest.finished(tables, layers)
    return Target(bus, config, plan(replays, done, layers=layers, force=force))


def run(
    tables: Tables,
    targets: Sequence[Target],
    source: Mapping[str, str],
    terms: Terms,
    report: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Send each bus its units, the days of an exchange one after the other.

    A day that fails however often it is tried holds back the later ones of its exchange on that
    bus, since order per key is promised; the other exchanges and buses go on.
    """
    spark = tables.spark
    tasks = parallelism(spark)
    lanes: list[list[Unit]] = []
    senders: dict[str, Callable[[Unit], Callable[[], manifest.Counts]]] = {}
    for each in targets:
        own = _by_exchange(each.units)
        lanes += own
        spread = terms.buckets if keyed_by_symbol(each) else 1
        rate = terms.max_rate
        if rate is not None:
            rate /= max(1, min(tasks, len(own) * spread))
        sending = Sending(
            each.bus,
            Shipped(each.config),
            terms.publish,
            max_rate=rate,
            max_dead_letters=terms.max_dead_letters,
        )
        options = {**source, "concurrentTasks": str(tasks), "buckets": str(spread)}
        senders[layer(each.bus, each.config)] = _sender(tables, sending, options)
    return run_lanes(
        spark,
        lanes,
        lambda unit: senders[unit.layers[0]](unit),
        threads=max(1, min(tasks, len(lanes))),
        attempts=terms.attempts,
        wait_s=terms.wait_s,
        in_order=True,
        report=report,
    )


def keyed_by_symbol(target: Target) -> bool:
    """Whether events of several symbols never share a key, so that several tasks may send them."""
    routing = target.config.routing()
    if routing.key is not None:
        return "symbol" in routing.key.placeholders
    template = routing.destination
    return template is not None and "symbol" in template.placeholders and not routing.routes


def _by_exchange(units: Sequence[Unit]) -> list[list[Unit]]:
    lanes: dict[str, list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: (unit.start, unit.end)):
        lanes.setdefault(unit.exchange, []).append(unit)
    return list(lanes.values())


def _sender(
    tables: Tables, sending: Sending, options: Mapping[str, str]
) -> Callable[[Unit], Callable[[], manifest.Counts]]:
    def writer(unit: Unit) -> Callable[[], manifest.Counts]:
        def send() -> manifest.Counts:
            records = read(tables, unit, {**options, "as": "records"})
            answers = (
                records.select("partition", "value")
                .mapInArrow(_answering(sending), schema_of(_ANSWER))
                .collect()
            )
            sent = _joined(answers)
            _keep(sent.letters, sending)
            counts = _counts(unit, sent)
            manifest.write_down(tables, unit, counts)
            return counts

        return send

    return writer


def _answering(
    sending: Sending,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent = sending.run(map(_told_once, batches))
        rows = [
            {"data_type": name, **account._asdict(), "letter": None}
            for name, account in sent.accounts.items()
        ] + [{"letter": msgspec.json.encode(letter)} for letter in sent.letters]
        yield pa.RecordBatch.from_pylist(rows, _ANSWER_SCHEMA)

    return answer


_ANSWER_SCHEMA: Final = pa.schema(
    [
        ("data_type", pa.string()),
        *((name, pa.int64()) for name in Account._fields),
        ("letter", pa.binary()),
    ]
)


def _told_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave disconnects to the first of a unit's tasks: all of them see each."""
    first = pc.equal(batch.column("partition"), 0)
    if pc.all(first).as_py():
        return batch
    others = envelopes(batch.column("value")).columns.column(DISCONNECT).is_null()
    return batch.filter(pc.or_(first, others))


def _joined(answers: Sequence[tuple[str | None, int, int, int, bytes | None]]) -> Sent:
    sent = Sent()
    for data_type, delivered, filtered, dead, letter in answers:
        if letter is not None:
            sent.letters.append(msgspec.json.decode(bytes(letter), type=DeadLetter))
        elif data_type is not None:
            known = sent.accounts.get(data_type, Account())
            sums = zip(known, (delivered, filtered, dead), strict=True)
            sent.accounts[data_type] = Account(*(one + other for one, other in sums))
    return sent


def _keep(letters: Sequence[DeadLetter], sending: Sending) -> None:
    """Write dead letters where `tardis-machine publish --dead-letters` finds the server's, too."""
    if not letters:
        return
    journal = JournalConfig().path
    sending.publish.claim_dead_letters(journal)
    directory = sending.publish.dead_letters(journal)
    kept = DeadLetters(directory, sending.bus, sending.publish.dead_letter_max_bytes)
    left = list(letters)
    while left:
        del left[: kept.add(left)]


def _counts(unit: Unit, sent: Sent) -> manifest.Counts:
    names = {UNREADABLE: MALFORMED}
    found = {names.get(name, name): account for name, account in sent.accounts.items()}
    every = dict.fromkeys([*unit.data_types, *found])
    accounts = {name: found.get(name, Account()) for name in every}
    return {
        (unit.layers[0], name): Count(account.delivered, account.dead, account.filtered)
        for name, account in accounts.items()
    }
