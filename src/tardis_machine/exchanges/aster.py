"""Aster: Binance's streams, and books whose every update must follow the one before it."""

from dataclasses import replace
from typing import Final

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler
from tardis_machine.exchanges.base.dialect import (
    DAY_S,
    Dialect,
    Endpoint,
    absent,
    both,
    either,
    null,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_not_empty,
    number_if_sent,
    number_or_error,
    time,
)
from tardis_machine.exchanges.binance import (
    NATIVE,
    STREAMS,
    Book,
    DepthUpdate,
    book_changes,
    book_tickers,
    budget,
    depth_snapshot,
    era,
    liquidations,
    open_interest,
    streams,
    trades,
)

Number = int | float


class _SpotBook(Book):
    """A book that joins if the update before the first one is in the snapshot."""

    advances = True
    __slots__ = ()

    def __init__(self, symbol: str, context: MapperContext) -> None:
        super().__init__(symbol, replace(context, checks_ids=True))

    def joins(self, update: DepthUpdate, snapshot_id: Number) -> bool:
        previous_id = update.previous_id
        return snapshot_id == -1 or (previous_id is not None and previous_id <= snapshot_id)


class _FuturesBook(_SpotBook):
    """A book whose updates overlap with the snapshot."""

    overlaps = True
    __slots__ = ()

    def joins(self, update: DepthUpdate, snapshot_id: Number) -> bool:
        return Book.joins(self, update, snapshot_id)


class _TickerData(Struct, gc=False):
    """A mark price, a 24 h ticker or an open interest, distinguished by `event`."""

    event: str | None = field(name="e", default=None)
    symbol: str | UnsetType = field(name="s", default=UNSET)
    polled_symbol: str | UnsetType = field(name="symbol", default=UNSET)
    timestamp: Number | UnsetType | None = field(name="E", default=UNSET)
    polled_at: Number | UnsetType | None = field(name="time", default=UNSET)
    mark_price: JsonNumber = field(name="p", default=UNSET)
    index_price: JsonNumber = field(name="i", default=UNSET)
    funding_rate: JsonNumber = field(name="r", default=UNSET)
    funding_timestamp: Number | UnsetType | None = field(name="T", default=UNSET)
    last_price: JsonNumber = field(name="c", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)


class _TickerMessage(Struct, gc=False):
    data: _TickerData


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.derivative_ticker

    def derivative_ticker(line: bytes) -> bool:
        message = decode(line).data
        symbol = message.polled_symbol if message.symbol is UNSET else message.symbol
        if symbol is UNSET:
            raise MapperError("ticker", "no symbol")
        if message.event == "markPriceUpdate":
            rate = funding = None
            if message.funding_rate != "" and message.funding_timestamp != 0:
                rate = number_or_error(message.funding_rate, "markPrice", "r")
                funding = time(message.funding_timestamp, "markPrice", "T")
            emit(
                symbol,
                time(message.timestamp, "markPrice", "E"),
                mark_price=number_or_error(message.mark_price, "markPrice", "p"),
                index_price=number_if_sent(message.index_price),
                funding_rate=rate,
                funding_timestamp=funding,
            )
        elif message.event == "24hrTicker":
            emit(
                symbol,
                time(message.timestamp, "ticker", "E"),
                last_price=number_or_error(message.last_price, "ticker", "c"),
            )
        elif message.open_interest is not UNSET:
            emit(
                symbol,
                time(message.polled_at, "openInterest", "time"),
                open_interest=message.open_interest or 0,
            )
        return True

    def handler_of(stream: str) -> Handler | None:
        wanted = "@markPrice" in stream or stream.endswith(("@ticker", "@openInterest"))
        return derivative_ticker if wanted else None

    return handler_of


_SPOT_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://sstream.asterdex.com/stream"),),
    subscribe=streams({"depth": "@0ms"}),
    data=(b'{"stream":"',),
    acks=null("result"),
    errors=both(absent("stream"), either(present("code"), present("error"))),
    snapshots=(depth_snapshot("https://sapi.asterdex.com/api/v3/depth", weight=20),),
    budget=budget("https://sapi.asterdex.com/api/v3/exchangeInfo", 2400, reserve=160),
    quiet=frozenset(("trade",)),
    life_s=DAY_S,
)
_FUTURES_LIVE: Final = replace(
    _SPOT_LIVE,
    endpoints=(Endpoint(url="wss://fstream.asterdex.com/stream"),),
    subscribe=streams({"depth": "@0ms", "markPrice": "@1s"}),
    snapshots=(depth_snapshot("https://fapi.asterdex.com/fapi/v3/depth", weight=20),),
    pollers=(open_interest("https://fapi.asterdex.com/fapi/v3/openInterest", every_s=30),),
    budget=budget("https://fapi.asterdex.com/fapi/v3/exchangeInfo", 2400, reserve=160),
    quiet=frozenset(("trade", "forceOrder")),
    max_streams=200,
    max_messages_per_s=10,
)

EXCHANGES: Final = (
    Exchange(
        name="aster",
        types={
            "trade": era(trades, "trade"),
            "book_change": era(book_changes(_SpotBook), "depth", "depthSnapshot"),
            "book_ticker": era(book_tickers(number_if_not_empty), "bookTicker"),
        },
        dispatch=STREAMS,
        live=_SPOT_LIVE,
        subscriptions=NATIVE,
    ),
    Exchange(
        name="aster-futures",
        types={
            "trade": era(trades, "trade"),
            "book_change": era(book_changes(_FuturesBook), "depth", "depthSnapshot"),
            "derivative_ticker": era(_derivative_tickers, "markPrice", "ticker", "openInterest"),
            "liquidation": era(liquidations, "forceOrder"),
            "book_ticker": era(book_tickers(number_if_not_empty), "bookTicker"),
        },
        dispatch=STREAMS,
        live=_FUTURES_LIVE,
        subscriptions=NATIVE,
    ),
)
