"""OKEx spreads: books of five levels that are sent whole, named by the two legs of a spread."""

from dataclasses import replace
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.dialect import Endpoint
from tardis_machine.exchanges.dispatch import Route, named
from tardis_machine.exchanges.exchange import Exchange, Making
from tardis_machine.exchanges.fields import (
    Sent,
    SentLevels,
    best,
    required,
    side,
    symbol,
    time,
)
from tardis_machine.exchanges.okex import LIVE, NATIVE, V5, era_5


class _Argument(Struct, gc=False):
    symbol: str | None = field(name="sprdId", default=None)


class _Trade(Struct, gc=False):
    symbol: str = field(name="sprdId")
    price: Sent = field(name="px")
    amount: Sent = field(name="sz")
    timestamp: Sent = field(name="ts")
    id: str | None = field(name="tradeId", default=None)
    side: str | None = None


class _Trades(Struct, gc=False):
    data: list[_Trade] | UnsetType = UNSET


def _trades(making: Making) -> Route:
    decode = Decoder(_Trades).decode
    emit = making.emitter.trade

    def trades(line: bytes) -> bool:
        rows = decode(line).data
        for row in rows or ():
            emit(
                row.symbol,
                row.id,
                required(row.price, "sprd-public-trades", "px"),
                required(row.amount, "sprd-public-trades", "sz"),
                side(row.side, "buy"),
                time(row.timestamp, "sprd-public-trades", "ts"),
            )
        return rows is not UNSET

    return named({"sprd-public-trades": trades})


def _time(value: Sent, channel: str) -> int:
    """A book's time; 0, null or empty where a spread never had a book."""
    return 0 if value is None or value == "" else time(value, channel, "ts")


class _Book(Struct, gc=False):
    bids: Raw
    asks: Raw
    timestamp: Sent = field(name="ts", default=UNSET)


class _Books(Struct, gc=False):
    arg: _Argument
    data: list[_Book] | UnsetType = UNSET


def _book_changes(making: Making) -> Route:
    decode = Decoder(_Books).decode
    emit = making.emitter.book_change

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        for row in message.data or ():
            timestamp = _time(row.timestamp, "sprd-books5")
            if timestamp:
                name = symbol(message.arg.symbol, "sprd-books5")
                emit(name, True, row.bids, row.asks, timestamp)
        return message.data is not UNSET

    return named({"sprd-books5": book_changes})


class _Best(Struct, gc=False):
    asks: SentLevels = None
    bids: SentLevels = None
    timestamp: Sent = field(name="ts", default=UNSET)


class _Bests(Struct, gc=False):
    arg: _Argument
    data: list[_Best] | UnsetType = UNSET


def _book_tickers(making: Making) -> Route:
    decode = Decoder(_Bests).decode
    emit = making.emitter.book_ticker

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

    return named({"sprd-bbo-tbt": book_tickers})


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
