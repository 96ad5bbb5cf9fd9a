"""FTX and FTX US, both closed: channels of markets, liquidations marked among trades."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import LOCAL_TIME
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Poller,
    equals,
    generated,
    pairs,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_nonzero,
    number_if_not_empty,
    number_or_error,
    side,
    time_text,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, parse_ms, parse_us, seconds_us

Number = int | float
_NO_LEVELS: Final = Raw(b"[]")


class _Trade(Struct, gc=False):
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    time: str | None = None
    id: str | int | None = None
    side: str | None = None
    liquidation: Any = None


class _Trades(Struct, gc=False):
    market: str
    data: list[_Trade] | UnsetType = UNSET


_decode_trades: Final = Decoder(_Trades).decode


def _time(row: _Trade) -> TimeValue:
    return parse_us(time_text(row.time, "trades", "time"))


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trades(message: _Trades) -> bool:
        if message.data is UNSET:  # an answer to a subscription
            return False
        for row in message.data:
            emit(
                message.market,
                row.id,
                number_or_error(row.price, "trades", "price"),
                number_or_error(row.size, "trades", "size"),
                side(row.side, "buy"),
                _time(row),
            )
        return True

    return named({"trades": SharedDecoder(_decode_trades, trades)})


def _liquidations(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.liquidation

    def liquidations(message: _Trades) -> bool:
        if message.data is UNSET:
            return False
        for row in message.data:
            if row.liquidation:
                emit(
                    message.market,
                    row.id,
                    number_or_error(row.price, "trades", "price"),
                    number_or_error(row.size, "trades", "size"),
                    side(row.side, "buy"),
                    _time(row),
                )
        return True

    return named({"trades": SharedDecoder(_decode_trades, liquidations)})


class _Book(Struct, gc=False):
    time: Number | None = None
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _BookMessage(Struct, gc=False):
    market: str
    type: str | None = None
    data: _Book | UnsetType = UNSET


def _seconds(value: Number | UnsetType | None, channel: str) -> TimeValue:
    if value is UNSET or value is None:
        raise MapperError(channel, "no time")
    return seconds_us(value)


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change

    def orderbook(line: bytes) -> bool:
        message = decode(line)
        book = message.data
        if book is UNSET:
            return False
        is_snapshot = message.type == "partial"
        if not is_snapshot and book.bids == _NO_LEVELS == book.asks:
            return True
        emit(
            message.market,
            is_snapshot,
            book.bids,
            book.asks,
            _seconds(book.time, "orderbook"),
        )
        return True

    return named({"orderbook": orderbook})


class _Stats(Struct, gc=False):
    funding_rate: JsonNumber = field(name="nextFundingRate", default=UNSET)
    funding_time: str | UnsetType | None = field(name="nextFundingTime", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)


class _Info(Struct, gc=False):
    index: JsonNumber = UNSET
    last: JsonNumber = UNSET
    mark: JsonNumber = UNSET


class _Instrument(Struct, gc=False):
    stats: _Stats
    info: _Info


class _InstrumentMessage(Struct, gc=False):
    market: str
    data: _Instrument


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_InstrumentMessage).decode
    emit = context.emitter.derivative_ticker
    funded_at = BoundedDict[str, int]()

    def instrument(line: bytes) -> bool:
        message = decode(line)
        stats, info = message.data.stats, message.data.info
        funding_time = stats.funding_time
        if funding_time is not UNSET and not funding_time:
            raise MapperError("instrument", "no time in nextFundingTime")
        funding = None if funding_time is UNSET else parse_ms(funding_time or "")
        if funding is not None:
            if funding < funded_at.get(message.market, 0):  # an answer that came too late
                return True
            funded_at[message.market] = funding
        emit(
            message.market,
            LOCAL_TIME,
            last_price=number_if_not_empty(info.last),
            open_interest=number_if_not_empty(stats.open_interest),
            # A rate counts with the time it is for.
            funding_rate=None if funding is None else number_if_not_empty(stats.funding_rate),
            funding_timestamp=funding,
            index_price=number_if_not_empty(info.index),
            mark_price=number_if_not_empty(info.mark),
        )
        return True

    return named({"instrument": instrument})


class _Ticker(Struct, gc=False):
    bid: JsonNumber = UNSET
    ask: JsonNumber = UNSET
    bid_size: JsonNumber = field(name="bidSize", default=UNSET)
    ask_size: JsonNumber = field(name="askSize", default=UNSET)
    time: Number | UnsetType | None = UNSET


class _TickerMessage(Struct, gc=False):
    market: str
    data: _Ticker | UnsetType = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.book_ticker

    def ticker(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        if row is UNSET:
            return False
        emit(
            message.market,
            number_if_nonzero(row.ask_size),
            number_if_nonzero(row.ask),
            number_if_nonzero(row.bid),
            number_if_nonzero(row.bid_size),
            _seconds(row.time, "ticker"),
        )
        return True

    return named({"ticker": ticker})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, market in pairs(filters):
        yield {"op": "subscribe", "channel": channel, "market": market}


_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://ftx.com/ws"),),
    subscribe=_subscribe,
    acks=equals("type", "subscribed"),
    heartbeats=equals("type", "pong"),
    errors=equals("type", "error"),
    refusals=equals("code", 404),
    ping=lambda _: {"op": "ping"},
    pollers=(
        Poller(
            channel="instrument",
            urls=(
                "https://ftx.com/api/futures/{symbol}/stats",
                "https://ftx.com/api/futures/{symbol}",
            ),
            render=generated(
                '{"channel":"instrument","generated":true,"market":"{symbol}","type":"update",'
                '"data":{"stats":<answer.result>,"info":<answer2.result>}}',
                equals("success", True),
            ),
            every_s=5,
        ),
    ),
    quiet=frozenset(("trades",)),
)
_US_LIVE: Final = replace(_LIVE, endpoints=(Endpoint(url="wss://ftx.us/ws/"),), pollers=())
_NATIVE: Final = subscriptions({"op": "subscribe"}, "", fields("channel", "market"))
_DISPATCH: Final = prefixed(b'{"channel":"', "channel")


def _derivative(symbol: str) -> str | None:
    """Return a derivative's symbol; None for currency pairs, which lack the channel."""
    return None if "/" in symbol else symbol.upper()


_SPOT: Final = {
    "trade": one_era(_trades, "trades"),
    "book_change": one_era(_book_changes, "orderbook"),
    "book_ticker": one_era(_book_tickers, "ticker"),
}

EXCHANGES: Final = (
    Exchange(
        name="ftx",
        types={
            "trade": _SPOT["trade"],
            "book_change": _SPOT["book_change"],
            "derivative_ticker": (Era((Channel("instrument", _derivative),), _derivative_tickers),),
            "liquidation": one_era(_liquidations, "trades"),
            "book_ticker": _SPOT["book_ticker"],
        },
        dispatch=_DISPATCH,
        live=_LIVE,
        subscriptions=_NATIVE,
        closed="the exchange has closed",
    ),
    Exchange(
        name="ftx-us",
        types=_SPOT,
        dispatch=_DISPATCH,
        live=_US_LIVE,
        subscriptions=_NATIVE,
        closed="the exchange has closed",
    ),
)
