"""A batch that was encoded: its envelopes in one piece, and what is to be known of each."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from tardis_machine.bronze.errors import EncodeError

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
            self._events = _apart(self.buffers, self.values())
        return self._events

    def series(self) -> tuple[Sequence[Series], Sequence[int]]:
        """Give the series there are, and for each event the place of its own among them."""
        if self._buffers is not None:
            return self._buffers.table, self._buffers.series.tolist()
        numbers: dict[Series, int] = {}
        places = [numbers.setdefault(e.series, len(numbers)) for e in self.events()]
        return tuple(numbers), places

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


def _flat(events: Sequence[Event]) -> Buffers:
    table = {series: place for place, series in enumerate(dict.fromkeys(e.series for e in events))}
    return Buffers(
        data=b"".join([event.value for event in events]),
        ends=memoryview(array("I", accumulate([len(event.value) for event in events]))),
        ids="".join([event.event_id for event in events]).encode("ascii"),
        series=memoryview(array("I", [table[event.series] for event in events])),
        positions=memoryview(array("Q", [event.position for event in events])),
        local_us=memoryview(array("q", [event.local_us for event in events])),
        table=tuple(table),
    )


def _apart(buffers: Buffers, values: Sequence[bytes]) -> list[Event]:
    ids, table = buffers.ids.decode("ascii"), buffers.table
    return [
        Event(value, table[series], ids[at : at + ID_LENGTH], local_us, position)
        for value, series, at, local_us, position in zip(
            values,
            buffers.series.tolist(),
            range(0, len(ids), ID_LENGTH),
            buffers.local_us.tolist(),
            buffers.positions.tolist(),
            strict=True,
        )
    ]
