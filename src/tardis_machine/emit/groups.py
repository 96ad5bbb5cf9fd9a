"""Levels of a book gathered into price groups."""

from math import fmod

from tardis_machine.emit.book import EMPTY_LEVEL, Side
from tardis_machine.emit.numbers import canonical, of_float


class Groups:
    """The first groups of one side: bids round down, asks up, amounts are summed from the best."""

    def __init__(self, side: Side, depth: int, grouping: float) -> None:
        self.side = side
        self.depth = depth
        self.grouping = grouping
        self.scale = float(10 ** decimal_places(grouping))
        self.rows: list[str] = [EMPTY_LEVEL] * depth

    def price_of(self, key: float) -> float:
        """The group's price, rounding errors included, as JavaScript computes it."""
        scaled = abs(self.side.sign) * self.side.sign * key * self.scale
        step = self.grouping * self.scale
        remainder = fmod(scaled, step) / self.scale
        up = step if self.side.sign < 0 and remainder > 0 else 0
        return (scaled - remainder * self.scale + up) / self.scale

    def refresh(self) -> bool:
        rows: list[str] = []
        amounts = self.side.amounts
        assert amounts is not None
        current: float | None = None
        total = 0.0
        for key in reversed(self.side.keys):
            price = self.price_of(key)
            if current is None:
                current = price
            if price != current:
                rows.append(f'{{"price":{of_float(current)},"amount":{of_float(total)}}}')
                if len(rows) == self.depth:
                    break
                current = price
                total = 0.0
            total += amounts[key]
        if current is not None and len(rows) < self.depth and total > 0:
            rows.append(f'{{"price":{of_float(current)},"amount":{of_float(total)}}}')
        new = rows + self.rows[len(rows) :]
        if new == self.rows:
            return False
        self.rows = new
        return True


def decimal_places(number: float) -> int:
    mantissa, _, exponent = canonical[number].partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))
