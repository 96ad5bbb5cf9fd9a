"""Serum, Mango and Star Atlas, all closed: messages that name type and market.

Messages print markets in upper case.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_nonzero,
    number_or_error,
    side,
    time_text,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, cut_ms

_NO_LEVELS: Final = Raw(b"[]")


def _time(value: str | UnsetType | None, channel: str) -> TimeValue:
    return cut_ms(time_text(value, channel, "timestamp"))


class _Trade(Struct, gc=False):
    market: str
    id: str | None = None
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None
    timestamp: str | UnsetType | None = UNSET
    event_timestamp: str | UnsetType | None = field(name="eventTimestamp", default=UNSET)


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trade).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line)
        happened = row.timestamp if row.event_timestamp is UNSET else row.event_timestamp
        emit(
            row.market.upper(),
            row.id,
            number_or_error(row.price, "trade", "price"),
            number_or_error(row.size, "trade", "size"),
            side(row.side, "buy"),
            _time(happened, "trade"),
        )
        return True

    return named({"trade": trade})


class _Book(Struct, gc=False):
    market: str
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    timestamp: str | UnsetType | None = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Book).decode
    emit = context.emitter.book_change

    def snapshot(line: bytes) -> bool:
        book = decode(line)
        emit(book.market.upper(), True, book.bids, book.asks, _time(book.timestamp, "l2snapshot"))
        return True

    def update(line: bytes) -> bool:
        book = decode(line)
        emit(book.market.upper(), False, book.bids, book.asks, _time(book.timestamp, "l2update"))
        return True

    return named({"l2snapshot": snapshot, "l2update": update})


_Number = str | int | float | None
_Best = list[_Number] | str | None


class _Quote(Struct, gc=False):
    market: str
    bestAsk: _Best = None  # noqa: N815 - the exchange's word
    bestBid: _Best = None  # noqa: N815
    timestamp: str | UnsetType | None = UNSET


def _best(level: _Best) -> tuple[_Number, _Number]:
    """Return price and amount of a side of the book; None if it is empty."""
    if not isinstance(level, list):
        return None, None
    price, amount, *_ = (*level, None, None)
    return price, amount


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Quote).decode
    emit = context.emitter.book_ticker

    def quote(line: bytes) -> bool:
        row = decode(line)
        ask_price, ask_amount = _best(row.bestAsk)
        bid_price, bid_amount = _best(row.bestBid)
        emit(
            row.market.upper(),
            number_if_nonzero(ask_amount),
            number_if_nonzero(ask_price),
            number_if_nonzero(bid_price),
            number_if_nonzero(bid_amount),
            _time(row.timestamp, "quote"),
        )
        return True

    return named({"quote": quote})


_LEVELS: Final = {
    "trades": ("recent_trades", "trade"),
    "level1": ("quote",),
    "level2": ("l2snapshot", "l2update"),
    "level3": ("l3snapshot", "open", "fill", "change", "done"),
}
"""The channels that a native subscription sends."""

_SUBSCRIBED: Final = {
    "recent_trades": "trades",
    "trade": "trades",
    "quote": "level1",
    "l2snapshot": "level2",
    "l2update": "level2",
} | dict.fromkeys(_LEVELS["level3"], "level3")


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    wanted: dict[str, dict[str, None]] = {}
    for each in filters:
        markets = wanted.setdefault(_SUBSCRIBED[each.channel], {})
        markets.update(dict.fromkeys(each.symbols or ()))
    for channel, markets in wanted.items():
        yield {"op": "subscribe", "channel": channel, "markets": list(markets)}


def _exchange(name: str, url: str, spell: Callable[[str], str] = str) -> Exchange:
    def era(make: Callable[[MapperContext], ChannelHandlers], *channels: str) -> tuple[Era]:
        return (Era(tuple(Channel(channel, spell) for channel in channels), make),)

    return Exchange(
        name=name,
        types={
            "trade": era(_trades, "trade"),
            "book_change": era(_book_changes, "l2snapshot", "l2update"),
            "book_ticker": era(_book_tickers, "quote"),
        },
        dispatch=prefixed(b'{"type":"', "type"),
        live=Dialect(
            endpoints=(Endpoint(url=url),),
            subscribe=_subscribe,
            data=(b'{"type":"trade"', b'{"type":"l2', b'{"type":"quote"'),
            acks=equals("type", "subscribed"),
            errors=equals("type", "error"),
            quiet=frozenset(("trade", "recent_trades", "quote")),
        ),
        subscriptions=subscriptions({"op": "subscribe"}, "", fields("channel", "markets", _LEVELS)),
        closed="the service has closed",
    )


EXCHANGES: Final = (
    _exchange("serum", "wss://api.serum-vial.dev/v1/ws", str.upper),
    _exchange("mango", "wss://api.mango-bowl.com/v1/ws"),
    _exchange("star-atlas", "wss://serum-vial.staratlas.cloud/v1/ws"),
)
