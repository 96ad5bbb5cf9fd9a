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


def _listed(levels: Levels) -> Sequence[Any]:
    if not isinstance(levels, msgspec.Raw):
        return levels
    decoded = _decode(levels)
    if decoded is None:
        return ()
    if not isinstance(decoded, list):
        raise ValueError(  # noqa: TRY004 - the message is wrong, not the program
            f"levels are not an array: {bytes(levels)[:80]!r}"
        )
    return decoded


def _picked(levels: Levels, price: str | int, amount: str | int) -> Sequence[Pair]:
    try:
        return [(level[price], level[amount]) for level in _listed(levels)]
    except (LookupError, TypeError):
        raise ValueError(f"a level without {price} and {amount}") from None


def PAIRS(levels: Levels) -> Sequence[Pair]:  # noqa: N802 - a constant to those who pass it
    """[price, amount, …]: strings or numbers; what follows the amount is ignored."""
    if not isinstance(levels, msgspec.Raw):
        return levels
    try:
        return _decode_pairs(levels) or ()
    except msgspec.ValidationError:
        pairs = [level[:2] for level in _decode_lists(levels)]
    return msgspec.convert(pairs, list[tuple[_Value, _Value]])


def objects(price_key: str, amount_key: str) -> Layout:
    """{"price": …, "amount": …} under the exchange's own names."""

    def read(levels: Levels) -> Sequence[Pair]:
        return _picked(levels, price_key, amount_key)

    return read


def positions(price: int, amount: int) -> Layout:
    """Arrays in which price and amount stand at these positions."""

    def read(levels: Levels) -> Sequence[Pair]:
        return _picked(levels, price, amount)

    return read
