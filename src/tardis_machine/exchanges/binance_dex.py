"""Binance DEX, closed: one stream per channel for all symbols, books without ids."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    SnapshotRequest,
    absent,
    generated,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    text,
    time,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.exchanges.binance import STREAMS
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import nanos_ms

Number = int | float
_NO_LEVELS: Final = Raw(b"[]")
_SELLER: Final = 2


class _Trade(Struct, gc=False):
    symbol: str = field(name="s")
    id: str | Number | UnsetType | None = field(name="t", default=UNSET)
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="q", default=UNSET)
    timestamp_ns: Number | None = field(name="T", default=None)
    taker: Any = field(name="tt", default=None)


class _Trades(Struct, gc=False):
    data: list[_Trade]


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        for row in decode(line).data:
            emit(
                row.symbol,
                text(row.id),
                number_or_error(row.price, "trades", "p"),
                number_or_error(row.amount, "trades", "q"),
                "sell" if row.taker == _SELLER else "buy",
                nanos_ms(time(row.timestamp_ns, "trades", "T")),
            )
        return True

    return named({"trades": trades})


class _Update(Struct, gc=False):
    symbol: str = field(name="s")
    bids: Raw = field(name="b", default=_NO_LEVELS)
    asks: Raw = field(name="a", default=_NO_LEVELS)


class _UpdateMessage(Struct, gc=False):
    data: _Update


class _Snapshot(Struct, gc=False):
    symbol: str
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _SnapshotMessage(Struct, gc=False):
    data: _Snapshot


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode_update = Decoder(_UpdateMessage).decode
    decode_snapshot = Decoder(_SnapshotMessage).decode
    emit = context.emitter.book_change

    def update(line: bytes) -> bool:
        book = decode_update(line).data
        emit(book.symbol, False, book.bids, book.asks, None)
        return True

    def snapshot(line: bytes) -> bool:
        book = decode_snapshot(line).data
        emit(book.symbol, True, book.bids, book.asks, None)
        return True

    return named({"marketDiff": update, "depthSnapshot": snapshot})


class _Ticker(Struct, gc=False):
    symbol: str = field(name="s")
    timestamp_s: Number | UnsetType | None = field(name="E", default=UNSET)
    bid_price: JsonNumber = field(name="b", default=UNSET)
    bid_amount: JsonNumber = field(name="B", default=UNSET)
    ask_price: JsonNumber = field(name="a", default=UNSET)
    ask_amount: JsonNumber = field(name="A", default=UNSET)


class _TickerMessage(Struct, gc=False):
    data: _Ticker


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.book_ticker

    def ticker(line: bytes) -> bool:
        row = decode(line).data
        seconds = row.timestamp_s
        emit(
            row.symbol,
            number_if_sent(row.ask_amount),
            number_if_sent(row.ask_price),
            number_if_sent(row.bid_price),
            number_if_sent(row.bid_amount),
            None if seconds is UNSET else time(seconds, "ticker", "E") * 1000,
        )
        return True

    return named({"ticker": ticker})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for each in filters:
        yield {"method": "subscribe", "topic": each.channel, "symbols": list(each.symbols or ())}


EXCHANGES: Final = (
    Exchange(
        name="binance-dex",
        types={
            "trade": one_era(_trades, "trades"),
            "book_change": (
                Era(
                    (Channel("depthSnapshot", str.upper), Channel("marketDiff", str.upper)),
                    _book_changes,
                ),
            ),
            "book_ticker": one_era(_book_tickers, "ticker"),
        },
        dispatch=STREAMS,
        live=Dialect(
            endpoints=(Endpoint(url="wss://dex.binance.org/api/ws"),),
            subscribe=_subscribe,
            data=(b'{"stream":"',),
            errors=absent("stream"),
            snapshots=(
                SnapshotRequest(
                    channel="depthSnapshot",
                    deltas="marketDiff",
                    url="https://dex.binance.org/api/v1/depth?symbol={SYMBOL}&limit=1000",
                    render=generated(
                        '{"stream":"depthSnapshot","generated":true,"data":{"symbol":"{SYMBOL}",'
                        '"bids":<answer.bids>,"asks":<answer.asks>}}'
                    ),
                ),
            ),
            quiet=frozenset(("trades", "marketDiff")),
        ),
        subscriptions=subscriptions({"method": "subscribe"}, "", fields("topic", "symbols")),
        closed="the exchange has closed",
    ),
)
