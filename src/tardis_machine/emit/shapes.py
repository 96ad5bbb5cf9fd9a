"""Shapes of raw messages, described by values: a compiled emitter takes such lines by itself.

A mapper may describe the messages of its busiest channels: which keys they have, and what stands
at each. A line is then either exactly as described, or the mapper's as before. The mapper remains
the one truth: a shape must describe only messages of which it would make the same, and mention
every key that it looks at. Keys that neither looks at may be there or not.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from tardis_machine.emit.levels import Keyed, Layout


class Symbol(Struct, frozen=True):
    """The symbol; `upper` prints it in upper case."""

    upper: bool = False


class TextId(Struct, frozen=True):
    """An id that is text; `optional` where it may be missing."""

    optional: bool = False


class NumberId(Struct, frozen=True):
    """An id that is a whole number, and prints as text."""


class _Quantity(Struct, frozen=True):
    """A number; `text` where it stands in quotes. `nonzero` leaves it out where it is 0."""

    text: bool = False
    nonzero: bool = False


class Price(_Quantity, frozen=True):
    """A trade's price."""


class Amount(_Quantity, frozen=True):
    """A trade's amount."""


class BidPrice(_Quantity, frozen=True):
    """A book ticker's."""


class BidAmount(_Quantity, frozen=True):
    """A book ticker's."""


class AskPrice(_Quantity, frozen=True):
    """A book ticker's."""


class AskAmount(_Quantity, frozen=True):
    """A book ticker's."""


class TakerSide(Struct, frozen=True):
    """The taker's side, told by one of two values."""

    buy: str | bool
    sell: str | bool


class Milliseconds(Struct, frozen=True):
    """The time, as a whole number: milliseconds, or microseconds as `times` tells them apart.

    Where it is `optional`, the local time stands for one that is missing.
    """

    optional: bool = False


class Iso(Struct, frozen=True):
    """The time, as ISO text with three fractional digits."""


class Bids(Struct, frozen=True):
    """The levels of one side."""

    layout: Layout


class Asks(Struct, frozen=True):
    """The levels of the other."""

    layout: Layout


class Is(Struct, frozen=True):
    """One of these values."""

    values: tuple[str | bool, ...]


class Unless(Struct, frozen=True):
    """Text that is none of these, or nothing at all."""

    values: tuple[str, ...]


class Absent(Struct, frozen=True):
    """Nothing at all."""


class Nonzero(Struct, frozen=True):
    """A whole number above 0."""


class Whole(Struct, frozen=True):
    """A whole number that means nothing here, or nothing at all."""


class LastId(Struct, frozen=True):
    """The last id of a book's update, which the channel's gate looks at."""


class Object(Struct, frozen=True):
    """An object."""

    fields: "Mapping[str, Field]"


class Rows(Struct, frozen=True):
    """An array of objects, each of which is emitted."""

    fields: "Mapping[str, Field]"


Field = (
    Symbol
    | TextId
    | NumberId
    | Price
    | Amount
    | BidPrice
    | BidAmount
    | AskPrice
    | AskAmount
    | TakerSide
    | Milliseconds
    | Iso
    | Bids
    | Asks
    | Is
    | Unless
    | Absent
    | Nonzero
    | Whole
    | LastId
    | Object
    | Rows
)


class Shape(Struct, frozen=True):
    """A message that becomes a trade, a change of a book (no snapshot) or a book ticker."""

    emits: Literal["trade", "book_change", "book_ticker"]
    fields: Mapping[str, Field]


class TableShape(Struct, frozen=True):
    """A message that goes to `book_table` as it is."""

    layout: Keyed
    emits: Literal["book_table"] = "book_table"


AnyShape = Shape | TableShape


class Gate(Protocol):
    """What a mapper with a memory lets pass of a channel: nothing, until it is opened."""

    def open(self, oldest: float, /) -> None:
        """Let updates pass from this id on; those before it count as known."""

    def close(self) -> None:
        """Let no more pass."""


class ClosedGate:
    """The gate of an emitter that takes no lines by itself."""

    __slots__ = ()

    def open(self, oldest: float, /) -> None:
        """Nothing waits behind it."""

    def close(self) -> None:
        """As it is."""
