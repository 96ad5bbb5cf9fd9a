"""Shapes of raw messages, described by values: a compiled emitter takes such lines by itself.

A mapper may describe the messages of its busiest channels: which keys they have, and what stands
at each. A line is then either exactly as described, or the mapper's as before. The mapper remains
the one truth: a shape must describe only messages of which it would make the same, and mention
every key that it looks at. Keys that neither looks at may be there or not.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from tardis_machine.engine.levels import Key, Keyed, Layout, RowLayout
from tardis_machine.messages.times import TimeValue


class Symbol(Struct, frozen=True):
    """The symbol; `upper` prints it in upper case.

    Of a name such as market.btcusdt.bbo it is what follows the first `after`, up to `until`.
    """

    upper: bool = False
    after: str = ""
    until: str = ""


class TextId(Struct, frozen=True):
    """An id that is text; `optional` where it may be missing."""

    optional: bool = False


class NumberId(Struct, frozen=True):
    """An id that is a whole number, and prints as text."""


class AnyId(Struct, frozen=True):
    """An id that is either."""


class _Quantity(Struct, frozen=True):
    """A number; `text` where it stands in quotes, None where it may or may not.

    `nonzero` leaves it out where it is 0.
    """

    text: bool | None = False
    nonzero: bool = False


class Price(_Quantity, frozen=True):
    """A trade's price."""


class Amount(_Quantity, frozen=True):
    """A trade's amount."""


class SignedAmount(Struct, frozen=True):
    """A trade's amount, which is below 0 where the taker sold."""

    text: bool | None = False


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

    Where it is `optional`, the local time stands for one that is missing. `text` stands in quotes;
    `cut` may have a fraction, which is cut.
    """

    optional: bool = False
    text: bool = False
    cut: bool = False


class Seconds(Struct, frozen=True):
    """The time in seconds with a fraction; prints six digits of it."""

    text: bool = False


class Nanoseconds(Struct, frozen=True):
    """The time in nanoseconds; prints six fractional digits, or three of it as a double."""

    text: bool = False
    digits: Literal[3, 6] = 6


class Iso(Struct, frozen=True):
    """The time, as ISO text with so many fractional digits."""

    digits: Literal[3, 6] = 3


class _Side(Struct, frozen=True):
    """The levels of one side; `priced` ones have no price of 0.

    Where levels have a time each, in `seconds` with a fraction, the latest is the message's, and
    prints six digits. `optional` sides may be missing.
    """

    layout: Layout
    priced: bool = False
    seconds: int | None = None
    optional: bool = False


class Bids(_Side, frozen=True):
    """A book's bids."""


class Asks(_Side, frozen=True):
    """A book's asks."""


class BookRows(Struct, frozen=True):
    """The levels of both sides; the first row may tell the `symbol`, and the time."""

    layout: RowLayout
    symbol: Key | None = None
    milliseconds: Key | None = None


class BookRow(Struct, frozen=True):
    """A single level of either side."""

    layout: RowLayout


class LevelSide(Struct, frozen=True):
    """The side of the single level whose price and amount the message has."""

    bid: str
    ask: str


class LevelText(Struct, frozen=True):
    """A single level as text: price, side and amount, with commas between them."""

    bid: str
    ask: str


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


class Plain(Struct, frozen=True):
    """Text, a number or null that means nothing here, or nothing at all."""


class LastId(Struct, frozen=True):
    """The last id of a book's update, which the channel's gate looks at."""


class Object(Struct, frozen=True):
    """An object."""

    fields: "Mapping[str, Field]"


class Items(Struct, frozen=True):
    """An array of exactly these; what is Plain may be missing at its end."""

    fields: "tuple[Field, ...]"


class Single(Struct, frozen=True):
    """An array with exactly one item, an object or an array."""

    fields: "Content"


class Rows(Struct, frozen=True):
    """An array of objects, or of arrays, each of which is emitted.

    Symbol and time of the message are those of rows that have none.
    """

    fields: "Content"


Field = (
    Symbol
    | TextId
    | NumberId
    | AnyId
    | Price
    | Amount
    | SignedAmount
    | BidPrice
    | BidAmount
    | AskPrice
    | AskAmount
    | TakerSide
    | Milliseconds
    | Seconds
    | Nanoseconds
    | Iso
    | Bids
    | Asks
    | BookRows
    | BookRow
    | LevelSide
    | LevelText
    | Is
    | Unless
    | Absent
    | Nonzero
    | Whole
    | Plain
    | LastId
    | Object
    | Items
    | Single
    | Rows
)
Content = Mapping[str, Field] | tuple[Field, ...]


class KernelShape(Struct, frozen=True):
    """A message that becomes trades, book tickers, a change of a book or a snapshot of it.

    A `filled` book has a level at least.
    """

    emits: Literal["trade", "book_change", "book_snapshot", "book_ticker"]
    fields: Content
    filled: bool = False


class TableShape(Struct, frozen=True):
    """A message that goes to `book_table` as it is."""

    layout: Keyed
    emits: Literal["book_table"] = "book_table"


AnyShape = KernelShape | TableShape


class UpdateGate(Protocol):
    """What a mapper with a memory lets pass of a channel: nothing, until it is opened."""

    def open(self, oldest: float, /) -> None:
        """Let updates pass from this id on; those before it count as known."""

    def close(self) -> None:
        """Let no more pass."""


class UpdateGates(Protocol):
    """Gates by symbol, for a channel that all of them share."""

    def of(self, symbol: str, /) -> UpdateGate:
        """Make a symbol's gate, closed; one that was there before counts no more."""


class LatestTimes(Protocol):
    """The latest time of each symbol's book, told by a mapper or by messages of its shape."""

    def get(self, symbol: str, /) -> TimeValue | None: ...

    def __setitem__(self, symbol: str, time: TimeValue, /) -> None: ...


Memory = UpdateGate | UpdateGates | LatestTimes
"""What a mapper remembers, and messages of its shape depend on or change."""


class ClosedGate:
    """The gate of an emitter that takes no lines by itself."""

    __slots__ = ()

    def open(self, oldest: float, /) -> None:
        """Nothing waits behind it."""

    def close(self) -> None:
        """As it is."""


class ClosedGates:
    """The gates of such an emitter."""

    __slots__ = ()

    def of(self, symbol: str, /) -> UpdateGate:
        return ClosedGate()
