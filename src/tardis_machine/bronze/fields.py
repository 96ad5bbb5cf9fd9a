"""Fields of an envelope as Protobuf writes them.

Filling Protobuf's own message objects and serializing them was measured to take a tenth longer for
a trade, a third longer for tickers and bars, and more than twice as long for a level of a book;
and a message that is reused keeps every text ever assigned to it. What an envelope consists of is
short and comes again and again (prices, amounts, seconds), so that the bytes of a field can be
kept by its value, and an envelope is a join. Field numbers come from the generated code; the tests
hold the bytes against what Protobuf makes of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from tardis_machine.bronze.varints import varint
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages.numbers import decimals

_CACHED: Final = 16_384
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2


def tag(field: int) -> bytes:
    """Write what stands before a text or message with this field number."""
    return varint(field << 3 | _LENGTH_DELIMITED)


def number_tag(field: int) -> bytes:
    """Write what stands before a whole number, a flag or an enum value."""
    return varint(field << 3 | _VARINT)


class Heads(dict[int, bytes]):
    """A field's tag and the length of what follows, by the length."""

    def __init__(self, field: int) -> None:
        self._tag = tag(field)

    def __missing__(self, length: int) -> bytes:
        head = self._tag + varint(length)
        if length < _CACHED:
            self[length] = head
        return head


class DecimalField(dict[Any, bytes]):
    """A number in plain decimal notation, by the number; nothing for one absent or null.

    Raises ValueError for NaN and the infinite.
    """

    def __init__(self, field: int) -> None:
        self._tag = tag(field)

    def __missing__(self, number: Any) -> bytes:
        if len(self) >= _CACHED:
            self.clear()
        if number is UNSET or number is None:
            field = b""
        else:
            text = decimals[number].encode()
            field = self._tag + varint(len(text)) + text
        self[number] = field
        return field


class TextField:
    """A text: absent if it may be, or else not written where it is empty."""

    __slots__ = ("_optional", "heads")

    def __init__(self, field: int, *, optional: bool = True) -> None:
        self.heads = Heads(field)
        self._optional = optional

    def write(self, text: Any) -> bytes:
        if text is UNSET or not (text or self._optional):
            return b""
        encoded: bytes = text.encode()
        return self.heads[len(encoded)] + encoded


def choices(field: int, numbers: Mapping[str, int]) -> dict[str, bytes]:
    """Give an enum's field by name; the zeroth value is not written."""
    return {name: count(field, number) for name, number in numbers.items()}


def count(field: int, number: int) -> bytes:
    """Write a whole number that is 0 where it is not written."""
    return number_tag(field) + varint(number) if number else b""


class LevelsField:
    """The levels of one side, each with a price and an amount or with neither."""

    __slots__ = ("_heads",)

    def __init__(self, field: int) -> None:
        self._heads = Heads(field)

    def write(self, levels: Sequence[Any]) -> bytes:
        prices, amounts, heads = _LEVEL_PRICE, _LEVEL_AMOUNT, self._heads
        return b"".join(
            [
                heads[len(level := prices[item.price] + amounts[item.amount])] + level
                for item in levels
            ]
        )


_LEVEL_PRICE: Final = DecimalField(pb.Level.PRICE_STR_FIELD_NUMBER)
_LEVEL_AMOUNT: Final = DecimalField(pb.Level.QTY_STR_FIELD_NUMBER)
