"""Polymarket: events of outcome tokens, named by event_type anywhere in the message."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct
from msgspec.json import Decoder

from tardis_machine.engine import BID_FIRST, Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    equals,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_nonzero,
    number_or_error,
    side,
    time,
)
from tardis_machine.history.filters import Filter

_NO_LEVELS: Final = Raw(b"[]")
_LEVELS: Final = Objects("price", "size")
_LONGEST: Final = 1 << 20
"""Bytes of a message that are searched for its type, which may come last."""

_CHANNELS: Final = (
    *("book", "price_change", "last_trade_price", "tick_size_change", "best_bid_ask"),
    *("new_market", "market_resolved"),
)
"""The channels that a subscription of tokens sends."""


class _Trade(Struct, gc=False):
    asset_id: str
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None
    timestamp: JsonTime = UNSET
    transaction_hash: str | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trade).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.asset_id,
            row.transaction_hash,
            number_or_error(row.price, "last_trade_price", "price"),
            number_or_error(row.size, "last_trade_price", "size"),
            side(row.side, "BUY"),
            time(row.timestamp, "last_trade_price", "timestamp"),
        )
        return True

    return named({"last_trade_price": trade})


class _Book(Struct, gc=False):
    asset_id: str
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    timestamp: JsonTime = UNSET


class _Change(Struct, gc=False):
    asset_id: str
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None


class _Changes(Struct, gc=False):
    price_changes: list[_Change]
    timestamp: JsonTime = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode_books = Decoder(list[_Book] | _Book).decode
    decode_changes = Decoder(_Changes).decode
    emit = context.emitter.book_change

    def books(line: bytes) -> bool:
        found = decode_books(line)
        for book in found if isinstance(found, list) else (found,):
            timestamp = time(book.timestamp, "book", "timestamp")
            emit(book.asset_id, True, book.bids, book.asks, timestamp, _LEVELS)
        return True

    def changes(line: bytes) -> bool:
        message = decode_changes(line)
        timestamp = time(message.timestamp, "price_change", "timestamp")
        for row in message.price_changes:
            price = number_or_error(row.price, "price_change", "price")
            level = ((price, number_or_error(row.size, "price_change", "size")),)
            bids, asks = (level, ()) if row.side == "BUY" else ((), level)
            emit(row.asset_id, False, bids, asks, timestamp)
        return True

    return named({"book": books, "price_change": changes})


class _Quote(Struct, gc=False):
    asset_id: str
    best_bid: JsonNumber = UNSET
    best_ask: JsonNumber = UNSET
    timestamp: JsonTime = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Quote).decode
    emit = context.emitter.book_ticker
    context.emitter.order_book_ticker(BID_FIRST)

    def quote(line: bytes) -> bool:
        row = decode(line)
        timestamp = time(row.timestamp, "best_bid_ask", "timestamp")
        emit(
            row.asset_id,
            None,
            number_if_nonzero(row.best_ask),
            number_if_nonzero(row.best_bid),
            None,
            timestamp,
        )
        return True

    return named({"best_bid_ask": quote})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    """Yield one message that subscribes to tokens: it brings all channels."""
    tokens = sorted({symbol for each in filters for symbol in each.symbols or ()})
    if tokens:
        yield {
            "type": "market",
            "assets_ids": tokens,
            "initial_dump": True,
            "level": 2,
            "custom_feature_enabled": True,
        }


def _subscriptions(message: Any) -> list[Filter] | None:
    tokens = at(message, "assets_ids")
    if at(message, "type") != "market" or not isinstance(tokens, list):
        return None
    return [Filter(channel, tuple(tokens)) for channel in _CHANNELS]


_PONG: Final = b'{"__pong__":true}'
_SERVER_PING: Final = b'{"__server_ping__":true}'


def _decode_frame(frame: bytes) -> bytes:
    """Return a frame as JSON; two kinds of frames are not JSON."""
    return {b"PONG": _PONG, b"ping": _SERVER_PING}.get(frame, frame)


def _is_error(message: Any) -> bool:
    return isinstance(at(message, "error"), str)


def _is_heartbeat(message: Any) -> bool:
    return at(message, "__pong__") is True or at(message, "__server_ping__") is True


EXCHANGES: Final = (
    Exchange(
        name="polymarket",
        types={
            "trade": (Era((Channel("last_trade_price"),), _trades),),
            "book_change": (Era((Channel("book"), Channel("price_change")), _book_changes),),
            "book_ticker": (Era((Channel("best_bid_ask"),), _book_tickers),),
        },
        dispatch=keyed("event_type", within=_LONGEST),
        live=Dialect(
            endpoints=(
                Endpoint(
                    name="market",
                    url="wss://ws-subscriptions-clob.polymarket.com/ws/market",
                    channels=frozenset(_CHANNELS),
                ),
                Endpoint(name="sports", url="wss://sports-api.polymarket.com/ws"),
            ),
            subscribe=_subscribe,
            decode=_decode_frame,
            heartbeats=_is_heartbeat,
            errors=_is_error,
            ping=lambda _: "PING",
            reply=lambda message: "pong" if equals("__server_ping__", True)(message) else None,
            without_symbols=frozenset(("sport_result",)),
            quiet=frozenset((*_CHANNELS, "sport_result")),
        ),
        subscriptions=_subscriptions,
    ),
)
