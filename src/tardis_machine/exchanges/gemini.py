"""Gemini: typed messages until 2026, then ones that are distinguished by their keys."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedSet
from tardis_machine.engine import AMOUNTS_FIRST, Sided
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    SharedDecoder,
    decoded,
    named,
    prefixed,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    either,
    equals,
    pairs,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_nonzero,
    number_or_error,
    side_or_unknown,
    text,
    time,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, nanos_us

_CHANGES: Final = Sided(side=0, price=1, amount=2, bid="buy")
_TYPED_UNTIL: Final = date("2026-07-24T00:00:00.000Z")


class _TypedTrade(Struct, gc=False):
    symbol: str
    event_id: str | int | float | UnsetType | None = UNSET
    timestamp: JsonTime = UNSET
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    side: str | None = None


def _typed_trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TypedTrade).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.symbol,
            text(row.event_id),
            number_or_error(row.price, "trade", "price"),
            number_or_error(row.quantity, "trade", "quantity"),
            side_or_unknown(row.side, "buy", "sell"),
            time(row.timestamp, "trade", "timestamp"),
        )
        return True

    return named({"trade": trade})


class _TypedBook(Struct, gc=False):
    symbol: str
    changes: Raw
    auction_events: Raw | UnsetType = UNSET


def _typed_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TypedBook).decode
    emit = context.emitter.book_rows

    def updates(line: bytes) -> bool:
        book = decode(line)
        # Only the first message of a subscription has the auctions of the past.
        is_snapshot = book.auction_events is not UNSET
        emit(book.symbol, is_snapshot, book.changes, None, _CHANGES)
        return True

    return named({"l2_updates": updates})


class _Message(Struct, gc=False):
    """A trade, an update of a book or its best levels."""

    event: str | UnsetType | None = field(name="e", default=UNSET)
    symbol: str | UnsetType | None = field(name="s", default=UNSET)
    nanoseconds: JsonTime = field(name="E", default=UNSET)
    id: str | int | float | UnsetType | None = field(name="t", default=UNSET)
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="q", default=UNSET)
    buyer_is_maker: Any = field(name="m", default=None)
    bids: Raw | UnsetType = field(name="b", default=UNSET)
    asks: Raw | UnsetType = field(name="a", default=UNSET)
    bid_amount: JsonNumber = field(name="B", default=UNSET)
    ask_amount: JsonNumber = field(name="A", default=UNSET)


_decode: Final = Decoder(_Message).decode
_decode_number: Final = Decoder(str | int | float | None).decode


def _name(message: _Message) -> str | None:
    if message.symbol is UNSET or message.symbol is None:
        return None
    if message.event == "depthUpdate":
        return "depth"
    if message.id is not UNSET:
        return "trade"
    return "bookTicker" if message.bid_amount is not UNSET else None


_BY_KEYS: Final = decoded(_decode, _name)


def _symbol(message: _Message) -> str:
    return str(message.symbol).upper()


def _time(message: _Message, channel: str) -> TimeValue:
    return nanos_us(time(message.nanoseconds, channel, "E"))


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trade(message: _Message) -> bool:
        emit(
            _symbol(message),
            text(message.id),
            number_or_error(message.price, "trade", "p"),
            number_or_error(message.amount, "trade", "q"),
            "sell" if message.buyer_is_maker else "buy",
            _time(message, "trade"),
        )
        return True

    return named({"trade": SharedDecoder(_decode, trade)})


def _book_changes(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_change
    known = BoundedSet[str]()

    def depth(message: _Message) -> bool:
        symbol = _symbol(message)
        if message.bids is UNSET or message.asks is UNSET:
            raise MapperError("depth", "no levels")
        # The first message of a symbol is the whole book; nothing marks it as such.
        is_snapshot = symbol not in known
        emit(symbol, is_snapshot, message.bids, message.asks, _time(message, "depth"))
        if is_snapshot:
            known.add(symbol)
        return True

    return named({"depth": SharedDecoder(_decode, depth)})


def _price(value: Raw | UnsetType) -> str | int | float | None:
    return None if value is UNSET else number_if_nonzero(_decode_number(value))


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker
    context.emitter.order_book_ticker(AMOUNTS_FIRST)

    def book_ticker(message: _Message) -> bool:
        emit(
            _symbol(message),
            number_if_nonzero(message.ask_amount),
            _price(message.asks),
            _price(message.bids),
            number_if_nonzero(message.bid_amount),
            _time(message, "bookTicker"),
        )
        return True

    return named({"bookTicker": SharedDecoder(_decode, book_ticker)})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    streams = [
        f"{symbol.lower()}@{channel}{'@100ms' * (channel == 'depth')}"
        for channel, symbol in pairs(filters)
    ]
    yield {"method": "SUBSCRIBE", "params": list(dict.fromkeys(streams)), "id": 1}


def _is_refused(message: Any) -> bool:
    status = at(message, "status")
    return isinstance(status, int) and status >= 400


def _without_refused(refusal: Any, sent: Sequence[Outgoing]) -> Outgoing | None:
    """Return the subscription without the unknown stream, for which all were refused."""
    stream = str(at(refusal, "error.msg")).partition("Invalid stream name: ")[2]
    asked = sent[-1]
    if not isinstance(asked, dict) or stream not in asked["params"]:
        return None
    rest = [each for each in asked["params"] if each != stream]
    return {**asked, "params": rest} if rest else None


def _era(channel: str, make: Callable[[MapperContext], ChannelHandlers]) -> Era:
    return Era((Channel(channel, str.upper),), make, dispatch=_BY_KEYS)


_RECORDED: Final = {"l2": ("trade", "l2_updates", "auction_open")}
"""The channels that a native subscription of the typed messages sends."""

EXCHANGES: Final = (
    Exchange(
        name="gemini",
        types={
            "trade": (
                Era((Channel("trade", str.upper),), _typed_trades, until=_TYPED_UNTIL),
                _era("trade", _trades),
            ),
            "book_change": (
                Era((Channel("l2_updates", str.upper),), _typed_book_changes, until=_TYPED_UNTIL),
                _era("depth", _book_changes),
            ),
            "book_ticker": (_era("bookTicker", _book_tickers),),
        },
        dispatch=prefixed(b'{"type":"', "type"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws.gemini.com?snapshot=-1"),),
            subscribe=_subscribe,
            acks=equals("status", 200),
            errors=either(equals("result", "error"), present("error"), _is_refused),
            salvage=_without_refused,
            quiet=frozenset(("trade", "bookTicker")),
        ),
        subscriptions=subscriptions(
            {"type": "subscribe"}, "subscriptions", fields("name", "symbols", _RECORDED)
        ),
    ),
)
