"""Readers of fields as exchanges send them, which treat null and empty ones as JavaScript does.

A mapper declares a field that may be missing as `JsonNumber`, with UNSET as its default, and
chooses the function by the meaning of an absent field. A MapperError of these functions makes the
message malformed.
"""

from collections.abc import Callable
from math import isfinite
from typing import Literal

from msgspec import UNSET, UnsetType

from tardis_machine.engine import LATEST_KNOWN, Side
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.messages.numbers import of_float
from tardis_machine.messages.times import TimeValue, is_before_1970

JsonNumber = str | int | float | UnsetType | None
"""The type of a number field: text or number, null, or missing."""

JsonLevels = list[list[str | int | float | None]] | None
"""The type of levels of which only the first is read."""

JsonTime = str | int | float | UnsetType | None
"""The type of a time field: text or number, null, or missing."""


def number_or_error(value: JsonNumber, channel: str, field: str) -> str | int | float:
    """Return a number, with 0 for null and empty; raise MapperError for a missing field."""
    if value is UNSET:
        raise MapperError(channel, f"no {field}")
    return value or 0


def number_if_sent(value: JsonNumber) -> str | int | float | None:
    """Return a number, with 0 for null and empty; None for a missing field."""
    return None if value is UNSET else value or 0


def number_if_not_empty(value: JsonNumber) -> str | int | float | None:
    """Return a number, or None for a missing, null or empty field."""
    return None if value is UNSET or value == "" else value


def number_if_not_null(value: JsonNumber) -> str | int | float | None:
    """Return a number, with 0 for empty; None for a missing or null field."""
    return None if value is UNSET or value is None else value or 0


def number_if_nonzero(value: JsonNumber) -> str | int | float | None:
    """Return a number; None for 0 in any form and for a missing, null or empty field.

    Exchanges send these for an empty side of a book. Text that is no finite number is None as
    well: some exchanges send words there, or ∞.
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
    """Return the first level's price and amount, 0 for null and empty; None without levels."""
    if not levels:
        return None, None
    try:
        return levels[0][0] or 0, levels[0][1] or 0
    except IndexError:
        raise MapperError(channel, "a level without price and amount") from None


def symbol(value: str | None, channel: str) -> str:
    """Return a symbol; raise MapperError for a missing one."""
    if value is None:
        raise MapperError(channel, "no symbol")
    return value


def time(value: JsonTime, channel: str, field: str) -> int:
    """Return a time as a whole number of its unit; raise MapperError for a missing one."""
    if value is UNSET or value is None or value == "":
        raise MapperError(channel, f"no time in {field}")
    return int(value)


def time_text(value: str | UnsetType | None, channel: str, field: str) -> str:
    """Return a time that is ISO text; raise MapperError for a missing one."""
    if not value:
        raise MapperError(channel, f"no time in {field}")
    return value


def time_or_local(
    value: str | UnsetType | None, channel: str, field: str, parse: Callable[[str], TimeValue]
) -> TimeValue | None:
    """Return a parsed ISO time; None, for the local time, if it is missing or before 1970.

    Raises MapperError for null and empty.
    """
    if value is UNSET:
        return None
    iso = time_text(value, channel, field)
    return None if is_before_1970(iso) else parse(iso)


def ticker_time(value: JsonTime) -> int:
    """Return a ticker's time; LATEST_KNOWN if it is missing, null or empty."""
    return LATEST_KNOWN if value is UNSET or value is None or value == "" else int(value)


def text(value: str | float | UnsetType | None) -> str:
    """Return an id that may be text or number as text, with JavaScript's words for absent ones.

    A mapper passes an id that is always an int, or always text, to the emitter as it is.
    """
    if value is UNSET:
        return "undefined"
    if value is None:
        return "null"
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else of_float(value)


def side(value: object, buy: object) -> Literal["buy", "sell"]:
    """Return the taker's side: buy for one value, sell for any other."""
    return "buy" if value == buy else "sell"


def side_unless_sell(value: object, sell: object) -> Literal["buy", "sell"]:
    """Return the taker's side: sell for one value, buy for any other."""
    return "sell" if value == sell else "buy"


def side_or_unknown(value: object, buy: object, sell: object) -> Side:
    """Return the taker's side: buy and sell for one value each, unknown for any other."""
    return "buy" if value == buy else "sell" if value == sell else "unknown"
