"""The order book: levels with their JSON text, sorted so that the best is last."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import inf
from typing import Final

from tardis_machine.emit.levels import Pair
from tardis_machine.emit.numbers import canonical

EMPTY_LEVEL: Final = "{}"


class Side:
    """One side of a book.

    Its levels are keyed by a signed price that grows towards the best one, which stands last:
    changes near the top then move little memory however deep the book is.
    """

    __slots__ = (
        "amounts",
        "bound",
        "changed",
        "depth",
        "grouped",
        "keys",
        "sign",
        "texts",
        "top",
        "touched",
    )

    def __init__(self, sign: int, depth: int, *, grouped: bool) -> None:
        self.sign = sign
        self.depth = depth
        self.keys: list[float] = []
        self.texts: dict[float, str] = {}
        # For groups: what to sum, and which levels changed since they were last formed.
        self.grouped = grouped
        self.amounts: dict[float, float] = {}
        self.changed: set[float] = set()
        # The first `depth` levels as of the last refresh, and the key that separates them.
        self.top: list[str] = [EMPTY_LEVEL] * depth
        self.bound = -inf
        self.touched = False

    def clear(self) -> None:
        if self.keys:
            self.touched = True
        if self.grouped:
            self.changed.update(self.keys)
            self.amounts = {}
        self.keys = []
        self.texts.clear()

    def replace(self, levels: Sequence[Pair]) -> list[str]:
        """Start anew with a snapshot's levels, which may contain zeros."""
        self.clear()
        sign = self.sign
        written: list[str] = []
        texts = self.texts
        amounts: dict[float, float] = {}
        for price, amount in levels:
            price_text = canonical[price]
            amount_text = canonical[amount]
            key = sign * float(price_text)
            text = f'{{"price":{price_text},"amount":{amount_text}}}'
            written.append(text)
            if amount_text == "0":
                texts.pop(key, None)
                amounts.pop(key, None)
            else:
                texts[key] = text
                amounts[key] = float(amount_text)
        self.keys = sorted(texts)
        self.touched = True
        if self.grouped:
            self.amounts = amounts
            self.changed.update(texts)
        return written

    def apply(self, levels: Sequence[Pair]) -> list[str]:
        """Apply changed levels; returns the text of each, for the message itself."""
        sign = self.sign
        texts = self.texts
        keys = self.keys
        bound = self.bound
        written: list[str] = []
        for price, amount in levels:
            price_text = canonical[price]
            amount_text = canonical[amount]
            key = sign * float(price_text)
            text = f'{{"price":{price_text},"amount":{amount_text}}}'
            written.append(text)
            if amount_text == "0":
                if key not in texts:
                    continue
                del texts[key]
                del keys[bisect_left(keys, key)]
            else:
                old = texts.get(key)
                if old is None:
                    insort(keys, key)
                elif old == text:
                    continue
                texts[key] = text
            if key >= bound:
                self.touched = True
            if self.grouped:
                self.changed.add(key)
                if amount_text == "0":
                    del self.amounts[key]
                else:
                    self.amounts[key] = float(amount_text)
        return written

    def drop_best(self) -> None:
        key = self.keys.pop()
        del self.texts[key]
        if self.grouped:
            del self.amounts[key]
            self.changed.add(key)
        self.touched = True

    def first(self, depth: int) -> list[str]:
        """The text of the best levels, {} for missing ones; the same list while they stay."""
        if self.touched:
            self._refresh()
        return self.top if depth == self.depth else self.top[:depth]

    def _refresh(self) -> None:
        self.touched = False
        depth = self.depth
        keys = self.keys
        top = list(map(self.texts.__getitem__, keys[: -depth - 1 : -1]))
        if len(keys) < depth:
            top += [EMPTY_LEVEL] * (depth - len(keys))
            self.bound = -inf
        else:
            self.bound = keys[-depth]
        if top != self.top:
            self.top = top


class Book:
    """Both sides; changes before the first snapshot are ignored, crossed levels removed."""

    __slots__ = ("asks", "bids", "ready")

    def __init__(self, depth: int, *, grouped: bool = False) -> None:
        self.bids = Side(1, depth, grouped=grouped)
        self.asks = Side(-1, depth, grouped=grouped)
        self.ready = False

    def update(
        self, is_snapshot: bool, bids: Sequence[Pair], asks: Sequence[Pair]
    ) -> tuple[list[str], list[str]]:
        """Apply a change; returns the JSON text of its bids and asks."""
        if is_snapshot:
            self.ready = True
            asks_written = self.asks.replace(asks)
            bids_written = self.bids.replace(bids)
        elif self.ready:
            asks_written = self.asks.apply(asks)
            bids_written = self.bids.apply(bids)
        else:
            return written(bids), written(asks)
        ask_keys = self.asks.keys
        bid_keys = self.bids.keys
        if ask_keys and bid_keys and bid_keys[-1] >= -ask_keys[-1]:
            self._uncross(asks)
        return bids_written, asks_written

    def _uncross(self, asks: Sequence[Pair]) -> None:
        """Remove what the exchange did not: the side that this change did not bring."""
        best_ask = -self.asks.keys[-1]
        brought = any(float(canonical[price]) == best_ask for price, _ in asks)
        stale = self.bids if brought else self.asks
        while self.bids.keys and self.asks.keys and self.bids.keys[-1] >= -self.asks.keys[-1]:
            stale.drop_best()


def written(levels: Sequence[Pair]) -> list[str]:
    """The JSON text of each level."""
    numbers = canonical
    return [f'{{"price":{numbers[price]},"amount":{numbers[amount]}}}' for price, amount in levels]
