"""A batch that was encoded: its envelopes in one piece, and what is to be known of each."""

from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Final, NamedTuple

import msgspec

from tardis_machine.bronze.errors import EncodeError

_LOCAL_US: Final = "q"
_POSITION: Final = "Q"
ID_LENGTH: Final = 32
"""Characters of an event id."""


class Series(NamedTuple):
    """What events have in common that go the same way."""

    exchange: str
    symbol: str
    payload_case: str
    data_type: str


class Event(msgspec.Struct, frozen=True, gc=False):
    """An encoded envelope, with what routing and accounting need to know of it."""

    value: bytes
    series: Series
    event_id: str
    local_us: int
    position: int

    @property
    def exchange(self) -> str:
        return self.series.exchange

    @property
    def symbol(self) -> str:
        return self.series.symbol

    @property
    def payload_case(self) -> str:
        return self.series.payload_case

    @property
    def data_type(self) -> str:
        return self.series.data_type


class Rejected(NamedTuple):
    """A line that has no envelope, and why."""

    line: bytes
    error: EncodeError
    position: int


class Buffers(NamedTuple):
    """Events in a few buffers, which Arrow takes as they are.

    The envelope of event i is `data` from `ends[i - 1]` (0 for the first) to `ends[i]`, its id the
    32 characters of `ids` from 32 × i on, its series `table[series[i]]`.
    """

    data: bytes
    ends: memoryview
    ids: bytes
    series: memoryview
    positions: memoryview
    local_us: memoryview
    table: tuple[Series, ...]


class Columns(NamedTuple):
    """Events taken apart: what each has of its own, and its series `table[series[i]]`."""

    values: list[bytes]
    event_ids: list[str]
    local_us: "array[int]"
    positions: "array[int]"
    series: Sequence[int]
    table: Sequence[Series]

    def only(self, wanted: Sequence[bool]) -> "Columns":
        """Give those events that are wanted, all series with them."""
        return Columns(
            list(compress(self.values, wanted)),
            list(compress(self.event_ids, wanted)),
            array(_LOCAL_US, compress(self.local_us, wanted)),
            array(_POSITION, compress(self.positions, wanted)),
            list(compress(self.series, wanted)),
            self.table,
        )


class EncodedBatch:
    """The events of a batch in order, one by one and in buffers; made where they are asked for.

    `messages` counts all messages of the batch: its events, those of payload cases that were not
    asked for, and those that were `rejected`.
    """

    __slots__ = ("_buffers", "_events", "messages", "rejected")

    def __init__(
        self,
        content: Buffers | list[Event],
        messages: int,
        rejected: Sequence[Rejected] = (),
    ) -> None:
        self.messages = messages
        self.rejected = rejected
        self._buffers = content if isinstance(content, Buffers) else None
        self._events = None if isinstance(content, Buffers) else content

    def __len__(self) -> int:
        """Count the events."""
        return len(self.buffers.ends) if self._events is None else len(self._events)

    @property
    def buffers(self) -> Buffers:
        if self._buffers is None:
            assert self._events is not None
            self._buffers = _flat(self._events)
        return self._buffers

    def events(self) -> list[Event]:
        if self._events is None:
            found = self.columns()
            series = map(found.table.__getitem__, found.series)
            self._events = list(
                map(Event, found.values, series, found.event_ids, found.local_us, found.positions)
            )
        return self._events

    def columns(self) -> Columns:
        """Give what each event has of its own, without making any event."""
        if self._buffers is None:
            return _columns(self.events())
        buffers = self._buffers
        ids = buffers.ids.decode("ascii")
        return Columns(
            self.values(),
            [ids[at : at + ID_LENGTH] for at in range(0, len(ids), ID_LENGTH)],
            array(_LOCAL_US, buffers.local_us.tobytes()),
            array(_POSITION, buffers.positions.tobytes()),
            buffers.series.tolist(),
            buffers.table,
        )

    def values(self) -> list[bytes]:
        """Give the envelopes."""
        if self._events is not None:
            return [event.value for event in self._events]
        data, ends = self.buffers.data, self.buffers.ends.tolist()
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def in_order(self) -> list[Event | Rejected]:
        """Give events and rejected lines by their position."""
        results: list[Event | Rejected] = [*self.events(), *self.rejected]
        return sorted(results, key=_position) if self.rejected else results


def _position(result: Event | Rejected) -> int:
    return result.position


def _columns(events: Sequence[Event]) -> Columns:
    numbers: dict[Series, int] = {}
    places = [numbers.setdefault(event.series, len(numbers)) for event in events]
    return Columns(
        [event.value for event in events],
        [event.event_id for event in events],
        array(_LOCAL_US, [event.local_us for event in events]),
        array(_POSITION, [event.position for event in events]),
        places,
        tuple(numbers),
    )


def _flat(events: Sequence[Event]) -> Buffers:
    columns = _columns(events)
    return Buffers(
        data=b"".join(columns.values),
        ends=memoryview(array("I", accumulate(map(len, columns.values)))),
        ids="".join(columns.event_ids).encode("ascii"),
        series=memoryview(array("I", columns.series)),
        positions=memoryview(columns.positions),
        local_us=memoryview(columns.local_us),
        table=tuple(columns.table),
    )
