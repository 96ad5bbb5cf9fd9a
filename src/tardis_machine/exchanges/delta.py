"""Delta: one message per symbol, with a type that is mostly its last field."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.engine import Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    equals,
    present,
)
from tardis_machine.exchanges.base.exchange import (
    Era,
    Exchange,
    MapperContext,
    date,
    upper_channels,
)
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_sent,
    number_or_error,
    side,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.fields import symbol as required_symbol
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.history.filters import Filter

_NO_LEVELS: Final = Raw(b"[]")
_LEVELS: Final = Objects(price="limit_price", amount="size")
_MARK: Final = "MARK:"


def _or_local(timestamp: JsonTime, channel: str) -> int | None:
    """Return a time in us or, for some messages, ms, which the emitter recognizes by size."""
    return None if timestamp is UNSET else time(timestamp, channel, "timestamp")


class _Trade(Struct, gc=False):
    symbol: str | None = None
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    buyer_role: str | None = None
    timestamp: JsonTime = UNSET


_decode_trade: Final = Decoder(_Trade).decode


def _trades(channel: str) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.trade

        def trade(row: _Trade) -> bool:
            emit(
                required_symbol(row.symbol, channel),
                None,
                number_or_error(row.price, channel, "price"),
                number_or_error(row.size, channel, "size"),
                side(row.buyer_role, "taker"),
                time(row.timestamp, channel, "timestamp"),
            )
            return True

        return named({channel: SharedDecoder(_decode_trade, trade)})

    return make


class _Book(Struct, gc=False):
    symbol: str
    buy: Raw | UnsetType = UNSET
    sell: Raw | UnsetType = UNSET
    timestamp: JsonTime = UNSET


def _whole_books(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Book).decode
    emit = context.emitter.book_change

    def l2_orderbook(line: bytes) -> bool:
        row = decode(line)
        if row.buy is UNSET and row.sell is UNSET:  # not about the book
            return True
        bids, asks = row.buy or _NO_LEVELS, row.sell or _NO_LEVELS
        timestamp = _or_local(row.timestamp, "l2_orderbook")
        emit(row.symbol, True, bids, asks, timestamp, _LEVELS)
        return True

    return named({"l2_orderbook": l2_orderbook})


class _Update(Struct, gc=False):
    symbol: str
    action: str | None = None
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    timestamp: JsonTime = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Update).decode
    emit = context.emitter.book_change

    def l2_updates(line: bytes) -> bool:
        row = decode(line)
        timestamp = _or_local(row.timestamp, "l2_updates")
        emit(row.symbol, row.action == "snapshot", row.bids, row.asks, timestamp)
        return True

    return named({"l2_updates": l2_updates})


class _MarkPrice(Struct, gc=False):
    symbol: str | None = None
    price: JsonNumber = UNSET
    timestamp: JsonTime = UNSET


class _Funding(Struct, gc=False):
    symbol: str | None = None
    funding_rate: JsonNumber = UNSET
    predicted: JsonNumber = field(name="predicted_funding_rate", default=UNSET)
    funded_at: JsonTime = field(name="next_funding_realization", default=UNSET)
    timestamp: JsonTime = UNSET


_decode_mark_price: Final = Decoder(_MarkPrice).decode
_decode_funding: Final = Decoder(_Funding).decode


def _derivative_tickers(trades_channel: str) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.derivative_ticker

        def mark_price(row: _MarkPrice) -> bool:
            emit(
                required_symbol(row.symbol, "mark_price").replace(_MARK, "", 1),
                ticker_time(row.timestamp),
                mark_price=number_or_error(row.price, "mark_price", "price"),
            )
            return True

        def funding_rate(row: _Funding) -> bool:
            funded_at = row.funded_at
            emit(
                required_symbol(row.symbol, "funding_rate"),
                ticker_time(row.timestamp),
                funding_rate=number_if_sent(row.funding_rate),
                predicted_funding_rate=number_if_sent(row.predicted),
                funding_timestamp=None
                if funded_at is UNSET
                else time(funded_at, "funding_rate", "next_funding_realization"),
            )
            return True

        def trade(row: _Trade) -> bool:
            emit(
                required_symbol(row.symbol, trades_channel),
                ticker_time(row.timestamp),
                last_price=number_or_error(row.price, trades_channel, "price"),
            )
            return True

        return named(
            {
                trades_channel: SharedDecoder(_decode_trade, trade),
                "funding_rate": SharedDecoder(_decode_funding, funding_rate),
                "mark_price": SharedDecoder(_decode_mark_price, mark_price),
            }
        )

    return make


class _Best(Struct, gc=False):
    symbol: str
    ask_qty: JsonNumber = UNSET
    best_ask: JsonNumber = UNSET
    best_bid: JsonNumber = UNSET
    bid_qty: JsonNumber = UNSET
    timestamp: JsonTime = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Best).decode
    emit = context.emitter.book_ticker

    def l1_orderbook(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.symbol,
            number_if_sent(row.ask_qty),
            number_if_sent(row.best_ask),
            number_if_sent(row.best_bid),
            number_if_sent(row.bid_qty),
            _or_local(row.timestamp, "l1_orderbook"),
        )
        return True

    return named({"l1_orderbook": l1_orderbook})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for each in filters:
        channel: dict[str, Any] = {"name": each.channel}
        if each.symbols:
            prefix = _MARK if each.channel == "mark_price" else ""
            channel["symbols"] = [prefix + symbol for symbol in each.symbols]
        yield {"type": "subscribe", "payload": {"channels": [channel]}}


def _asked(entry: Any) -> Iterator[Filter]:
    """Read {"name": "mark_price", "symbols": […]}, which are recorded as MARK:BTCUSD."""
    prefix = _MARK if at(entry, "name") == "mark_price" else ""
    symbols = at(entry, "symbols") or ()
    yield Filter(entry["name"], tuple(prefix + symbol for symbol in symbols))


_ALL_TRADES: Final = date("2020-10-14")

EXCHANGES: Final = (
    Exchange(
        name="delta",
        types={
            "trade": (
                Era(upper_channels("recent_trade"), _trades("recent_trade"), until=_ALL_TRADES),
                Era(upper_channels("all_trades"), _trades("all_trades")),
            ),
            "book_change": (
                Era(upper_channels("l2_orderbook"), _whole_books, until=date("2023-04-01")),
                Era(upper_channels("l2_updates"), _book_changes),
            ),
            "derivative_ticker": (
                Era(
                    upper_channels("recent_trade", "funding_rate", "mark_price"),
                    _derivative_tickers("recent_trade"),
                    until=_ALL_TRADES,
                ),
                Era(
                    upper_channels("all_trades", "funding_rate", "mark_price"),
                    _derivative_tickers("all_trades"),
                ),
            ),
            "book_ticker": (Era(upper_channels("l1_orderbook"), _book_tickers),),
        },
        dispatch=keyed("type", within=1 << 24),
        live=Dialect(
            endpoints=(Endpoint(url="wss://socket.delta.exchange"),),
            subscribe=_subscribe,
            acks=equals("type", "subscriptions"),
            heartbeats=equals("type", "pong"),
            errors=present("error"),
            ping=lambda _: {"type": "ping"},
            without_symbols=None,
            quiet=frozenset(("all_trades", "funding_rate")),
        ),
        subscriptions=subscriptions({"type": "subscribe"}, "payload.channels", _asked),
    ),
)
