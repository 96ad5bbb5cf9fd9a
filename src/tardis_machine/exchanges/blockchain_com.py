"""Blockchain.com: channels of symbols, numbered messages."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.engine import Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
    pairs,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import JsonNumber, number_or_error
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, cut_ms

_NO_LEVELS: Final = Raw(b"[]")
_LEVELS: Final = Objects(price="px", amount="qty")


def _time(timestamp: str | UnsetType | None, channel: str) -> TimeValue:
    if timestamp is UNSET or not timestamp:
        raise MapperError(channel, "no timestamp")
    return cut_ms(timestamp)


class _Trade(Struct, gc=False):
    event: str | None = None
    symbol: str | None = None
    price: JsonNumber = UNSET
    qty: JsonNumber = UNSET
    side: str | None = None
    trade_id: str | int | None = None
    timestamp: str | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trade).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        row = decode(line)
        if row.event != "updated":
            return False
        if not row.symbol:
            raise MapperError("trades", "no symbol")
        emit(
            row.symbol,
            row.trade_id,
            number_or_error(row.price, "trades", "price"),
            number_or_error(row.qty, "trades", "qty"),
            "sell" if row.side == "sell" else "buy",
            _time(row.timestamp, "trades"),
        )
        return True

    return named({"trades": trades})


class _Book(Struct, gc=False):
    event: str | None = None
    symbol: str | None = None
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    timestamp: str | UnsetType | None = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Book).decode
    emit = context.emitter.book_change

    def l2(line: bytes) -> bool:
        row = decode(line)
        if row.event not in {"snapshot", "updated"}:
            return False
        if not row.symbol:
            raise MapperError("l2", "no symbol")
        timestamp = None if row.timestamp is UNSET else _time(row.timestamp, "l2")
        emit(row.symbol, row.event == "snapshot", row.bids, row.asks, timestamp, _LEVELS)
        return True

    return named({"l2": l2})


def _greet(_: ConnectionContext) -> Iterator[Outgoing]:
    yield {"action": "subscribe", "channel": "heartbeat"}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, symbol in pairs(filters):
        yield {"action": "subscribe", "channel": channel, "symbol": symbol}


EXCHANGES: Final = (
    Exchange(
        name="blockchain-com",
        types={
            "trade": one_era(_trades, "trades"),
            "book_change": one_era(_book_changes, "l2"),
        },
        dispatch=keyed("channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws.blockchain.info/mercury-gateway/v1/ws"),),
            headers={"Origin": "https://exchange.blockchain.com"},
            greet=_greet,
            subscribe=_subscribe,
            acks=equals("event", "subscribed"),
            heartbeats=equals("channel", "heartbeat"),
            errors=equals("event", "rejected"),
            quiet=frozenset(("trades",)),
        ),
        subscriptions=subscriptions({"action": "subscribe"}, "", fields("channel", "symbol")),
    ),
)
