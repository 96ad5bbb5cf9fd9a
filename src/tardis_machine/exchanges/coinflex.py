"""CoinFLEX: tables whose name stands at the end of a message; the exchange is closed."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import Part, Route, decoded, named
from tardis_machine.exchanges.base.dialect import (
    Dialect,
    Endpoint,
    Outgoing,
    Session,
    equals,
    pairs,
)
from tardis_machine.exchanges.base.exchange import Era, Exchange, Making, upper_channels
from tardis_machine.exchanges.base.fields import Sent, optional, required, ticker_time, time
from tardis_machine.exchanges.base.subscriptions import channel_first, subscriptions
from tardis_machine.history.filters import Filter

_SPOT_PARTS: Final = 2


class _Table(Struct, gc=False):
    """A message; its rows are read by who knows the table."""

    table: str | None = None
    data: Raw | UnsetType = UNSET
    action: str | None = None


_decode: Final = Decoder(_Table).decode


def _rows(message: _Table) -> Raw:
    return Raw(b"[]") if message.data is UNSET else message.data


class _Trade(Struct, gc=False):
    symbol: str = field(name="marketCode")
    price: Sent
    quantity: Sent
    timestamp: Sent
    id: str | None = field(name="tradeId", default=None)
    side: str | None = None


def _trades(making: Making) -> Route:
    decode = Decoder(list[_Trade]).decode
    emit = making.emitter.trade

    def trades(message: _Table) -> bool:
        for row in decode(_rows(message)):
            emit(
                row.symbol,
                row.id,
                required(row.price, "trade", "price"),
                required(row.quantity, "trade", "quantity"),
                "sell" if row.side == "SELL" else "buy",
                time(row.timestamp, "trade", "timestamp"),
            )
        return True

    return named({"trade": Part(_decode, trades)})


class _Book(Struct, gc=False):
    symbol: str = field(name="instrumentId")
    bids: Raw
    asks: Raw
    timestamp: Sent


def _book_changes(making: Making) -> Route:
    decode = Decoder(list[_Book]).decode
    emit = making.emitter.book_change

    def book_changes(message: _Table) -> bool:
        is_snapshot = message.action == "partial"
        for row in decode(_rows(message)):
            timestamp = time(row.timestamp, "futures/depth", "timestamp")
            emit(row.symbol, is_snapshot, row.bids, row.asks, timestamp)
        return True

    return named({"futures/depth": Part(_decode, book_changes)})


class _Ticker(Struct, gc=False):
    symbol: str = field(name="marketCode")
    last: Sent = UNSET
    mark_price: Sent = field(name="markPrice", default=UNSET)
    open_interest: Sent = field(name="openInterest", default=UNSET)
    timestamp: Sent = UNSET


def _derivative_tickers(making: Making) -> Route:
    decode = Decoder(list[_Ticker]).decode
    emit = making.emitter.derivative_ticker

    def derivative_tickers(message: _Table) -> bool:
        for row in decode(_rows(message)):
            if row.symbol.count("-") + 1 == _SPOT_PARTS:  # BTC-USD, not BTC-USD-SWAP-LIN
                continue
            emit(
                row.symbol,
                ticker_time(row.timestamp),
                last_price=optional(row.last),
                open_interest=optional(row.open_interest),
                mark_price=optional(row.mark_price),
            )
        return True

    return named({"ticker": Part(_decode, derivative_tickers)})


def _subscribe(filters: Sequence[Filter], _: Session) -> Iterator[Outgoing]:
    yield {"op": "subscribe", "args": [f"{channel}:{symbol}" for channel, symbol in pairs(filters)]}


_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://v2api.coinflex.com/v2/websocket"),),
    subscribe=_subscribe,
    acks=equals("success", True),
    errors=equals("success", False),
    quiet=frozenset(("trade",)),
)


EXCHANGES: Final = (
    Exchange(
        name="coinflex",
        types={
            "trade": (Era(upper_channels("trade"), _trades),),
            "book_change": (Era(upper_channels("futures/depth"), _book_changes),),
            "derivative_ticker": (Era(upper_channels("ticker"), _derivative_tickers),),
        },
        dispatch=decoded(_decode, lambda message: message.table),
        live=_LIVE,
        subscriptions=subscriptions({"op": "subscribe"}, "args", channel_first(":")),
        closed="the exchange has closed",
    ),
)
