"""Lighter: markets as numbers, channels named {channel}:{market}, updates with a type."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.engine import Emitter, Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    DAY_S,
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    equals,
    present,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_not_empty,
    number_or_error,
    text,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.history.filters import Filter

_LEVELS: Final = Objects("price", "size")
_NO_LEVELS: Final = Raw(b"[]")
_ALL: Final = "all"
_MAX_DIGITS: Final = 9
_FOR_ALL_MARKETS: Final = frozenset(("market_stats", "spot_market_stats"))
"""Channels that are subscribed to once, for all markets."""


def _market(channel: str | None) -> str:
    """Return the market in a channel's name as text; empty if there is none."""
    return "" if channel is None else channel.partition(":")[2]


class _Trade(Struct, gc=False):
    id: str | int | float | None = field(name="trade_id_str", default=None)
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    is_maker_ask: bool | None = None
    timestamp: JsonTime = UNSET
    type: str | None = None


class _Trades(Struct, gc=False):
    channel: str | None = None
    trades: list[_Trade] | None = None
    liquidations: list[_Trade] | None = field(name="liquidation_trades", default=None)


_decode_trades: Final = Decoder(_Trades).decode


def _emit_all(
    emit: Callable[..., None], channel: str | None, rows: Iterable[_Trade] | None
) -> bool:
    market = _market(channel)
    if not market:
        return False
    for row in rows or ():
        emit(
            market,
            Raw(text(row.id).encode()) if isinstance(row.id, int | float) else row.id,
            number_or_error(row.price, "trade", "price"),
            number_or_error(row.size, "trade", "size"),
            "buy" if row.is_maker_ask else "sell",
            time(row.timestamp, "trade", "timestamp"),
        )
    return True


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trades(message: _Trades) -> bool:
        return _emit_all(emit, message.channel, message.trades)

    return named({"update/trade": SharedDecoder(_decode_trades, trades)})


def _liquidations(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.liquidation

    def liquidations(message: _Trades) -> bool:
        # Those that reduce others' positions, or settle a market, stand among them.
        rows = (row for row in message.liquidations or () if row.type == "liquidation")
        return _emit_all(emit, message.channel, rows)

    return named({"update/trade": SharedDecoder(_decode_trades, liquidations)})


class _Book(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _BookMessage(Struct, gc=False):
    book: _Book = field(name="order_book")
    channel: str | None = None
    timestamp: JsonTime = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change

    def book(line: bytes, is_snapshot: bool) -> bool:
        message = decode(line)
        market = _market(message.channel)
        if not market:
            return False
        levels = message.book
        timestamp = time(message.timestamp, "order_book", "timestamp")
        emit(market, is_snapshot, levels.bids, levels.asks, timestamp, _LEVELS)
        return True

    return named(
        {
            "subscribed/order_book": lambda line: book(line, True),
            "update/order_book": lambda line: book(line, False),
        }
    )


class _Stats(Struct, gc=False):
    index_price: JsonNumber = UNSET
    mark_price: JsonNumber = UNSET
    open_interest: JsonNumber = UNSET
    last_price: JsonNumber = field(name="last_trade_price", default=UNSET)
    funding_rate: JsonNumber = field(name="current_funding_rate", default=UNSET)


class _StatsMessage(Struct, gc=False):
    stats: Raw = field(name="market_stats")
    channel: str | None = None
    timestamp: JsonTime = UNSET


_decode_stats: Final = Decoder(_Stats).decode
_decode_all_stats: Final = Decoder(dict[str, _Stats]).decode


def _numbers_first(market: str) -> tuple[bool, int]:
    """Return a sort key for JavaScript's order: numbers by value, then others in their order."""
    is_number = market.isascii() and market.isdigit() and len(market) <= _MAX_DIGITS
    return not is_number, int(market) if is_number else 0


def _emit_ticker(emitter: Emitter, market: str, row: _Stats, timestamp: int) -> None:
    emitter.derivative_ticker(
        market,
        timestamp,
        last_price=number_or_error(row.last_price, "market_stats", "last_trade_price"),
        open_interest=number_or_error(row.open_interest, "market_stats", "open_interest"),
        funding_rate=number_or_error(row.funding_rate, "market_stats", "current_funding_rate"),
        index_price=number_or_error(row.index_price, "market_stats", "index_price"),
        mark_price=number_or_error(row.mark_price, "market_stats", "mark_price"),
    )


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_StatsMessage).decode
    emitter = context.emitter

    def stats(line: bytes) -> bool:
        message = decode(line)
        market = _market(message.channel)
        timestamp = ticker_time(message.timestamp)
        if market and market != _ALL:
            _emit_ticker(emitter, market, _decode_stats(message.stats), timestamp)
            return True
        markets = _decode_all_stats(message.stats)
        for each in sorted(markets, key=_numbers_first):
            _emit_ticker(emitter, each, markets[each], timestamp)
        return True

    return named({"update/market_stats": stats})


class _Best(Struct, gc=False):
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET


_NONE: Final = _Best()


class _Ticker(Struct, gc=False):
    ask: _Best | None = field(name="a", default=None)
    bid: _Best | None = field(name="b", default=None)


class _TickerMessage(Struct, gc=False):
    channel: str | None = None
    ticker: _Ticker | None = None
    timestamp: JsonTime = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.book_ticker

    def ticker(line: bytes) -> bool:
        message = decode(line)
        market = _market(message.channel)
        if not market:
            return False
        row = message.ticker
        ask, bid = (_NONE, _NONE) if row is None else (row.ask or _NONE, row.bid or _NONE)
        emit(
            market,
            number_if_not_empty(ask.size),
            number_if_not_empty(ask.price),
            number_if_not_empty(bid.price),
            number_if_not_empty(bid.size),
            time(message.timestamp, "ticker", "timestamp"),
        )
        return True

    return named({"update/ticker": ticker})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for each in filters:
        for market in (_ALL,) if each.channel in _FOR_ALL_MARKETS else each.symbols or ():
            yield {"type": "subscribe", "channel": f"{each.channel}/{market}"}


def _asked(topic: str) -> Iterable[Filter]:
    channel, _, market = topic.partition("/")
    return (Filter(channel, () if market in ("", _ALL) else (market,)),)


def _reply(message: Any) -> Outgoing | None:
    return {"type": "pong"} if at(message, "type") == "ping" else None


def _is_ack(message: Any) -> bool:
    kind = at(message, "type")
    return isinstance(kind, str) and (kind == "connected" or kind.startswith("subscribed/"))


def _era(channel: Channel, make: Callable[[MapperContext], ChannelHandlers]) -> tuple[Era]:
    return (Era((channel,), make),)


_TRADE: Final = Channel("trade")

EXCHANGES: Final = (
    Exchange(
        name="lighter",
        types={
            "trade": _era(_TRADE, _trades),
            "book_change": _era(Channel("order_book"), _book_changes),
            "derivative_ticker": _era(
                Channel("market_stats", has_symbols=False, default_symbols=()), _derivative_tickers
            ),
            "liquidation": _era(_TRADE, _liquidations),
            "book_ticker": _era(Channel("ticker"), _book_tickers),
        },
        dispatch=prefixed(b'{"type":"', "type"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://mainnet.zklighter.elliot.ai/stream"),),
            subscribe=_subscribe,
            data=(b'{"type":"update/', b'{"type":"subscribed/order_book"'),
            acks=_is_ack,
            heartbeats=equals("type", "ping", "pong"),
            reply=_reply,
            errors=present("error"),
            without_symbols=_FOR_ALL_MARKETS,
            quiet=frozenset(("trade",)),
            life_s=DAY_S,
            max_messages_per_s=3,  # 200 in a minute
        ),
        subscriptions=subscriptions({"type": "subscribe"}, "channel", _asked),
    ),
)
