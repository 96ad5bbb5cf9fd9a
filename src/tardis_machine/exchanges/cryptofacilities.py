"""Crypto Facilities, which is Kraken Futures: feeds of single trades, tickers and book levels."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.engine import Id, Objects, Side
from tardis_machine.engine.shapes import (
    Absent,
    Amount,
    KernelShape,
    LevelSide,
    Milliseconds,
    Price,
    Symbol,
    TakerSide,
    TextId,
    Unless,
)
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    KernelHandler,
    SharedDecoder,
    keyed,
    named,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    both,
    either,
    equals,
    reads_as_unknown_symbol,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import (
    Era,
    Exchange,
    MapperContext,
    date,
    upper_channels,
)
from tardis_machine.exchanges.base.fields import number_or_error, symbol, ticker_time, time
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue

Number = int | float
Maker = Callable[[MapperContext], ChannelHandlers]
_Time = Number | UnsetType | None
Emit = Callable[[str, Id, str | Number, str | Number, Side, TimeValue | None], None]
_NO_LEVELS: Final = Raw(b"[]")
_RELATIVE_RATES: Final = date("2022-09-29")


class _Trade(Struct, gc=False):
    """A trade; what answers a subscription has an event and none of this."""

    symbol: str | None = field(name="product_id", default=None)
    price: Number | UnsetType = UNSET
    amount: Number | UnsetType = field(name="qty", default=UNSET)
    side: Literal["buy", "sell"] | UnsetType = UNSET
    timestamp: _Time = field(name="time", default=UNSET)
    id: str | None = field(name="uid", default=None)
    type: str | None = None
    event: str | UnsetType | None = UNSET


_decode_trade: Final = Decoder(_Trade).decode


def _sent(emit: Emit, row: _Trade) -> bool:
    if row.side is UNSET:
        raise MapperError("trade", "no side")
    emit(
        symbol(row.symbol, "trade"),
        row.id,
        number_or_error(row.price, "trade", "price"),
        number_or_error(row.amount, "trade", "qty"),
        row.side,
        time(row.timestamp, "trade", "time"),
    )
    return True


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trades(row: _Trade) -> bool:
        return row.event is UNSET and _sent(emit, row)

    return named({"trade": KernelHandler(SharedDecoder(_decode_trade, trades), _TRADE)})


_TRADE: Final = KernelShape(
    emits="trade",
    fields={
        "product_id": Symbol(),
        "uid": TextId(),
        "side": TakerSide(buy="buy", sell="sell"),
        "type": Unless(()),
        "time": Milliseconds(),
        "qty": Amount(),
        "price": Price(),
        "event": Absent(),
    },
)


def _liquidations(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.liquidation

    def liquidations(row: _Trade) -> bool:
        return row.event is UNSET and row.type == "liquidation" and _sent(emit, row)

    return named({"trade": SharedDecoder(_decode_trade, liquidations)})


class _Snapshot(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    symbol: str | None = field(name="product_id", default=None)
    timestamp: _Time = UNSET
    event: str | UnsetType | None = UNSET


class _Level(Struct, gc=False):
    price: Number
    amount: Number = field(name="qty")


class _Update(Struct, gc=False):
    symbol: str | None = field(name="product_id", default=None)
    side: str | None = None
    price: Number | UnsetType = UNSET
    amount: Number | UnsetType = field(name="qty", default=UNSET)
    timestamp: _Time = UNSET
    event: str | UnsetType | None = UNSET


_LEVELS: Final = Objects("price", "qty")
_decode_levels: Final = Decoder(list[_Level]).decode


def _book_time(value: _Time) -> int | None:
    return None if value is UNSET else time(value, "book", "timestamp")


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode_snapshot = Decoder(_Snapshot).decode
    decode_update = Decoder(_Update).decode
    emit = context.emitter.book_change

    def snapshot(line: bytes) -> bool:
        row = decode_snapshot(line)
        if row.event is not UNSET:
            return False
        name, timestamp = symbol(row.symbol, "book_snapshot"), _book_time(row.timestamp)
        if b"-" in bytes(row.bids) or b"-" in bytes(row.asks):
            emit(name, True, _above_zero(row.bids), _above_zero(row.asks), timestamp)
        else:
            emit(name, True, row.bids, row.asks, timestamp, _LEVELS)
        return True

    def update(line: bytes) -> bool:
        row = decode_update(line)
        if row.event is not UNSET:
            return False
        if row.price is UNSET or row.amount is UNSET:
            raise MapperError("book", "a level without price and qty")
        level = [(row.price, max(row.amount, 0))]
        is_ask = row.side == "sell"
        emit(
            symbol(row.symbol, "book"),
            False,
            [] if is_ask else level,
            level if is_ask else [],
            _book_time(row.timestamp),
        )
        return True

    return named({"book_snapshot": snapshot, "book": KernelHandler(update, _UPDATE)})


_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={
        "product_id": Symbol(),
        "side": LevelSide(bid="buy", ask="sell"),
        "price": Price(),
        "qty": Amount(),
        "timestamp": Milliseconds(),
        "event": Absent(),
    },
)


def _above_zero(levels: Raw) -> list[tuple[Number, Number]]:
    """Return levels, with 0 for amounts below 0."""
    return [(level.price, max(level.amount, 0)) for level in _decode_levels(levels)]


class _Ticker(Struct, gc=False):
    symbol: str | None = field(name="product_id", default=None)
    timestamp: _Time = field(name="time", default=UNSET)
    last: Number | None = None
    index: Number | None = None
    open_interest: Number | None = field(name="openInterest", default=None)
    mark_price: Number | None = field(name="markPrice", default=None)
    rate: Number | None = field(name="funding_rate", default=None)
    predicted_rate: Number | None = field(name="funding_rate_prediction", default=None)
    relative_rate: Number | None = field(name="relative_funding_rate", default=None)
    predicted_relative_rate: Number | None = field(
        name="relative_funding_rate_prediction", default=None
    )
    funding_time: _Time = field(name="next_funding_rate_time", default=UNSET)
    bid: Number | None = None
    ask: Number | None = None
    bid_size: Number | None = None
    ask_size: Number | None = None
    event: str | UnsetType | None = UNSET


_decode_ticker: Final = Decoder(_Ticker).decode


def _derivative_tickers(*, relative: bool) -> Maker:
    """Return the mapper of tickers; funding rates were absolute at first, then relative."""

    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.derivative_ticker

        def derivative_tickers(row: _Ticker) -> bool:
            if row.event is not UNSET:
                return False
            funding = row.funding_time
            if funding == 0:  # a contract that is not traded yet
                return True
            emit(
                symbol(row.symbol, "ticker"),
                ticker_time(row.timestamp),
                last_price=row.last,
                open_interest=row.open_interest,
                funding_rate=row.relative_rate if relative else row.rate,
                funding_timestamp=None if funding is UNSET else time(funding, "ticker", "funding"),
                predicted_funding_rate=row.predicted_relative_rate
                if relative
                else row.predicted_rate,
                index_price=row.index,
                mark_price=row.mark_price,
            )
            return True

        return named({"ticker": SharedDecoder(_decode_ticker, derivative_tickers)})

    return make


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker

    def book_tickers(row: _Ticker) -> bool:
        if row.event is not UNSET:
            return False
        timestamp = time(row.timestamp, "ticker", "time")
        name = symbol(row.symbol, "ticker")
        emit(name, row.ask_size, row.ask, row.bid, row.bid_size, timestamp)
        return True

    return named({"ticker": SharedDecoder(_decode_ticker, book_tickers)})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for each in filters:
        if not each.channel.endswith("_snapshot"):  # which come with the feed itself
            symbols = list(each.symbols or ())
            yield {"event": "subscribe", "product_ids": symbols, "feed": each.channel}


_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://futures.kraken.com/ws/v1"),),
    subscribe=_subscribe,
    data=(b'{"feed":"book', b'{"feed":"trade"', b'{"feed":"ticker"'),
    heartbeats=equals("feed", "heartbeat"),
    acks=equals("event", "info", "subscribed"),
    errors=either(
        equals("event", "error"), both(equals("event", "alert"), reads_as_unknown_symbol)
    ),
    quiet=frozenset(("trade",)),
)


EXCHANGES: Final = (
    Exchange(
        name="cryptofacilities",
        types={
            "trade": (Era(upper_channels("trade"), _trades),),
            "book_change": (Era(upper_channels("book", "book_snapshot"), _book_changes),),
            "derivative_ticker": (
                Era(upper_channels("ticker"), _derivative_tickers(relative=False), _RELATIVE_RATES),
                Era(upper_channels("ticker"), _derivative_tickers(relative=True)),
            ),
            "liquidation": (Era(upper_channels("trade"), _liquidations),),
            "book_ticker": (Era(upper_channels("ticker"), _book_tickers),),
        },
        dispatch=keyed("feed", within=640),
        live=_LIVE,
        subscriptions=subscriptions({"event": "subscribe"}, "", fields("feed", "product_ids")),
    ),
)
