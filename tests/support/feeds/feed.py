"""What the made-up exchanges have in common: markets, numbers and times as text."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from datetime import UTC, datetime
from random import Random
from typing import Final

from tests.support.feeds.book import Book

_HOURS_8: Final = 8 * 3600 * 1000


class Market:
    """One symbol: its book, and how prices and amounts are written."""

    def __init__(
        self,
        random: Random,
        symbol: str,
        *,
        price: float,
        tick: float,
        lot: float,
        mean_lots: int,
        depth: int,
        weight: float = 1.0,
    ) -> None:
        self.symbol = symbol
        self.weight = weight
        self.tick = tick
        self.lot = lot
        self.book = Book(random, round(price / tick), depth, mean_lots)
        self.last = self.book.best_bid
        self.opening_price = price
        self.direction = "ZeroPlusTick"
        self.volume = 0
        self._price_digits = _digits(tick)
        self._amount_digits = _digits(lot)
        self._price_scale = int(10**self._price_digits)
        self._tick_units = round(tick * self._price_scale)
        self._lot_units = round(lot * 10**self._amount_digits)

    def price(self, tick: int) -> float:
        """A price as a number."""
        return tick * self._tick_units / self._price_scale

    def fixed_price(self, tick: int) -> str:
        """A price with all the digits of its tick."""
        return fixed(tick * self._tick_units, self._price_digits)

    def fixed_amount(self, lots: int) -> str:
        """An amount with all the digits of its lot."""
        return fixed(lots * self._lot_units, self._amount_digits)

    def plain_price(self, tick: int) -> str:
        """A price as JSON prints a number."""
        return plain(tick * self._tick_units, self._price_digits)

    def plain_amount(self, lots: int) -> str:
        """An amount as JSON prints a number."""
        return plain(lots * self._lot_units, self._amount_digits)

    def traded(self, tick: int, lots: int) -> str:
        """Note a trade; return its tick direction."""
        if tick != self.last:
            self.direction = "PlusTick" if tick > self.last else "MinusTick"
            self.last = tick
        elif not self.direction.startswith("Zero"):
            self.direction = f"Zero{self.direction}"
        self.volume += lots
        return self.direction


class Feed(ABC):
    """An exchange's messages as its WebSocket would send them; times are epoch milliseconds."""

    def __init__(self, random: Random, channels: Collection[str] | None = None) -> None:
        self.random = random
        self.channels = channels
        self.markets: list[Market] = []

    def has(self, channel: str) -> bool:
        """Tell whether the feed carries a channel."""
        return self.channels is None or channel in self.channels

    def market(self) -> Market:
        """One of the markets, the busier ones more often."""
        chosen = self.random.random() * sum(each.weight for each in self.markets)
        for each in self.markets:
            chosen -= each.weight
            if chosen < 0:
                return each
        return self.markets[-1]

    @abstractmethod
    def opening(self, now: int) -> list[str]:
        """What follows a connection: snapshots of everything."""

    @abstractmethod
    def event(self, now: int) -> list[str]:
        """Something happens in one of the markets."""

    @abstractmethod
    def second(self, now: int) -> list[str]:
        """What is sent every second."""


def fixed(units: int, digits: int) -> str:
    """Print `units / 10^digits` with all its digits."""
    if not digits:
        return str(units)
    whole, rest = divmod(units, 10**digits)
    return f"{whole}.{rest:0{digits}}"


def plain(units: int, digits: int) -> str:
    """Print `units / 10^digits` without trailing zeros."""
    if not digits:
        return str(units)
    return fixed(units, digits).rstrip("0").rstrip(".")


def iso_ms(ms: int) -> str:
    """Print a time as `2024-03-01T00:00:00.000Z`."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"


def next_funding(ms: int) -> int:
    """The next of the day's three funding times."""
    return ms // _HOURS_8 * _HOURS_8 + _HOURS_8


def _digits(step: float) -> int:
    text = f"{step:.8f}".rstrip("0")
    return len(text) - text.index(".") - 1
