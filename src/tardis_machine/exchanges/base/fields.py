"""Fields as exchanges send them, with what JavaScript makes of null, empty and missing ones.

Declare a field that may be missing as `JsonNumber`, with UNSET as its default. The function that
reads the field says what its absence means.
"""

from collections.abc import Callable
from math import isfinite
from typing import Literal

from msgspec import UNSET, UnsetType

from tardis_machine.engine import Side
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.messages.numbers import of_float
from tardis_machine.messages.times import TimeValue, is_before_1970

JsonNumber = str | int | float | UnsetType | None
"""A number's field: text or number, null, or not there."""

JsonLevels = list[list[str | int | float | None]] | None
"""Levels of which only the first is read."""

JsonTime = str | int | float | UnsetType | None
"""A time's field: text or number, null, or not there."""


def number_or_error(value: JsonNumber, channel: str, field: str) -> str | int | float:
    """As `Number(value)`: null and empty are 0; a missing field makes the message malformed."""
    if value is UNSET:
        raise MapperError(channel, f"no {field}")
    return value or 0


def number_if_sent(value: JsonNumber) -> str | int | float | None:
    """As `Number(value)` where the field may be missing: null and empty are 0."""
    return None if value is UNSET else value or 0


def number_if_not_empty(value: JsonNumber) -> str | int | float | None:
    """Drop what is missing, null or empty; 0 is a number."""
    return None if value is UNSET or value == "" else value


def number_if_not_null(value: JsonNumber) -> str | int | float | None:
    """Drop what is missing or null; empty is 0."""
    return None if value is UNSET or value is None else value or 0


def number_if_nonzero(value: JsonNumber) -> str | int | float | None:
    """Drop what exchanges send for an empty side of the book: 0 in any form, null, nothing.

    What is no number goes, too: some print words there, or ∞.
    """
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return None
        return value if number and isfinite(number) else None
    return value or None


def best(
    levels: JsonLevels, channel: str
) -> tuple[str | int | float | None, str | int | float | None]:
    """Price and amount of the first level, where null and empty are 0; without one neither."""
    if not levels:
        return None, None
    try:
        return levels[0][0] or 0, levels[0][1] or 0
    except IndexError:
        raise MapperError(channel, "a level without price and amount") from None


def symbol(value: str | None, channel: str) -> str:
    """Return a symbol that is not always there; without one the message is malformed."""
    if value is None:
        raise MapperError(channel, "no symbol")
    return value


def time(value: JsonTime, channel: str, field: str) -> int:
    """Return a time as a whole number of its unit; without one the message is malformed."""
    if value is UNSET or value is None or value == "":
        raise MapperError(channel, f"no time in {field}")
    return int(value)


def time_text(value: str | UnsetType | None, channel: str, field: str) -> str:
    """Return a time that is ISO text; without one the message is malformed."""
    if not value:
        raise MapperError(channel, f"no time in {field}")
    return value


def meant_time(
    value: str | UnsetType | None, channel: str, field: str, parse: Callable[[str], TimeValue]
) -> TimeValue | None:
    """Return a time that is ISO text; None, the local time, where it is missing or before 1970."""
    if value is UNSET:
        return None
    iso = time_text(value, channel, field)
    return None if is_before_1970(iso) else parse(iso)


def ticker_time(value: JsonTime) -> int:
    """Return a ticker's time; 0, the latest that the emitter knows, where it is missing."""
    return 0 if value is UNSET or value is None or value == "" else int(value)


def text(value: str | float | UnsetType | None) -> str:
    """As `String(value)`, for ids that are not always text: absent ones print as clients know them.

    An id that is always an int, or text, goes to the emitter as it is.
    """
    if value is UNSET:
        return "undefined"
    if value is None:
        return "null"
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else of_float(value)


def side(value: object, buy: object) -> Literal["buy", "sell"]:
    """Return the taker's side where everything but one value is a sale."""
    return "buy" if value == buy else "sell"


def side_unless_sell(value: object, sell: object) -> Literal["buy", "sell"]:
    """Return the taker's side where everything but one value is a purchase."""
    return "sell" if value == sell else "buy"


def side_or_unknown(value: object, buy: object, sell: object) -> Side:
    """Return the taker's side where some trades have none."""
    return "buy" if value == buy else "sell" if value == sell else "unknown"
