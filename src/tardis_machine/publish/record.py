"""What a bus sends: an event, and what all records of its series share."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from tardis_machine.bronze import Event
else:
    # msgspec looks the type up, and settings are checked in processes that never see an envelope.
    Event = Any

Headers = tuple[tuple[str, str], ...]
EVENT_ID: Final = "event-id"
"""The header that every record has."""


class Target(NamedTuple):
    """Where the events of one series go, and how; made once for all of them.

    `key` is what order is promised for: no record is delivered before an earlier one of the same
    destination and key. `weight` is what the service counts of a record besides its value.
    """

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
