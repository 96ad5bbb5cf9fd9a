"""Levels of a book as exchanges write them: raw JSON or pairs, read as price and amount."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tardis_machine.emit.numbers import Number

Pair = Sequence[Number]
Levels = msgspec.Raw | Sequence[Pair]
# Raw JSON or decoded levels in, sequences of exactly price and amount out.
Layout = Callable[[Levels], Sequence[Pair]]

_decode: Final[Callable[[msgspec.Raw], Any]] = msgspec.json.Decoder().decode
_Value = str | int | float
_decode_pairs: Final = msgspec.json.Decoder(list[tuple[_Value, _Value]] | None).decode
_decode_lists: Final = msgspec.json.Decoder(list[list[Any]]).decode


def PAIRS(levels: Levels) -> Sequence[Pair]:  # noqa: N802 - a constant to those who pass it
    """[price, amount, …]: strings or numbers; what follows the amount is ignored."""
    listed: Sequence[Pair] = _decode(levels) if isinstance(levels, msgspec.Raw) else levels
    if not listed:
        return ()
    if len(listed[0]) != 2:
        return [level[:2] for level in listed]
    return listed


def _listed(levels: Levels) -> Sequence[Any]:
    listed: Sequence[Any] = _decode(levels) if isinstance(levels, msgspec.Raw) else levels
    return listed or ()


def objects(price_key: str, amount_key: str) -> Layout:
    """{"price": …, "amount": …} under the exchange's own names."""

    def read(levels: Levels) -> Sequence[Pair]:
        return [(level[price_key], level[amount_key]) for level in _listed(levels)]

    return read


def positions(price: int, amount: int) -> Layout:
    """Arrays in which price and amount stand at these positions."""

    def read(levels: Levels) -> Sequence[Pair]:
        return [(level[price], level[amount]) for level in _listed(levels)]

    return read
