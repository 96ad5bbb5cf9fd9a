"""A made-up order book that behaves: never crossed, dense near the top, moved by its trades."""

from random import Random
from typing import Final, NamedTuple

_NEAR: Final = 1 / 12
_FAR_SHARE: Final = 0.08
_REMOVAL_SHARE: Final = 0.2


class Change(NamedTuple):
    """A level's amount before and after, in lots; 0 is no level."""

    is_bid: bool
    tick: int
    before: int
    after: int


class Trade(NamedTuple):
    """A taker's trade at the best price, and what it left of the level."""

    is_buy: bool
    tick: int
    amount: int
    change: Change


class Book:
    """Two sides of levels: price in ticks to amount in lots."""

    def __init__(self, random: Random, middle: int, depth: int, mean_amount: int) -> None:
        self._random = random
        self._depth = depth
        self._mean = mean_amount
        self.bids = {middle - each: self._amount() for each in range(1, depth + 1)}
        self.asks = {middle + each: self._amount() for each in range(1, depth + 1)}
        self.best_bid = middle - 1
        self.best_ask = middle + 1

    def change(self) -> Change:
        """Add, change or remove one level, mostly near the top."""
        random = self._random
        is_bid = random.random() < 0.5
        if self.best_ask - self.best_bid > 1 and random.random() < 0.6:
            return self._put(is_bid, self.best_bid + 1 if is_bid else self.best_ask - 1)
        if random.random() < _FAR_SHARE:
            distance = random.randrange(self._depth)
        else:
            distance = int(random.expovariate(_NEAR))
        tick = self.best_bid - distance if is_bid else self.best_ask + distance
        side = self.bids if is_bid else self.asks
        if tick in side and random.random() < _REMOVAL_SHARE and len(side) > self._depth // 2:
            return self._remove(is_bid, tick)
        return self._put(is_bid, tick)

    def trade(self) -> Trade:
        """Take from the best level of one side, now and then all of it."""
        random = self._random
        is_buy = random.random() < 0.5
        tick = self.best_ask if is_buy else self.best_bid
        side = self.asks if is_buy else self.bids
        before = side[tick]
        if random.random() < 0.1 or before < 2:
            return Trade(is_buy, tick, before, self._remove(not is_buy, tick))
        amount = min(before - 1, 1 + int(random.expovariate(3 / before)))
        side[tick] = before - amount
        return Trade(is_buy, tick, amount, Change(not is_buy, tick, before, before - amount))

    def _amount(self) -> int:
        return 1 + int(self._random.expovariate(1 / self._mean))

    def _put(self, is_bid: bool, tick: int) -> Change:
        side = self.bids if is_bid else self.asks
        before = side.get(tick, 0)
        after = side[tick] = self._amount()
        if after == before:
            after = side[tick] = before + 1
        if is_bid:
            self.best_bid = max(self.best_bid, tick)
        else:
            self.best_ask = min(self.best_ask, tick)
        return Change(is_bid, tick, before, after)

    def _remove(self, is_bid: bool, tick: int) -> Change:
        side = self.bids if is_bid else self.asks
        before = side.pop(tick)
        if is_bid:
            while self.best_bid not in side:
                self.best_bid -= 1
        else:
            while self.best_ask not in side:
                self.best_ask += 1
        return Change(is_bid, tick, before, 0)
