"""Upbit: whole books of a few levels, in units that hold a bid and an ask each."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    either,
    equals,
    present,
)
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_nonzero,
    number_or_error,
    side_unless_sell,
    text,
    time,
)
from tardis_machine.history.filters import Filter

Number = int | float


class _Trade(Struct, gc=False):
    code: str
    trade_price: JsonNumber = UNSET
    trade_volume: JsonNumber = UNSET
    trade_timestamp: Number | None = None
    ask_bid: str | None = None
    sequential_id: str | Number | UnsetType | None = UNSET


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trade).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.code,
            text(row.sequential_id),
            number_or_error(row.trade_price, "trade", "trade_price"),
            number_or_error(row.trade_volume, "trade", "trade_volume"),
            side_unless_sell(row.ask_bid, "ASK"),
            time(row.trade_timestamp, "trade", "trade_timestamp"),
        )
        return True

    return named({"trade": trade})


class _Unit(Struct, gc=False):
    ask_price: JsonNumber = UNSET
    bid_price: JsonNumber = UNSET
    ask_size: JsonNumber = UNSET
    bid_size: JsonNumber = UNSET


class _Book(Struct, gc=False):
    code: str
    orderbook_units: list[_Unit]
    timestamp: Number | None = None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Book).decode
    emit = context.emitter.book_change

    def book(line: bytes) -> bool:
        message = decode(line)
        units = message.orderbook_units
        emit(
            message.code,
            True,
            # The side with fewer levels is padded with 0.
            [
                (price, number_or_error(unit.bid_size, "orderbook", "bid_size"))
                for unit in units
                if (price := number_if_nonzero(unit.bid_price)) is not None
            ],
            [
                (price, number_or_error(unit.ask_size, "orderbook", "ask_size"))
                for unit in units
                if (price := number_if_nonzero(unit.ask_price)) is not None
            ],
            time(message.timestamp, "orderbook", "timestamp"),
        )
        return True

    return named({"orderbook": book})


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    """Yield one message for all channels: a later one would replace the subscription."""
    yield [
        {"ticket": str(session.now_ms)},
        *(
            {"type": each.channel, "codes": list(each.symbols or ()), "isOnlyRealtime": True}
            for each in filters
        ),
    ]


def _subscriptions(message: Any) -> list[Filter] | None:
    """Read [{ticket}, {type, codes}, …]."""
    if not isinstance(message, list):
        return None
    asked = [each for each in message if isinstance(each, dict) and "type" in each]
    return [Filter(str(each["type"]), tuple(each.get("codes") or ())) for each in asked] or None


EXCHANGES: Final = (
    Exchange(
        name="upbit",
        types={
            "trade": one_era(_trades, "trade"),
            "book_change": one_era(_book_changes, "orderbook"),
        },
        dispatch=prefixed(b'{"type":"', "type"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://api.upbit.com/websocket/v1"),),
            subscribe=_subscribe,
            data=(b'{"type":"trade"', b'{"type":"orderbook"'),
            acks=equals("status", "UP"),
            errors=either(equals("type", "error"), present("error")),
            quiet=frozenset(("trade",)),
        ),
        subscriptions=_subscriptions,
    ),
)
