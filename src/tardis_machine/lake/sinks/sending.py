"""What one task does with envelopes: routed and sent as the publisher would, and accounted for."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tardis_machine.bronze import Context, EncodeError, Event, Origin, Rejected, Series
from tardis_machine.lake.decode.envelopes import unframed
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.events import NEWER, inspect
from tardis_machine.lake.records import KEPT
from tardis_machine.lake.shipping import Shipped
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig, EventBus
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters
from tardis_machine.publish.loads import fitting
from tardis_machine.publish.record import Record
from tardis_machine.publish.settling import settle

_BURST_S: Final = 0.1
"""With a bound on the rate, no more goes out at once than that allows in so long."""
UNREADABLE: Final = "unreadable"
"""The data type under which values are counted that are no envelopes."""


class Account(NamedTuple):
    """What became of events; their sum is what there was."""

    delivered: int = 0
    filtered: int = 0
    """Left out by the bus's allow-list."""
    dead: int = 0
    """Refused for good: each is a dead letter."""


@dataclass(frozen=True)
class Sending:
    """How a task sends; made by the driver, and pickled."""

    bus: str
    settings: Shipped[BusConfig]
    publish: PublishConfig
    max_rate: float | None = None
    """Records a second, of this task alone."""
    max_dead_letters: int = 10_000

    def run(self, batches: Iterable[pa.RecordBatch]) -> "Sent":
        """Send all of a task's envelopes, in order; raises LakeError if the bus gives up."""
        bus = BUSES[self.bus](self.settings.unpacked())
        try:
            return _Task(self, bus).run(batches)
        finally:
            bus.close()


@dataclass
class Sent:
    """What a task has done: accounts by data type, and what was refused."""

    accounts: dict[str, Account] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)


class TooManyDeadLettersError(LakeError):
    """More is refused than is worth keeping: something is wrong with settings or data."""

    def __init__(self, bus: str, limit: int, reason: str) -> None:
        self.bus = bus
        self.limit = limit
        self.reason = reason
        where = "" if limit else ", and there is no dead_letter_dir to keep them in"
        super().__init__(
            f"{bus}: more than {limit} dead letters in one task{where}. The last: {reason}"
        )

    def __reduce__(self) -> tuple[type["TooManyDeadLettersError"], tuple[str, int, str]]:
        """Keep it picklable."""
        return type(self), (self.bus, self.limit, self.reason)


class _Pace:
    """Holds a task to its rate."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._ready = time.monotonic()

    def most(self, records: int) -> int:
        """Tell how many records may go at once."""
        return records if self._rate is None else min(records, max(1, int(self._rate * _BURST_S)))

    def wait(self, records: int) -> None:
        """Wait until so many may go; time that was not used is not made up for."""
        if self._rate is None:
            return
        now = time.monotonic()
        time.sleep(max(0.0, self._ready - now))
        self._ready = max(self._ready, now) + records / self._rate


class _Task:
    def __init__(self, sending: Sending, bus: EventBus[Any]) -> None:
        self._sending = sending
        self._bus = bus
        self._router = bus.router()
        self._pace = _Pace(sending.max_rate)
        # Only makes letters: they are written where the task's answer arrives.
        self._letters = DeadLetters(Path(), bus.name)
        self._delivered: Counter[str] = Counter()
        self._filtered: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._sent = Sent()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        for batch in batches:
            for context, events in self._read(batch):
                self._send(context, events)
        for name in {**self._delivered, **self._filtered, **self._dead}:
            self._sent.accounts[name] = Account(
                self._delivered[name], self._filtered[name], self._dead[name]
            )
        return self._sent

    def _read(self, batch: pa.RecordBatch) -> Iterator[tuple[Context, list[Event]]]:
        """Give a batch's events in order, those of one context together."""
        values = batch.column("value")
        kept = {name: pa.nulls(len(batch), pa.string()) for name in KEPT} | {"value": values}
        for inspected in inspect([pa.RecordBatch.from_pydict(kept)]):
            rows = inspected.set_column(
                inspected.schema.get_field_index("value"), "value", unframed(values)
            )
            for key, group in groupby(_rows(rows), key=lambda row: row.context):
                events = []
                for row in group:
                    if row.reason is None:
                        events.append(row.event)
                    else:
                        self._refuse(row)
                yield _context(*key), events

    def _send(self, context: Context, events: Sequence[Event]) -> None:
        self._router.context = context
        records = self._router.route(events)
        if len(records) < len(events):
            self._filtered.update(event.data_type for event in events)
            self._filtered.subtract(record.event.data_type for record in records)
        limits = self._bus.limits
        while records:
            count = self._pace.most(limits.records)
            count = max(1, fitting(records, count, limits.bytes)[0])
            self._pace.wait(count)
            self._hand_over(context, records[:count])
            records = records[count:]

    def _hand_over(self, context: Context, records: Sequence[Record]) -> None:
        settled = settle(self._bus, records, self._sending.publish)
        if settled.unsent:
            raise LakeError(
                f"{len(settled.unsent)} of {len(records)} records were not taken, the last of "
                f"{self._sending.publish.retry_max} attempts (--retry-max) said: "
                f"{settled.unsent[0].error}"
            )
        self._delivered.update(record.event.data_type for record in records)
        for place, error in settled.refused:
            record = records[place]
            self._delivered[record.event.data_type] -= 1
            self._bury(
                self._letters.of_event(context, record.event, record.destination, str(error)),
                record.event.data_type,
            )

    def _refuse(self, row: "_Row") -> None:
        error = EncodeError(row.reason or "")
        line = Rejected(row.event.value, error, row.event.position)
        self._bury(self._letters.of_line(_context(*row.context), line), UNREADABLE)

    def _bury(self, letter: DeadLetter, data_type: str) -> None:
        limit = self._sending.max_dead_letters
        if len(self._sent.letters) >= limit:
            raise TooManyDeadLettersError(self._bus.name, limit, letter.reason)
        self._dead[data_type] += 1
        self._sent.letters.append(letter)


class _Row(NamedTuple):
    context: tuple[str, str, str, tuple[tuple[str, str], ...]]
    event: Event
    reason: str | None


def _rows(batch: pa.RecordBatch) -> Iterator[_Row]:
    series: dict[tuple[str, str, str, str], Series] = {}
    columns = [
        batch.column(name).to_pylist()
        for name in (
            *("source", "producer_id", "origin", "meta"),
            *("exchange", "symbol", "payload_case", "data_type"),
            *("event_id", "position", "value", "reason"),
        )
    ]
    local = batch.column("local_ts").cast(pa.int64()).to_pylist()
    for row, local_us in zip(zip(*columns, strict=True), local, strict=True):
        source, producer, origin, meta, exchange, symbol, case, data_type, *rest = row
        event_id, position, value, reason = rest
        if case == NEWER:
            reason = reason or "a payload that only a newer version knows"
        key = (exchange or "", symbol or "", case or "", data_type or "")
        known = series.get(key)
        if known is None:
            known = series[key] = Series(*key)
        context = (source or "", producer or "", origin or "", tuple(meta or ()))
        event = Event(value or b"", known, event_id or "", local_us or 0, position or 0)
        yield _Row(context, event, reason)


def _context(
    source: str, producer_id: str, origin: str, meta: tuple[tuple[str, str], ...]
) -> Context:
    known = Origin.__members__.get(origin.upper(), Origin.UNSPECIFIED)
    return Context(source=source, producer_id=producer_id, origin=known, meta=dict(meta))
