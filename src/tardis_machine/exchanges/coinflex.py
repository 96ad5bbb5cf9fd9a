"""CoinFLEX: messages with the table's name at their end; the exchange is closed."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, decoded, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
    pairs,
)
from tardis_machine.exchanges.base.exchange import Era, Exchange, MapperContext, upper_channels
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import channel_first, subscriptions
from tardis_machine.history.filters import Filter

_SPOT_PARTS: Final = 2


class _Table(Struct, gc=False):
    """A message; its table's handler decodes the rows."""

    table: str | None = None
    data: Raw | UnsetType = UNSET
    action: str | None = None


_decode: Final = Decoder(_Table).decode


def _rows(message: _Table) -> Raw:
    return Raw(b"[]") if message.data is UNSET else message.data


class _Trade(Struct, gc=False):
    symbol: str = field(name="marketCode")
    price: JsonNumber
    quantity: JsonNumber
    timestamp: JsonNumber
    id: str | None = field(name="tradeId", default=None)
    side: str | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(list[_Trade]).decode
    emit = context.emitter.trade

    def trades(message: _Table) -> bool:
        for row in decode(_rows(message)):
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, "trade", "price"),
                number_or_error(row.quantity, "trade", "quantity"),
                "sell" if row.side == "SELL" else "buy",
                time(row.timestamp, "trade", "timestamp"),
            )
        return True

    return named({"trade": SharedDecoder(_decode, trades)})


class _Book(Struct, gc=False):
    symbol: str = field(name="instrumentId")
    bids: Raw
    asks: Raw
    timestamp: JsonNumber


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(list[_Book]).decode
    emit = context.emitter.book_change

    def book_changes(message: _Table) -> bool:
        is_snapshot = message.action == "partial"
        for row in decode(_rows(message)):
            timestamp = time(row.timestamp, "futures/depth", "timestamp")
            emit(row.symbol, is_snapshot, row.bids, row.asks, timestamp)
        return True

    return named({"futures/depth": SharedDecoder(_decode, book_changes)})


class _Ticker(Struct, gc=False):
    symbol: str = field(name="marketCode")
    last: JsonNumber = UNSET
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)
    timestamp: JsonNumber = UNSET


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(list[_Ticker]).decode
    emit = context.emitter.derivative_ticker

    def derivative_tickers(message: _Table) -> bool:
        for row in decode(_rows(message)):
            if row.symbol.count("-") + 1 == _SPOT_PARTS:  # BTC-USD, not BTC-USD-SWAP-LIN
                continue
            emit(
                row.symbol,
                ticker_time(row.timestamp),
                last_price=number_if_sent(row.last),
                open_interest=number_if_sent(row.open_interest),
                mark_price=number_if_sent(row.mark_price),
            )
        return True

    return named({"ticker": SharedDecoder(_decode, derivative_tickers)})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
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
