"""Levels of a book as exchanges write them, described by values: where price, amount, side stand.

A layout holds nothing but names and positions, so that any implementation of the emitter can read
by it. Levels are raw JSON, which is read only here, or sequences that a mapper made.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from tardis_machine.messages.numbers import Number, canonical

Key = str | int
"""A field's name, or its position in an array."""

Pair = Sequence[Number]
Levels = Raw | bytes | list[Any] | tuple[Any, ...]


class Pairs(Struct, frozen=True):
    """[price, amount, …]: what follows the amount is ignored."""


class Flat(Struct, frozen=True):
    """[price, amount, price, amount, …]: one array for all."""


class Objects(Struct, frozen=True):
    """{"price": …, "amount": …} under the exchange's own names."""

    price: str
    amount: str


class Positions(Struct, frozen=True):
    """Arrays with price and amount at these positions.

    Where `action` says `removed` (deribit: "delete"), the amount counts as 0.
    """

    price: int
    amount: int
    action: int | None = None
    removed: str | None = None


class Sided(Struct, frozen=True):
    """Rows of both sides, each of which tells its own: `bid` is a bid, anything else an ask."""

    side: Key
    price: Key
    amount: Key
    bid: str


class Signed(Struct, frozen=True):
    """Rows of both sides: an amount below 0 is an ask's, and prints without its sign.

    An amount of 0 removes the level from both sides. Where there is a `count` (bitfinex), 0 of them
    remove it, from the side that the amount tells.
    """

    price: Key
    amount: Key
    count: Key | None = None


class Keyed(Struct, frozen=True):
    """A table's message (bitmex): rows, and an action that says what happened to them.

    Later rows name an id instead of their price. The emitter remembers the price of each id until
    the row is removed, or a mapper starts anew. A snapshot without rows may tell its symbol in an
    object called `selection`.
    """

    rows: str
    action: str
    snapshot: str
    removal: str
    selection: str
    symbol: str
    id: str
    side: str
    price: str
    amount: str
    timestamp: str
    bid: str


Layout = Pairs | Flat | Objects | Positions
"""How one side's levels are written."""

RowLayout = Sided | Signed
"""How rows are written that belong to both sides."""

PAIRS: Final = Pairs()
FLAT: Final = Flat()

LevelReader = Callable[[Levels], Sequence[Pair]]
Splitter = Callable[[Levels], tuple[list[Pair], list[Pair]]]

_JSON: Final = (Raw, bytes)
_decode: Final[Callable[[Raw | bytes], Any]] = msgspec.json.Decoder().decode
_Value = str | int | float
_decode_pairs: Final = msgspec.json.Decoder(list[tuple[_Value, _Value]] | None).decode
_decode_lists: Final = msgspec.json.Decoder(list[list[Any]]).decode


def reader(layout: Layout) -> LevelReader:
    """Make the function that reads levels of this layout as price and amount."""
    match layout:
        case Pairs():
            return read_pairs
        case Flat():
            return _flat
        case Objects():
            return lambda levels: _picked(levels, layout.price, layout.amount)
        case Positions(action=None):
            return lambda levels: _picked(levels, layout.price, layout.amount)
        case Positions():
            return lambda levels: _acted(levels, layout)


def splitter(layout: RowLayout) -> Splitter:
    """Make the function that parts rows of this layout into bids and asks."""
    if isinstance(layout, Sided):
        return lambda rows: _sided(rows, layout)
    return lambda rows: _signed(rows, layout)


def _listed(levels: Levels) -> Sequence[Any]:
    if not isinstance(levels, _JSON):
        return levels
    decoded = _decode(levels)
    if decoded is None:
        return ()
    if not isinstance(decoded, list):
        raise ValueError(  # noqa: TRY004 - the message is wrong, not the program
            f"levels are not an array: {bytes(levels)[:80]!r}"
        )
    return decoded


def read_pairs(levels: Levels) -> Sequence[Pair]:
    """Read levels laid out as PAIRS; sequences have to be exactly that."""
    if not isinstance(levels, _JSON):
        return levels
    try:
        return _decode_pairs(levels) or ()
    except msgspec.ValidationError:
        pairs = [level[:2] for level in _decode_lists(levels)]
    return msgspec.convert(pairs, list[tuple[_Value, _Value]])


def _flat(levels: Levels) -> Sequence[Pair]:
    listed = _listed(levels)
    if len(listed) % 2:
        raise ValueError("a price without an amount")
    return list(zip(listed[::2], listed[1::2], strict=True))


def _picked(levels: Levels, price: Key, amount: Key) -> Sequence[Pair]:
    try:
        return [(level[price], level[amount]) for level in _listed(levels)]
    except (LookupError, TypeError):
        raise ValueError(f"a level without {price} and {amount}") from None


def _acted(levels: Levels, layout: Positions) -> Sequence[Pair]:
    price, amount, action, removed = layout.price, layout.amount, layout.action, layout.removed
    try:
        return [
            (level[price], 0 if level[action] == removed else level[amount])
            for level in _listed(levels)
        ]
    except (LookupError, TypeError):
        raise ValueError(f"a level without {action}, {price} and {amount}") from None


def _sided(rows: Levels, layout: Sided) -> tuple[list[Pair], list[Pair]]:
    side, price, amount, bid = layout.side, layout.price, layout.amount, layout.bid
    bids: list[Pair] = []
    asks: list[Pair] = []
    try:
        for row in _listed(rows):
            (bids if row[side] == bid else asks).append((row[price], row[amount]))
    except (LookupError, TypeError):
        raise ValueError(f"a level without {side}, {price} and {amount}") from None
    return bids, asks


def _signed(rows: Levels, layout: Signed) -> tuple[list[Pair], list[Pair]]:
    price, amount, count = layout.price, layout.amount, layout.count
    bids: list[Pair] = []
    asks: list[Pair] = []
    try:
        for row in _listed(rows):
            text = canonical[row[amount]]
            if count is not None and canonical[row[count]] == "0":
                (asks if text[0] == "-" else bids).append((row[price], 0))
            elif text[0] == "-":
                asks.append((row[price], text[1:]))
            else:
                bids.append((row[price], text))
                if text == "0":
                    asks.append((row[price], 0))
    except (LookupError, TypeError):
        raise ValueError(f"a level without {price} and {amount}") from None
    return bids, asks


class Row(Struct, gc=False):
    """A row of a keyed table as it came: what it lacks is UNSET."""

    symbol: str | None = None
    id: int | float | str | None = None
    side: str | None = None
    amount: int | float | str | None = None
    price: int | float | str | UnsetType = UNSET
    timestamp: str | UnsetType | None = UNSET


class Selection(Struct, gc=False):
    """Whose snapshot it is that has no rows."""

    symbol: str | None = None


class Table(Struct, gc=False):
    """A keyed table's message as it came."""

    rows: list[Row]
    action: str | None = None
    selection: Selection | None = None


def table_decoder(layout: Keyed) -> Callable[[bytes], Table]:
    """Make the decoder of a keyed table's messages."""
    rows: Any = list[_renamed(Row, layout)]  # type: ignore[misc]
    selection = _renamed(Selection, layout) | None
    table = _renamed(Table, layout, rows=rows, selection=selection)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(table).decode
    return decode


def _renamed(struct: type[Struct], layout: Keyed, **types: Any) -> type[Struct]:
    """Make the struct whose fields have the names that the layout gives them."""
    hints = get_type_hints(struct) | types
    return msgspec.defstruct(
        struct.__name__,
        [
            (
                each.name,
                hints[each.name],
                field(name=getattr(layout, each.name), default=each.default),
            )
            for each in msgspec.structs.fields(struct)
        ],
        bases=(struct,),
        gc=False,
    )
