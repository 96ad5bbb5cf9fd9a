"""Parts of a table that are made anew as a whole: a day of an exchange, of all symbols or some."""

from collections.abc import Iterable
from typing import NamedTuple

from tardis_machine.lake.spans import day, listed, literal

Changes = dict[tuple[str, int], frozenset[str] | None]
"""By exchange and day, counted from 1970: the symbols that changed; None for all of them."""


class Part(NamedTuple):
    """A day of an exchange, of some symbols or all, and the origin that is taken of it."""

    exchange: str
    day: int
    symbols: frozenset[str] | None
    origin: str

    @property
    def condition(self) -> str:
        """Which rows it is."""
        return _condition(self.exchange, self.day, self.symbols)


def condition(parts: Iterable[Part]) -> str:
    """Write which rows some parts are."""
    return _any(part.condition for part in parts)


def of_origin(parts: Iterable[Part]) -> str:
    """Write which rows some parts are made of: those of the origin that was chosen."""
    return _any(f"{part.condition} AND origin = {literal(part.origin)}" for part in parts)


def whole_days(parts: Iterable[Part]) -> str:
    """Write the same for what concerns all symbols."""
    return of_origin(part._replace(symbols=None) for part in parts)


def days_of(changes: Iterable[tuple[str, int]]) -> str:
    """Write which rows some days are."""
    return _any(_condition(exchange, number, None) for exchange, number in changes)


def merged(one: Changes, other: Changes) -> Changes:
    """Give what either has."""
    both = dict(one)
    for key, symbols in other.items():
        before = both.get(key, frozenset())
        both[key] = None if before is None or symbols is None else before | symbols
    return both


def _condition(exchange: str, number: int, symbols: frozenset[str] | None) -> str:
    found = f"exchange = {literal(exchange)} AND day = {day(number)}"
    return found if symbols is None else f"{found} AND symbol IN ({listed(sorted(symbols))})"


def _any(conditions: Iterable[str]) -> str:
    return " OR ".join(f"({each})" for each in conditions) or "false"
