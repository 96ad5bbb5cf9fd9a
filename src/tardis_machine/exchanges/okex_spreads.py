"""OKEx spreads: books of five levels that are sent whole, named by the two legs of a spread."""

from dataclasses import replace
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.engine import PAIRS
from tardis_machine.engine.shapes import (
    AskAmount,
    AskPrice,
    Asks,
    BidAmount,
    BidPrice,
    Bids,
    KernelShape,
    Milliseconds,
    Object,
    Plain,
    Single,
    Symbol,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, named
from tardis_machine.exchanges.base.dialect import Endpoint
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext
from tardis_machine.exchanges.base.fields import JsonNumber, best, symbol, time
from tardis_machine.exchanges.okex import (
    LIVE,
    NATIVE,
    V5,
    Best5,
    Trades5,
    era_5,
    trades_of,
    trades_shape,
)


class _Argument(Struct, gc=False):
    symbol: str | None = field(name="sprdId", default=None)


class _Trade(Struct, gc=False):
    symbol: str = field(name="sprdId")
    price: JsonNumber = field(name="px")
    amount: JsonNumber = field(name="sz")
    timestamp: JsonNumber = field(name="ts")
    id: str | None = field(name="tradeId", default=None)
    side: str | None = None


_TRADES: Final = trades_shape("sprdId")
_trades: Final = trades_of(Decoder(Trades5[_Trade]).decode, _TRADES, "sprd-public-trades")


def _time(value: JsonNumber, channel: str) -> int:
    """Return a book's time; 0, null or empty where a spread never had a book."""
    return 0 if value is None or value == "" else time(value, channel, "ts")


class _Book(Struct, gc=False):
    bids: Raw
    asks: Raw
    timestamp: JsonNumber = field(name="ts", default=UNSET)


class _Books(Struct, gc=False):
    arg: _Argument
    data: list[_Book] | UnsetType = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Books).decode
    emit = context.emitter.book_change

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        for row in message.data or ():
            timestamp = _time(row.timestamp, "sprd-books5")
            if timestamp:
                name = symbol(message.arg.symbol, "sprd-books5")
                emit(name, True, row.bids, row.asks, timestamp)
        return message.data is not UNSET

    return named({"sprd-books5": KernelHandler(book_changes, _BOOK)})


_SYMBOL: Final = Object({"sprdId": Symbol()})
_TIME: Final = Milliseconds(text=True)
_BOOK: Final = KernelShape(
    emits="book_snapshot",
    fields={
        "arg": _SYMBOL,
        "data": Single({"bids": Bids(PAIRS), "asks": Asks(PAIRS), "ts": _TIME}),
    },
)


class _Bests(Struct, gc=False):
    arg: _Argument
    data: list[Best5] | UnsetType = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Bests).decode
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        message = decode(line)
        for row in message.data or ():
            timestamp = _time(row.timestamp, "sprd-bbo-tbt")
            if timestamp:
                ask_price, ask_amount = best(row.asks, "sprd-bbo-tbt")
                bid_price, bid_amount = best(row.bids, "sprd-bbo-tbt")
                name = symbol(message.arg.symbol, "sprd-bbo-tbt")
                emit(name, ask_amount, ask_price, bid_price, bid_amount, timestamp)
        return message.data is not UNSET

    return named({"sprd-bbo-tbt": KernelHandler(book_tickers, _BEST)})


_BEST: Final = KernelShape(
    emits="book_ticker",
    fields={
        "arg": _SYMBOL,
        "data": Single(
            {
                "bids": Single((BidPrice(text=True), BidAmount(text=True), Plain())),
                "asks": Single((AskPrice(text=True), AskAmount(text=True), Plain())),
                "ts": _TIME,
            }
        ),
    },
)


EXCHANGES: Final = (
    Exchange(
        name="okex-spreads",
        types={
            "trade": (era_5(_trades, "sprd-public-trades"),),
            "book_change": (era_5(_book_changes, "sprd-books5"),),
            "book_ticker": (era_5(_book_tickers, "sprd-bbo-tbt"),),
        },
        dispatch=V5,
        live=replace(
            LIVE,
            endpoints=(Endpoint(url="wss://ws.okx.com:8443/ws/v5/business"),),
            quiet=frozenset(("sprd-public-trades",)),
        ),
        subscriptions=NATIVE,
    ),
)
