"""What a bus sends: an event, and what all records of its series share."""

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

import msgspec

if TYPE_CHECKING:
    from tardis_machine.bronze import Event, Series
else:
    # msgspec looks the type up, and settings are checked in processes that never see an envelope.
    Event = Any

Headers = tuple[tuple[str, str], ...]
EVENT_ID: Final = "event-id"
"""The header that every record has."""


class Target(NamedTuple):
    """Where the events of a series go, and how; made once for all of them.

    `key` is what order is promised for: no record is delivered before an earlier one of the same
    destination and key. `weight` is what the service counts of a record besides its value.
    """

    series: "Series"
    destination: str
    key: str
    headers: Headers
    weight: int = 0


class Record(msgspec.Struct, frozen=True, gc=False):
    """An event on its way to one bus; `weight` is all that the service counts of it."""

    event: Event
    target: Target
    weight: int

    @property
    def value(self) -> bytes:
        return self.event.value

    @property
    def destination(self) -> str:
        return self.target.destination

    @property
    def key(self) -> str:
        return self.target.key

    @property
    def headers(self) -> Headers:
        """Give the headers in their order: the event's own comes first."""
        return ((EVENT_ID, self.event.event_id), *self.target.headers)


class Records(Sequence[Record]):
    """Records in columns, as batches bring them; one by one only where that is asked for.

    Thousands of small objects take longer to be made and thrown away than to be handed to a fast
    client.
    """

    __slots__ = ("_made", "event_ids", "local_us", "positions", "targets", "values", "weights")

    def __init__(
        self,
        values: list[bytes],
        event_ids: list[str],
        targets: list[Target],
        weights: list[int],
        local_us: "array[int]",
        positions: "array[int]",
    ) -> None:
        self.values = values
        self.event_ids = event_ids
        self.targets = targets
        self.weights = weights
        self.local_us = local_us
        self.positions = positions
        self._made: list[Record] | None = None

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Records":
        """Give records in columns, if they are not."""
        if isinstance(records, Records):
            return records
        events = [record.event for record in records]
        return cls(
            [event.value for event in events],
            [event.event_id for event in events],
            [record.target for record in records],
            [record.weight for record in records],
            array("q", [event.local_us for event in events]),
            array("Q", [event.position for event in events]),
        )

    def extend(self, records: "Records") -> None:
        self.values += records.values
        self.event_ids += records.event_ids
        self.targets += records.targets
        self.weights += records.weights
        self.local_us += records.local_us
        self.positions += records.positions
        self._made = None

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> "Records": ...

    def __getitem__(self, place: int | slice) -> "Record | Records":
        if isinstance(place, int):
            return self._one_by_one()[place]
        return Records(
            self.values[place],
            self.event_ids[place],
            self.targets[place],
            self.weights[place],
            self.local_us[place],
            self.positions[place],
        )

    def __iter__(self) -> Iterator[Record]:
        return iter(self._one_by_one())

    def _one_by_one(self) -> list[Record]:
        if self._made is None:
            from tardis_machine.bronze import Event  # noqa: PLC0415 - see above

            series = [target.series for target in self.targets]
            events = map(Event, self.values, series, self.event_ids, self.local_us, self.positions)
            self._made = list(map(Record, events, self.targets, self.weights))
        return self._made
