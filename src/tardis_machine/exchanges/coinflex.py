"""CoinFLEX, closed: tables of rows; only swaps and futures have tickers."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.exchanges.dialect import (
    Dialect,
    Endpoint,
    Outgoing,
    Session,
    equals,
    pairs,
)
from tardis_machine.exchanges.dispatch import Route, keyed, named
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Making
from tardis_machine.exchanges.fields import (
    Sent,
    SentTime,
    optional,
    required,
    side,
    time,
)
from tardis_machine.exchanges.subscriptions import channel_first, subscriptions
from tardis_machine.filters import Filter

_NO_LEVELS: Final = Raw(b"[]")
_LONGEST: Final = 1 << 20
"""How far into a message its table is looked for: it comes last."""


class _Trade(Struct, gc=False):
    symbol: str = field(name="marketCode")
    id: str | int | None = field(name="tradeId", default=None)
    price: Sent = UNSET
    quantity: Sent = UNSET
    side: str | None = None
    timestamp: SentTime = UNSET


class _Trades(Struct, gc=False):
    data: list[_Trade]


def _trades(making: Making) -> Route:
    decode = Decoder(_Trades).decode
    emit = making.emitter.trade

    def trades(line: bytes) -> bool:
        for row in decode(line).data:
            emit(
                row.symbol,
                row.id,
                required(row.price, "trade", "price"),
                required(row.quantity, "trade", "quantity"),
                side(row.side, "BUY"),
                time(row.timestamp, "trade", "timestamp"),
            )
        return True

    return named({"trade": trades})


class _Book(Struct, gc=False):
    symbol: str = field(name="instrumentId")
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    timestamp: SentTime = UNSET


class _Books(Struct, gc=False):
    data: list[_Book]
    action: str | None = None


def _book_changes(making: Making) -> Route:
    decode = Decoder(_Books).decode
    emit = making.emitter.book_change

    def depth(line: bytes) -> bool:
        message = decode(line)
        is_snapshot = message.action == "partial"
        for book in message.data:
            timestamp = time(book.timestamp, "futures/depth", "timestamp")
            emit(book.symbol, is_snapshot, book.bids, book.asks, timestamp)
        return True

    return named({"futures/depth": depth})


class _Ticker(Struct, gc=False):
    symbol: str = field(name="marketCode")
    last: Sent = UNSET
    mark_price: Sent = field(name="markPrice", default=UNSET)
    open_interest: Sent = field(name="openInterest", default=UNSET)
    timestamp: SentTime = UNSET


class _Tickers(Struct, gc=False):
    data: list[_Ticker]


def _derivative_tickers(making: Making) -> Route:
    decode = Decoder(_Tickers).decode
    emit = making.emitter.derivative_ticker

    def tickers(line: bytes) -> bool:
        for row in decode(line).data:
            if row.symbol.count("-") == 1:  # a spot market
                continue
            emit(
                row.symbol,
                time(row.timestamp, "ticker", "timestamp"),
                last_price=optional(row.last),
                open_interest=optional(row.open_interest),
                mark_price=optional(row.mark_price),
            )
        return True

    return named({"ticker": tickers})


def _subscribe(filters: Sequence[Filter], _: Session) -> Iterator[Outgoing]:
    topics = [f"{channel}:{symbol}" for channel, symbol in pairs(filters)]
    yield {"op": "subscribe", "args": topics}


EXCHANGES: Final = (
    Exchange(
        name="coinflex",
        types={
            "trade": (Era((Channel("trade", str.upper),), _trades),),
            "book_change": (Era((Channel("futures/depth", str.upper),), _book_changes),),
            "derivative_ticker": (Era((Channel("ticker", str.upper),), _derivative_tickers),),
        },
        dispatch=keyed("table", within=_LONGEST),
        live=Dialect(
            endpoints=(Endpoint(url="wss://v2api.coinflex.com/v2/websocket"),),
            subscribe=_subscribe,
            acks=equals("success", True),
            errors=equals("success", False),
            quiet=frozenset(("trade", "ticker")),
        ),
        subscriptions=subscriptions({"op": "subscribe"}, "args", channel_first(":")),
    ),
)
