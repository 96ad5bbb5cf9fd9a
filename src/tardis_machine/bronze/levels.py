"""Price levels as Protobuf writes them.

A book has hundreds of levels to one envelope, and a Python object for each is most of the cost of
encoding it. Levels are two short texts, and prices and amounts come again and again: their bytes
are kept by number and joined, which takes a third of the time.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET

from tardis_machine.bronze.decimals import DECIMALS

_CACHED: Final = 65_536
_PRICE_TAG: Final = b"\x0a"
_AMOUNT_TAG: Final = b"\x12"
_LENGTH_DELIMITED: Final = 2


def varint(number: int) -> bytes:
    """Write a whole number as Protobuf does."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(field: int) -> bytes:
    """Write what stands before a text, a message or bytes with this field number."""
    return varint(field << 3 | _LENGTH_DELIMITED)


class _TextFields(dict[Any, bytes]):
    """A field with a decimal's text, by the number; nothing for one that is absent."""

    def __init__(self, field_tag: bytes) -> None:
        self._tag = field_tag

    def __missing__(self, number: Any) -> bytes:
        if len(self) >= _CACHED:
            self.clear()
        if number is UNSET:
            field = b""
        else:
            text = DECIMALS[number].encode()
            field = self._tag + varint(len(text)) + text
        self[number] = field
        return field


class _Heads(dict[int, bytes]):
    """A list's tag and an item's length, by the length."""

    def __init__(self, field: int) -> None:
        self._tag = tag(field)

    def __missing__(self, length: int) -> bytes:
        head = self[length] = self._tag + varint(length)
        return head


_PRICES: Final = _TextFields(_PRICE_TAG)
_AMOUNTS: Final = _TextFields(_AMOUNT_TAG)


class LevelList:
    """The levels of one side: a repeated Level of the given field number."""

    __slots__ = ("_heads",)

    def __init__(self, field: int) -> None:
        self._heads = _Heads(field)

    def write(self, levels: Sequence[Any]) -> bytes:
        """Write levels that have a price and an amount, or neither."""
        prices, amounts, heads = _PRICES, _AMOUNTS, self._heads
        return b"".join(
            [
                heads[len(level := prices[item.price] + amounts[item.amount])] + level
                for item in levels
            ]
        )
