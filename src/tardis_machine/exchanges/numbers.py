"""Numbers as exchanges send them, with what JavaScript makes of null, empty and missing ones."""

from msgspec import UNSET, UnsetType

from tardis_machine.exchanges.errors import MapperError

Sent = str | int | float | UnsetType | None
"""A number's field: text or number, null, or not there."""


def required(value: Sent, channel: str, field: str) -> str | int | float:
    """As `Number(value)`: null and empty are 0; a missing field makes the message malformed."""
    if value is UNSET:
        raise MapperError(channel, f"no {field}")
    return value or 0


def optional(value: Sent) -> str | int | float | None:
    """As `Number(value)` where the field may be missing: null and empty are 0."""
    return None if value is UNSET else value or 0


def nonzero(value: float | UnsetType | None) -> float | None:
    """Drop what exchanges send for an empty side of the book: 0, null, nothing."""
    return value or None
