"""What is on its way to one bus: loads, the records of an entry each, and batches of those."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tardis_machine.bronze import Context
from tardis_machine.journal import (
    Cursor,
    CursorState,
    Entry,
    Gap,
    Log,
    OtherVersionError,
    Reader,
)
from tardis_machine.publish.record import Record, Records

if TYPE_CHECKING:
    from tardis_machine.publish.lanes import Lane


class Track:
    """A bus's way through one log."""

    def __init__(self, log: Log, cursor: Cursor) -> None:
        state = cursor.state
        self.log = log
        self.cursor = cursor
        self.reader = Reader(log, state.segment, state.offset, state.seen)
        self.loads: deque[Load] = deque()
        self.exhausted = False
        self.unreadable: OtherVersionError | None = None

    @property
    def drained(self) -> bool:
        """Tell whether the log is finished and all of it resolved."""
        return self.exhausted and not self.loads


class Load:
    """An entry or a gap on its way, and what became of its messages so far.

    `records` are those not yet taken for a batch, which is to go when it is `due`; `open` counts
    those that are not resolved.
    """

    __slots__ = (
        "accepted",
        "context",
        "dead",
        "due",
        "duplicates",
        "gap",
        "ingest_us",
        "messages",
        "offset",
        "open",
        "records",
        "segment",
        "track",
        "unencodable",
        "weight",
    )

    def __init__(self, track: Track, found: Entry | Gap) -> None:
        self.track = track
        self.gap = isinstance(found, Gap)
        self.segment = found.segment
        self.offset = found.offset if isinstance(found, Gap) else found.end
        self.messages = found.messages
        self.ingest_us = 0
        self.context = Context()
        self.records = Records.of(())
        self.weight = 0
        self.accepted = 0
        self.open = 0
        self.dead = 0
        self.unencodable = 0
        self.duplicates = 0
        self.due = 0.0

    def fill(self, context: Context, records: Records) -> None:
        self.context = context
        self.ingest_us = context.ingest_us or 0
        self.accepted = self.open = len(records)
        self.leave(records)

    def leave(self, records: Records) -> None:
        """Keep these for a later batch."""
        self.records = records
        self.weight = sum(records.weights)

    def book(self, state: CursorState) -> None:
        """Enter all of it into the cursor's counts and move the cursor behind it."""
        state.segment, state.offset = self.segment, self.offset
        state.seen += self.messages
        if self.gap:
            # The one record it may have announces it, and is no message of the journal.
            state.dropped += self.messages
            return
        state.filtered += self.messages - self.accepted - self.unencodable
        state.delivered += self.accepted - self.dead
        state.dead_lettered += self.dead + self.unencodable
        state.duplicates += self.duplicates


class Sent(NamedTuple):
    """A record that has to be sent again, and the load it belongs to."""

    load: Load
    record: Record


class Batch:
    """Records of several loads, in order, on the way to one lane; `parts`: how many of which."""

    __slots__ = ("lane", "parts", "records", "weight")

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane
        self.records = Records.of(())
        self.parts: list[tuple[Load, int]] = []
        self.weight = 0

    def add(self, load: Load, records: Records, weight: int) -> None:
        self.records.extend(records)
        self.parts.append((load, len(records)))
        self.weight += weight

    def at(self, places: Iterable[int]) -> Iterator[Sent]:
        """Give the records at these places, ascending, with their loads."""
        parts = iter(self.parts)
        load, end = next(parts)
        for place in places:
            while place >= end:
                load, count = next(parts)
                end += count
            yield Sent(load, self.records[place])


def weight_of(records: Iterable[Record]) -> int:
    return sum([record.weight for record in records])


def fitting(records: Sequence[Record], count: int, room: int) -> tuple[int, int]:
    """Tell how many of the first records fit, and what they weigh."""
    total = 0
    for number, weight in enumerate(Records.of(records[:count]).weights):
        if total + weight > room:
            return number, total
        total += weight
    return min(count, len(records)), total
