"""Bitstamp: channels named {channel}_{symbol}, books that start with a REST snapshot."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler, keyed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    SnapshotRequest,
    absent,
    at,
    either,
    equals,
    generated,
    pairs,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_or_error,
    text,
    ticker_time,
    time,
)
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import micros

_NO_LEVELS: Final = Raw(b"[]")
_KEPT_UPDATES: Final = 2000


class _Trade(Struct, gc=False):
    id: str | int | float | UnsetType | None = UNSET
    price: JsonNumber = UNSET
    amount: JsonNumber = UNSET
    type: Any = None
    microtimestamp: JsonTime = UNSET


class _TradeMessage(Struct, gc=False):
    event: str | None = None
    data: _Trade | None = None


def _symbol(channel: str) -> str:
    return channel.rpartition("_")[2].upper()


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TradeMessage).decode
    emit = context.emitter.trade

    def handler(symbol: str) -> Handler:
        def trade(line: bytes) -> bool:
            message = decode(line)
            row = message.data
            if message.event != "trade" or row is None:
                return False
            emit(
                symbol,
                text(row.id),
                number_or_error(row.price, "live_trades", "price"),
                number_or_error(row.amount, "live_trades", "amount"),
                "buy" if row.type == 0 else "sell",
                micros(time(row.microtimestamp, "live_trades", "microtimestamp")),
            )
            return True

        return trade

    return lambda name: handler(_symbol(name)) if name.startswith("live_trades_") else None


class _Update(Struct, gc=False):
    timestamp: JsonTime = UNSET
    microtimestamp: JsonTime = UNSET
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS

    def times(self) -> tuple[int | None, int | None]:
        """Return seconds and microseconds, None if missing: old snapshots have seconds only."""
        seconds, us = self.timestamp, self.microtimestamp
        return (
            None if seconds is UNSET else ticker_time(seconds),
            None if us is UNSET else time(us, "diff_order_book", "microtimestamp"),
        )


class _BookMessage(Struct, gc=False):
    event: str | None = None
    data: _Update | None = None


_decode_book: Final = Decoder(_BookMessage).decode


class _Book:
    """The book of one symbol, which sends the updates before its snapshot after it."""

    __slots__ = ("_emit", "_kept", "_seconds", "_symbol", "_us")

    def __init__(self, symbol: str, context: MapperContext) -> None:
        self._symbol = symbol
        self._emit = context.emitter.book_change
        self._kept: deque[_Update] | None = deque(maxlen=_KEPT_UPDATES)
        # Times of the snapshot; 0 if it has none.
        self._seconds = self._us = 0

    def __call__(self, line: bytes) -> bool:
        message = _decode_book(line)
        update = message.data
        if update is None or message.event not in {"data", "snapshot"}:
            return False
        if message.event == "snapshot":
            self._start(update)
        elif self._kept is None:
            self._follow(update)
        else:
            self._kept.append(update)
        return True

    def _start(self, snapshot: _Update) -> None:
        seconds, us = snapshot.times()
        self._send(snapshot, seconds, us, is_snapshot=True)
        self._seconds = seconds or 0
        self._us = us or self._us  # without a time, that of an earlier snapshot stays
        kept, self._kept = self._kept, None
        for update in kept or ():
            self._follow(update)

    def _follow(self, update: _Update) -> None:
        """Send an update unless the snapshot, which comes over REST, contains it."""
        seconds, us = update.times()
        if us is not None and us <= self._us:
            return
        if seconds is not None and seconds < self._seconds:
            return
        self._send(update, seconds, us, is_snapshot=False)

    def _send(
        self, update: _Update, seconds: int | None, us: int | None, *, is_snapshot: bool
    ) -> None:
        if us is not None:
            timestamp = micros(us)
        elif seconds is not None:
            timestamp = seconds * 1000
        else:
            raise MapperError("diff_order_book", "no time in timestamp or microtimestamp")
        self._emit(self._symbol, is_snapshot, update.bids, update.asks, timestamp)


def _book_changes(context: MapperContext) -> ChannelHandlers:
    books = BoundedDefaultDict[str, _Book](lambda symbol: _Book(symbol, context))

    def handler_of(name: str) -> Handler | None:
        if not name.startswith("diff_order_book_"):
            return None
        return books[_symbol(name)]

    return handler_of


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, symbol in pairs(filters):
        yield {"event": "bts:subscribe", "data": {"channel": f"{channel}_{symbol}"}}


def _subscriptions(message: Any) -> list[Filter] | None:
    wanted = at(message, "data.channel")
    if at(message, "event") != "bts:subscribe" or not isinstance(wanted, str):
        return None
    channel, _, symbol = wanted.rpartition("_")
    return [Filter(channel, (symbol,))] if channel else [Filter(wanted, ())]


EXCHANGES: Final = (
    Exchange(
        name="bitstamp",
        types={
            "trade": (Era((Channel("live_trades", str.lower),), _trades),),
            "book_change": (Era((Channel("diff_order_book", str.lower),), _book_changes),),
        },
        dispatch=keyed("channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws.bitstamp.net"),),
            subscribe=_subscribe,
            acks=equals("event", "bts:subscription_succeeded"),
            errors=either(absent("channel"), equals("event", "bts:request_reconnect")),
            snapshots=(
                SnapshotRequest(
                    deltas="diff_order_book",
                    url="https://www.bitstamp.net/api/v2/order_book/{symbol}?group=1",
                    render=generated(
                        '{"data":<answer>,"event":"snapshot",'
                        '"channel":"diff_order_book_{symbol}","generated":true}'
                    ),
                ),
            ),
            quiet=frozenset(("live_trades",)),
        ),
        subscriptions=_subscriptions,
    ),
)
