"""The order book: levels with their JSON text, sorted so that the best is last."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import Final

from tardis_machine.engine.levels import Pair
from tardis_machine.messages.numbers import Number, canonical

EMPTY_LEVEL: Final = "{}"

# A changed level: its price with the side's sign, the text of its amount, its whole text.
Change = tuple[float, str, str]

# Above this many changes at once the first levels are gathered anew instead of patched.
_MAX_PATCHES: Final = 8
# What is computed stays finite up to here, however many levels or trades are added up.
_LARGEST: Final = 1e150
_CACHE_SIZE: Final = 1 << 15


def computable(text: str) -> float:
    """Read a number's text; ValueError if sums and products of such numbers might overflow."""
    number = float(text)
    if not -_LARGEST <= number <= _LARGEST:
        raise ValueError(f"too large to compute with: {text}")
    return number


class _Prices(dict[Number, tuple[float, str]]):
    """By a price as it was found: its key, and the text of a level up to its amount."""

    __slots__ = ("_sign",)

    def __init__(self, sign: int) -> None:
        self._sign = sign

    def __missing__(self, price: Number) -> tuple[float, str]:
        text = canonical[price]
        key = self._sign * computable(text)
        if len(self) >= _CACHE_SIZE:
            self.clear()
        known = self[price] = (key, f'{{"price":{text},"amount":')
        return known


# Shared by all books: each would fill one of its own, however many symbols there are.
_prices: Final = {1: _Prices(1), -1: _Prices(-1)}


class BookSide:
    """One side of a book.

    Its levels are keyed by a signed price that grows towards the best one, which stands last:
    changes near the top then move little memory however deep the book is.
    """

    __slots__ = (
        "changed",
        "depth",
        "grouped",
        "keys",
        "prices",
        "sign",
        "sizes",
        "texts",
        "top",
        "version",
    )

    def __init__(self, sign: int, depth: int, *, grouped: bool) -> None:
        self.sign = sign
        self.prices = _prices[sign]
        self.depth = depth
        self.keys: list[float] = []
        self.texts: dict[float, str] = {}
        # The first `depth` levels from the best on, {} for missing ones. The version moves
        # whenever they may have changed.
        self.top: list[str] = [EMPTY_LEVEL] * depth
        self.version = 0
        # For groups: the amount of each key, and which levels changed since they took note.
        self.grouped = grouped
        self.sizes: list[float] = []
        self.changed: set[float] = set()

    def parse(self, levels: Sequence[Pair]) -> tuple[list[Change], str]:
        """Read levels, and write them as JSON for the message that brought them."""
        prices = self.prices
        changes: list[Change] = []
        written = ""
        for price, amount in levels:
            key, head = prices[price]
            amount_text = canonical[amount]
            text = f"{head}{amount_text}}}"
            changes.append((key, amount_text, text))
            written += "," + text
        if self.grouped:
            for _, amount_text, _ in changes:
                computable(amount_text)
        return changes, written[1:]

    def replace(self, changes: Sequence[Change]) -> None:
        """Start anew with a snapshot's levels, which may contain zeros."""
        texts: dict[float, str] = {}
        for key, amount, text in changes:
            if amount == "0":
                texts.pop(key, None)
            else:
                texts[key] = text
        keys = sorted(texts)
        if self.grouped:
            self.changed.update(self.keys, keys)
            sizes = {key: float(amount) for key, amount, _ in changes}
            self.sizes = [sizes[key] for key in keys]
        self.texts = texts
        self.keys = keys
        self._gather_top()

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changed levels; amount 0 removes one, and nothing where there is none."""
        texts = self.texts
        keys = self.keys
        # Depth 0, which nothing reaches, stands for tops that are gathered at the end.
        depth = self.depth if len(changes) <= _MAX_PATCHES else 0
        bound = keys[-self.depth] if len(keys) >= self.depth > 0 else -inf
        touched = False
        for key, amount, text in changes:
            old = texts.get(key)
            if amount == "0":
                if old is None:
                    continue
                del texts[key]
                position = bisect_left(keys, key)
                del keys[position]
                if self.grouped:
                    del self.sizes[position]
                rank = len(keys) - position
                if rank < depth:
                    del self.top[rank]
                    last = len(keys) - depth
                    # The bound moves down with the level that comes into sight.
                    bound = keys[last] if last >= 0 else -inf
                    self.top.append(texts[bound] if last >= 0 else EMPTY_LEVEL)
                    touched = True
            elif old is None:
                texts[key] = text
                position = bisect_left(keys, key)
                keys.insert(position, key)
                if self.grouped:
                    self.sizes.insert(position, float(amount))
                rank = len(keys) - 1 - position
                if rank < depth:
                    self.top.insert(rank, text)
                    self.top.pop()
            elif old == text:
                continue
            else:
                texts[key] = text
                if self.grouped:
                    self.sizes[bisect_left(keys, key)] = float(amount)
                if depth and key >= bound:
                    rank = len(keys) - 1 - bisect_left(keys, key)
                    if rank < depth:
                        self.top[rank] = text
            if key >= bound:
                touched = True
            if self.grouped:
                self.changed.add(key)
        if touched:
            self.version += 1
            if not depth:
                self._gather_top()

    def drop_best(self) -> None:
        self.apply([(self.keys[-1], "0", "")])

    def _gather_top(self) -> None:
        self.version += 1
        depth = self.depth
        if depth:
            top = list(map(self.texts.__getitem__, self.keys[: -depth - 1 : -1]))
            top += [EMPTY_LEVEL] * (depth - len(top))
            self.top = top


class Book:
    """Both sides; changes before the first snapshot are ignored, crossed levels removed."""

    __slots__ = ("asks", "bids", "ready")

    def __init__(self, depth: int, *, grouped: bool = False) -> None:
        self.bids = BookSide(1, depth, grouped=grouped)
        self.asks = BookSide(-1, depth, grouped=grouped)
        self.ready = False

    def update(self, is_snapshot: bool, bids: Sequence[Change], asks: Sequence[Change]) -> None:
        """Apply a book change, both sides of which were read before."""
        if is_snapshot:
            self.ready = True
            self.asks.replace(asks)
            self.bids.replace(bids)
        elif self.ready:
            if asks:
                self.asks.apply(asks)
            if bids:
                self.bids.apply(bids)
        else:
            return
        ask_keys = self.asks.keys
        bid_keys = self.bids.keys
        if ask_keys and bid_keys and bid_keys[-1] >= -ask_keys[-1]:
            self._uncross(asks)

    def _uncross(self, asks: Sequence[Change]) -> None:
        """Remove what the exchange did not: the side that this change did not bring."""
        best_ask = self.asks.keys[-1]
        stale = self.bids if any(key == best_ask for key, _, _ in asks) else self.asks
        while self.bids.keys and self.asks.keys and self.bids.keys[-1] >= -self.asks.keys[-1]:
            stale.drop_best()
