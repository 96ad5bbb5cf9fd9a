"""Bitnomial: futures; a book is sent whole once, then level by level."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import JsonNumber, number_or_error, side, text
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, parse_us

_NO_LEVELS: Final = Raw(b"[]")
_NANOSECONDS_LENGTH: Final = 30


def _time(timestamp: str | None, channel: str) -> TimeValue:
    if not timestamp:
        raise MapperError(channel, "no timestamp")
    if len(timestamp) == _NANOSECONDS_LENGTH and timestamp[-1] == "Z":
        return f"{timestamp[:26]}Z"
    return parse_us(timestamp)


class _Trade(Struct, gc=False):
    symbol: str
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    taker_side: str | None = None
    ack_id: str | int | UnsetType | None = UNSET
    timestamp: str | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trade).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.symbol,
            text(row.ack_id),
            row.price or number_or_error(row.price, "trade", "price"),
            row.quantity or number_or_error(row.quantity, "trade", "quantity"),
            side(row.taker_side, "Bid"),
            _time(row.timestamp, "trade"),
        )
        return True

    return named({"trade": trade})


class _Book(Struct, gc=False):
    symbol: str
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    timestamp: str | None = None


class _Level(Struct, gc=False):
    symbol: str
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    side: str | None = None
    timestamp: str | None = None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode_book = Decoder(_Book).decode
    decode_level = Decoder(_Level).decode
    emit = context.emitter.book_change

    def book(line: bytes) -> bool:
        row = decode_book(line)
        emit(row.symbol, True, row.bids, row.asks, _time(row.timestamp, "book"))
        return True

    def level(line: bytes) -> bool:
        row = decode_level(line)
        price = row.price or number_or_error(row.price, "level", "price")
        levels = [(price, row.quantity or number_or_error(row.quantity, "level", "quantity"))]
        bids, asks = (levels, []) if row.side == "Bid" else ([], levels)
        emit(row.symbol, False, bids, asks, _time(row.timestamp, "level"))
        return True

    return named({"book": book, "level": level})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    """Yield one message for all channels; levels come with their book."""
    asked: dict[str, tuple[str, ...]] = {}
    for each in filters:
        asked["book" if each.channel == "level" else each.channel] = each.symbols or ()
    channels = [{"name": name, "product_codes": codes} for name, codes in asked.items()]
    yield {"type": "subscribe", "product_codes": [], "channels": channels}


EXCHANGES: Final = (
    Exchange(
        name="bitnomial",
        types={
            "trade": one_era(_trades, "trade"),
            "book_change": one_era(_book_changes, "book", "level"),
        },
        dispatch=keyed("type", within=1 << 24),
        live=Dialect(
            endpoints=(Endpoint(url="wss://bitnomial.com/exchange/ws"),),
            subscribe=_subscribe,
            errors=equals("type", "error", "disconnect"),
            quiet=frozenset(("trade",)),
        ),
        subscriptions=subscriptions(
            {"type": "subscribe"},
            "channels",
            fields("name", "product_codes", {"book": ("book", "levels")}),
        ),
    ),
)
