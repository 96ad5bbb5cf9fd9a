"""What a bus sends: one event with its destination, key and headers."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tardis_machine.bronze import Event

Headers = tuple[tuple[str, str], ...]


class Record(NamedTuple):
    """An event on its way to one bus.

    `key` is what order is promised for: no record is delivered before an earlier one of the same
    destination and key.
    """

    event: "Event"
    destination: str
    key: str
    headers: Headers
    value: bytes
