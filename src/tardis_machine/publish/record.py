"""What a bus sends: an event, and what all records of its series share."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tardis_machine.bronze import Event

Headers = tuple[tuple[str, str], ...]


class Target(NamedTuple):
    """Where the events of one series go, and how; made once for all of them.

    `key` is what order is promised for: no record is delivered before an earlier one of the same
    destination and key. `weight` is what the service counts of a record besides its value.
    """

    destination: str
    key: str
    headers: Headers
    weight: int = 0


class Record(NamedTuple):
    """An event on its way to one bus; `weight` is all that the service counts of it."""

    event: "Event"
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
        return (("event-id", self.event.event_id), *self.target.headers)
