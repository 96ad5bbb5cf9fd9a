"""Poloniex: arrays of trades and book updates until August 2022, then channels."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    SharedDecoder,
    decoded,
    named,
    prefixed,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_or_error,
    side_unless_sell,
    text,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import seconds_ms

_OLD: Final = "price_aggregated_book"
_OLD_UNTIL: Final = date("2022-08-02T00:00:00.000Z")
_UPDATES: Final = 2
_NAMED: Final = 3
_MAX_INDEX: Final = 2**32 - 1

Number = str | int | float
Levels = list[tuple[Number, Number]]

_decode_old: Final = Decoder().decode


def _old_name(message: Any) -> str | None:
    """Return the channel's name of an array [channel, sequence, updates] or one with symbol."""
    is_array = isinstance(message, list) and len(message) > _UPDATES
    return _OLD if is_array and isinstance(message[_UPDATES], list) else None


_ARRAYS: Final = decoded(_decode_old, _old_name)


class _Symbols(BoundedDict[int, str]):
    """Symbols by the number of their channel, for arrays that do not name theirs."""

    def of(self, message: list[Any]) -> str | None:
        """Return an array's symbol; None if no array of its channel named it yet."""
        number = message[0]
        if not isinstance(number, int):
            raise MapperError(_OLD, "no number of a channel")
        if len(message) > _NAMED and isinstance(message[_NAMED], str):
            self[number] = message[_NAMED]
        return self.get(number)


def _updates(message: list[Any]) -> list[list[Any]]:
    updates: list[list[Any]] = message[_UPDATES]
    if not all(isinstance(each, list) and each for each in updates):
        raise MapperError(_OLD, "an update that is no array")
    return updates


def _has(updates: list[list[Any]], *kinds: str) -> bool:
    return any(each[0] in kinds for each in updates)


def _number(value: Any) -> Number:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise MapperError(_OLD, f"not a number: {value!r:.80}")
    return value


def _old_trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade
    symbols = _Symbols()

    def trades(message: list[Any]) -> bool:
        updates = _updates(message)
        symbol = symbols.of(message)
        if not _has(updates, "t"):
            return False
        if symbol is None:
            return True
        for each in updates:
            if each[0] == "t":
                try:
                    _, number, side, price, amount, seconds, *_ = each
                except ValueError:
                    raise MapperError(_OLD, "a trade without price, amount and time") from None
                emit(
                    symbol,
                    text(_number(number)),
                    _number(price),
                    _number(amount),
                    "buy" if side == 1 else "sell",
                    seconds_ms(_number(seconds)),
                )
        return True

    return named({_OLD: SharedDecoder(_decode_old, trades)})


def _is_index(price: str) -> bool:
    return price.isdecimal() and str(int(price)) == price and int(price) < _MAX_INDEX


def _whole_side(levels: Any) -> Levels:
    """Return the levels of an object in JavaScript's order: integer prices first, sorted."""
    if not isinstance(levels, dict):
        raise MapperError(_OLD, "a snapshot without levels")
    prices = sorted(levels, key=lambda price: int(price) if _is_index(price) else _MAX_INDEX)
    return [(price, _number(levels[price])) for price in prices]


def _snapshot(update: list[Any]) -> tuple[Levels, Levels]:
    try:
        asks, bids = update[1]["orderBook"]
    except (LookupError, TypeError, ValueError):
        raise MapperError(_OLD, "a snapshot without levels") from None
    return _whole_side(bids), _whole_side(asks)


def _old_book_changes(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_change
    symbols = _Symbols()

    def book_changes(message: list[Any]) -> bool:
        updates = _updates(message)
        symbol = symbols.of(message)
        if not _has(updates, "i", "o"):
            return False
        if symbol is None:
            return True
        bids: Levels = []
        asks: Levels = []
        for each in updates:
            if each[0] == "i":
                emit(symbol, True, *_snapshot(each), None)
            elif each[0] == "o":
                try:
                    _, side, price, amount, *_ = each
                except ValueError:
                    raise MapperError(_OLD, "a level without price and amount") from None
                (bids if side == 1 else asks).append((_number(price), _number(amount)))
        if bids or asks:
            emit(symbol, False, bids, asks, None)
        return True

    return named({_OLD: SharedDecoder(_decode_old, book_changes)})


class _Trade(Struct, gc=False):
    symbol: str
    id: str | None = None
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    taker_side: str | None = field(name="takerSide", default=None)
    timestamp: JsonTime = field(name="createTime", default=UNSET)


class _Trades(Struct, gc=False):
    data: list[_Trade] | UnsetType = UNSET  # answers to subscriptions have no data


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        rows = decode(line).data
        if rows is UNSET or not rows:
            return False
        for row in rows:
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, "trades", "price"),
                number_or_error(row.quantity, "trades", "quantity"),
                side_unless_sell(row.taker_side, "sell"),
                time(row.timestamp, "trades", "createTime"),
            )
        return True

    return named({"trades": trades})


class _Book(Struct, gc=False):
    symbol: str
    bids: Raw
    asks: Raw
    timestamp: JsonTime = field(name="ts", default=UNSET)
    previous_id: int | None = field(name="lastId", default=None)
    id: int | None = None


class _Books(Struct, gc=False):
    action: str | None = None
    data: list[_Book] | UnsetType = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Books).decode
    emit = context.emitter.book_change
    ids = UpdateIds("book_lv2", checks_ids=context.checks_ids)

    def books(line: bytes) -> bool:
        message = decode(line)
        rows = message.data
        if rows is UNSET or not rows:
            return False
        is_snapshot = message.action == "snapshot"
        for row in rows:
            if is_snapshot:
                ids.start(row.symbol, row.id)
            elif not ids.follow(row.symbol, row.previous_id, row.id):
                continue
            timestamp = time(row.timestamp, "book_lv2", "ts")
            emit(row.symbol, is_snapshot, row.bids, row.asks, timestamp)
        return True

    return named({"book_lv2": books})


def _call(event: str, filters: Sequence[Filter]) -> Iterator[Outgoing]:
    for each in filters:
        yield {"event": event, "channel": [each.channel], "symbols": list(each.symbols or ())}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _call("subscribe", filters)


def _unsubscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _call("unsubscribe", filters)


def _asked(symbol: str) -> Iterable[Filter]:
    return (Filter(_OLD, (symbol,)),)


def _eras(
    old: Callable[[MapperContext], ChannelHandlers],
    channel: str,
    make: Callable[[MapperContext], ChannelHandlers],
) -> tuple[Era, Era]:
    return (
        Era((Channel(_OLD, str.upper),), old, _OLD_UNTIL, _ARRAYS),
        Era((Channel(channel, str.upper),), make),
    )


EXCHANGES: Final = (
    Exchange(
        name="poloniex",
        types={
            "trade": _eras(_old_trades, "trades", _trades),
            "book_change": _eras(_old_book_changes, "book_lv2", _book_changes),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws.poloniex.com/ws/public"),),
            subscribe=_subscribe,
            unsubscribe=_unsubscribe,
            data=(b'{"channel":"trades"', b'{"channel":"book_lv2"'),
            acks=equals("event", "subscribe", "unsubscribe"),
            heartbeats=equals("event", "pong"),
            errors=equals("event", "error"),
            ping=lambda _: {"event": "ping"},
            quiet=frozenset(("trades",)),
        ),
        subscriptions=subscriptions({"command": "subscribe"}, "channel", _asked),
    ),
)
