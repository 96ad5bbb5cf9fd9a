"""Levels of a book gathered into price groups, only those again that changed."""

import sys
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache, reduce
from math import fmod, inf
from operator import add
from typing import Final

from tardis_machine.engine.python.book import EMPTY_LEVEL, BookSide
from tardis_machine.messages.numbers import canonical, of_float

_CACHE_SIZE: Final = 1 << 14

# JavaScript adds one double after the other; since 3.12 the built-in sum compensates for errors.
if sys.version_info >= (3, 12):

    def _sum(amounts: Iterable[float]) -> float:
        return reduce(add, amounts, 0.0)

else:

    def _sum(amounts: Iterable[float]) -> float:
        return sum(amounts, 0.0)


class _Indexes(dict[float, int]):
    """The ordinal of a level's group by the level's key; grows with the key, as exact math does."""

    __slots__ = ("_scale", "_sign", "_step")

    def __init__(self, sign: int, scale: float, step: float) -> None:
        self._sign = sign
        self._scale = scale
        self._step = step

    def __missing__(self, key: float) -> int:
        scaled = self._sign * key * self._scale
        remainder = fmod(scaled, self._step)
        index = round((scaled - remainder) / self._step)
        if self._sign < 0:
            index = -index - 1 if remainder > 0 else -index
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[key] = index
        return index


@lru_cache(maxsize=16)
def _indexes(sign: int, scale: float, step: float) -> _Indexes:
    """One for all books of a grouping, however many symbols there are."""
    return _Indexes(sign, scale, step)


class Groups:
    """The first groups of one side: bids round down, asks up, amounts are summed from the best."""

    __slots__ = (
        "_bound",
        "_depth",
        "_grouping",
        "_indexes",
        "_scale",
        "_shown",
        "_side",
        "_touched",
        "rows",
    )

    def __init__(self, side: BookSide, depth: int, grouping: float) -> None:
        self._side = side
        self._depth = depth
        self._grouping = grouping
        self._scale = float(10 ** decimal_places(grouping))
        self._indexes = _indexes(side.sign, self._scale, grouping * self._scale)
        # The groups behind `rows`: their text (rounding errors may split one) and how many levels.
        self._shown: dict[int, tuple[list[str], int]] = {}
        # The best level that is not in them: what lies below cannot change them.
        self._bound = -inf
        self._touched = False
        self.rows: list[str] = [EMPTY_LEVEL] * depth

    def note(self, changed: Iterable[float]) -> None:
        """Take note of changed levels."""
        bound = self._bound
        for key in changed:
            if key > bound:
                self._touched = True
                self._shown.pop(self._indexes[key], None)

    def refresh(self) -> bool:
        """Bring `rows` up to date; True when they differ from what they were."""
        if not self._touched:
            return False
        self._touched = False
        keys = self._side.keys
        known = self._shown
        shown: dict[int, tuple[list[str], int]] = {}
        rows: list[str] = []
        position = len(keys) - 1
        while position >= 0 and len(rows) < self._depth:
            index = self._indexes[keys[position]]
            group = shown[index] = known.get(index) or self._gather(index, position)
            rows += group[0]
            position -= group[1]
        self._shown = shown
        self._bound = keys[position] if position >= 0 else -inf
        if len(rows) < self._depth:
            rows += [EMPTY_LEVEL] * (self._depth - len(rows))
        else:
            del rows[self._depth :]
        if rows == self.rows:
            return False
        self.rows = rows
        return True

    def _gather(self, index: int, position: int) -> tuple[list[str], int]:
        """Return the text of the group whose best level stands at this position."""
        keys = self._side.keys
        start = bisect_left(keys, index, 0, position + 1, key=self._indexes.__getitem__)
        sizes = self._side.sizes[start : position + 1]
        sizes.reverse()
        price = self._price(keys[position])
        if self._scale == 1:
            return [_row(price, _sum(sizes))], len(sizes)
        prices = [self._price(key) for key in keys[start : position + 1]]
        prices.reverse()
        rows: list[str] = []
        first = 0
        for at, each in enumerate(prices):
            if each != price:
                rows.append(_row(price, _sum(sizes[first:at])))
                first = at
                price = each
        rows.append(_row(price, _sum(sizes[first:])))
        return rows, len(sizes)

    def _price(self, key: float) -> float:
        """Return the group's price as JavaScript computes it, rounding errors included."""
        sign = self._side.sign
        scale = self._scale
        scaled = sign * key * scale
        step = self._grouping * scale
        remainder = fmod(scaled, step) / scale
        up = step if sign < 0 and remainder > 0 else 0
        return (scaled - remainder * scale + up) / scale


def _row(price: float, amount: float) -> str:
    return f'{{"price":{of_float(price)},"amount":{of_float(amount)}}}'


def decimal_places(number: float) -> int:
    mantissa, _, exponent = canonical[number].partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))
