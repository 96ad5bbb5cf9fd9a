"""HitBTC: notifications over JSON-RPC, distinguished by their method."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.engine import Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    both,
    equals,
    pairs,
    present,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_or_error,
    side_or_unknown,
    time_text,
)
from tardis_machine.exchanges.base.subscriptions import fields, first_of, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import cut_ms

_LEVELS: Final = Objects("price", "size")
_PREFIX: Final = b'{"jsonrpc":"2.0","method":"'
_RECORDED: Final = {
    "subscribeTrades": ("snapshotTrades", "updateTrades"),
    "subscribeOrderbook": ("snapshotOrderbook", "updateOrderbook"),
}
_METHODS: Final = {channel: method for method, its in _RECORDED.items() for channel in its}


class _Trade(Struct, gc=False):
    id: int | str | None = None
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    side: str | None = None
    timestamp: str | None = None


class _TradesParams(Struct, gc=False):
    symbol: str
    data: list[_Trade]


class _Trades(Struct, gc=False):
    params: _TradesParams


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        params = decode(line).params
        for row in params.data:
            emit(
                params.symbol,
                row.id,
                number_or_error(row.price, "updateTrades", "price"),
                number_or_error(row.quantity, "updateTrades", "quantity"),
                side_or_unknown(row.side, "buy", "sell"),
                cut_ms(time_text(row.timestamp, "updateTrades", "timestamp")),
            )
        return True

    return named({"updateTrades": trades})


class _Book(Struct, gc=False):
    symbol: str
    bids: Raw = field(name="bid")
    asks: Raw = field(name="ask")
    timestamp: str | None = None


class _BookMessage(Struct, gc=False):
    params: _Book


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change

    def reading(channel: str, is_snapshot: bool) -> Handler:
        def orderbook(line: bytes) -> bool:
            book = decode(line).params
            timestamp = cut_ms(time_text(book.timestamp, channel, "timestamp"))
            emit(book.symbol, is_snapshot, book.bids, book.asks, timestamp, _LEVELS)
            return True

        return orderbook

    return named(
        {
            "snapshotOrderbook": reading("snapshotOrderbook", is_snapshot=True),
            "updateOrderbook": reading("updateOrderbook", is_snapshot=False),
        }
    )


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    wanted = dict.fromkeys((_METHODS[channel], symbol) for channel, symbol in pairs(filters))
    for number, (method, symbol) in enumerate(wanted, 1):
        yield {"method": method, "params": {"symbol": symbol}, "id": number}


EXCHANGES: Final = (
    Exchange(
        name="hitbtc",
        types={
            "trade": one_era(_trades, "updateTrades"),
            "book_change": (
                Era(
                    (
                        Channel("snapshotOrderbook", str.upper),
                        Channel("updateOrderbook", str.upper),
                    ),
                    _book_changes,
                ),
            ),
        },
        dispatch=prefixed(_PREFIX, "method"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://api.hitbtc.com/api/2/ws"),),
            subscribe=_subscribe,
            data=(_PREFIX,),
            acks=both(equals("result", True), present("id")),
            errors=present("error"),
            quiet=frozenset(("updateTrades", "snapshotTrades")),
        ),
        subscriptions=first_of(
            *(
                subscriptions({"method": method}, "", fields("method", "params.symbol", _RECORDED))
                for method in _RECORDED
            )
        ),
    ),
)
