"""Binance futures: streams named {symbol}@{channel}, books that start with a REST snapshot."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.dialect import (
    Budget,
    Dialect,
    Endpoint,
    Outgoing,
    Poller,
    Session,
    Snapshot,
    Subscribe,
    absent,
    at,
    both,
    either,
    generated,
    negated,
    null,
    present,
)
from tardis_machine.exchanges.dispatch import dispatcher
from tardis_machine.exchanges.errors import BookGapError, LostUpdateError, MapperError
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Handler, Making
from tardis_machine.exchanges.numbers import Sent, optional, required
from tardis_machine.exchanges.subscriptions import subscriptions, symbol_first
from tardis_machine.filters import Filter
from tardis_machine.numbers import canonical

log = logging.getLogger(__name__)

Number = int | float
Route = Callable[[str], Handler | None]
"""Gives the handler of a stream, if it is of interest."""

_KEPT_UPDATES: Final = 2000
_NO_LEVELS: Final = Raw(b"[]")
_OFF_BOOK: Final = frozenset(("INSURANCE_FUND", "ADL"))


class _Envelope(Struct, gc=False):
    stream: str | None = None


def _time(value: Number | UnsetType | None, channel: str, name: str) -> int:
    if value is UNSET or value is None:
        raise MapperError(channel, f"no time in {name}")
    return int(value)


class _Trade(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    price: Sent = field(name="p", default=UNSET)
    amount: Sent = field(name="q", default=UNSET)
    timestamp: Number | None = field(name="T", default=None)
    id: str | Number | UnsetType | None = field(name="t", default=UNSET)
    buyer_is_maker: Any = field(name="m", default=None)
    origin: str | None = field(name="X", default=None)


def _text(number: str | Number | UnsetType | None) -> str:
    """Print an id that is not an integer as clients know it, absent ones included."""
    if number is UNSET:
        return "undefined"
    if number is None:
        return "null"
    return number if isinstance(number, str) else canonical[number]


class _TradeMessage(Struct, gc=False):
    data: _Trade


def _trades(making: Making) -> Route:
    decode = Decoder(_TradeMessage).decode
    emit = making.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line).data
        if row.origin in _OFF_BOOK:
            return True
        if row.symbol is None:
            raise MapperError("trade", "no symbol")
        number = row.id
        timestamp = row.timestamp
        emit(
            row.symbol,
            str(number) if number.__class__ is int else _text(number),
            row.price or required(row.price, "trade", "p"),
            row.amount or required(row.amount, "trade", "q"),
            "sell" if row.buyer_is_maker else "buy",
            timestamp if timestamp.__class__ is int else _time(timestamp, "trade", "T"),
        )
        return True

    return lambda stream: trade if stream.endswith("@trade") else None


class _Update(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    first_id: Number | None = field(name="U", default=None)
    last_id: Number | UnsetType | None = field(name="u", default=UNSET)
    previous_id: Number | None = field(name="pu", default=None)
    timestamp: Number | None = field(name="E", default=None)
    bids: Raw = field(name="b", default=_NO_LEVELS)
    asks: Raw = field(name="a", default=_NO_LEVELS)


class _UpdateMessage(Struct, gc=False):
    data: _Update


class _Snapshot(Struct, gc=False):
    last_id: Number | None = field(name="lastUpdateId")
    bids: list[list[str | Number | None]]
    asks: list[list[str | Number | None]]
    timestamp: Number | UnsetType | None = field(name="T", default=UNSET)


class _SnapshotMessage(Struct, gc=False):
    data: _Snapshot


_Levels = dict[str | Number, str | Number]
_decode_update: Final = Decoder(_UpdateMessage).decode
_decode_snapshot: Final = Decoder(_SnapshotMessage).decode
_decode_levels: Final = Decoder(list[list[str | Number]]).decode


class _Book:
    """The book of one symbol: updates are kept until its snapshot comes, then folded into it.

    A live one that lost an update, or whose snapshot does not join, waits for a newer snapshot.
    """

    __slots__ = (
        "_checks_ids",
        "_emitter",
        "_joined",
        "_kept",
        "_last_id",
        "_live",
        "_snapshot_id",
        "_symbol",
    )

    def __init__(self, symbol: str, making: Making) -> None:
        self._symbol = symbol
        self._emitter = making.emitter
        self._live = making.live
        self._checks_ids = making.checks_ids
        self._snapshot_id: Number | None = None
        self._joined = False
        self._last_id: Number | UnsetType | None = None
        self._kept: deque[_Update] = deque(maxlen=_KEPT_UPDATES)

    def update(self, line: bytes) -> bool:
        update = _decode_update(line).data
        snapshot_id = self._snapshot_id
        if snapshot_id is None:
            self._kept.append(update)
        elif self._is_next(update, snapshot_id):
            timestamp = update.timestamp
            self._emitter.book_change(
                self._symbol,
                False,
                update.bids,
                update.asks,
                timestamp if timestamp.__class__ is int else _time(timestamp, "depth", "E"),
            )
        return True

    def snapshot(self, line: bytes) -> bool:
        if self._snapshot_id is not None:  # only the first one counts
            return True
        snapshot = _decode_snapshot(line).data
        snapshot_id = snapshot.last_id or 0
        bids = _by_price(snapshot.bids)
        asks = _by_price(snapshot.asks)
        for update in self._kept:
            if self._is_next(update, snapshot_id):
                _apply(bids, update.bids)
                _apply(asks, update.asks)
        self._snapshot_id = snapshot_id
        self._kept.clear()
        timestamp = snapshot.timestamp
        self._emitter.book_change(
            self._symbol,
            True,
            list(bids.items()),
            list(asks.items()),
            None if timestamp is UNSET else _time(timestamp, "depthSnapshot", "T"),
        )
        return True

    def _is_next(self, update: _Update, snapshot_id: Number) -> bool:
        """Tell whether an update is newer than the snapshot; the first such one must join it."""
        last_id = update.last_id
        if last_id is not UNSET and (last_id or 0) < snapshot_id:
            return False
        if update.symbol != self._symbol:
            raise MapperError("depth", f"an update of {update.symbol} in {self._symbol}'s stream")
        if not self._joined:
            self._join(update, snapshot_id)
        elif self._checks_ids and update.previous_id != self._last_id:
            self._start_over(update)
            raise LostUpdateError("depth", self._symbol, self._last_id, update.previous_id)
        self._last_id = last_id
        return True

    def _join(self, update: _Update, snapshot_id: Number) -> None:
        first_id = update.first_id
        covers = first_id is not None and first_id <= snapshot_id
        if not covers and update.previous_id != snapshot_id:
            if self._live:
                self._start_over(update)
                ids = f"{update.first_id} to {update.last_id}"
                raise BookGapError("depth", self._symbol, snapshot_id, ids)
            log.debug("book snapshot and updates do not join", extra={"symbol": self._symbol})
        self._joined = True

    def _start_over(self, update: _Update) -> None:
        """Wait for a snapshot that joins this update, which is kept unless it is already."""
        self._joined = False
        if self._snapshot_id is not None:
            self._snapshot_id = None
            self._kept.append(update)


def _by_price(levels: list[list[str | Number | None]]) -> _Levels:
    """Key levels by their price as it is written: of equal ones the last amount counts."""
    try:
        return {level[0] or 0: level[1] or 0 for level in levels}
    except IndexError:
        raise MapperError("depthSnapshot", "a level without price and amount") from None


def _apply(levels: _Levels, update: Raw) -> None:
    for price, amount, *_ in _decode_levels(update):
        if float(amount or 0):
            levels[price] = amount
        else:
            levels.pop(price, None)


def _book_changes(making: Making) -> Route:
    books: dict[str, _Book] = {}

    def route(stream: str) -> Handler | None:
        name, _, channel = stream.partition("@")
        if not channel.startswith("depth"):
            return None
        symbol = name.upper()
        book = books.get(symbol)
        if book is None:
            book = books[symbol] = _Book(symbol, making)
        return book.snapshot if channel == "depthSnapshot" else book.update

    return route


class _TickerPart(Struct, gc=False):
    """A mark price, a 24 h ticker or an open interest, told apart by `event`."""

    event: str | None = field(name="e", default=None)
    symbol: str | UnsetType = field(name="s", default=UNSET)
    polled_symbol: str | UnsetType = field(name="symbol", default=UNSET)
    timestamp: Number | None = field(name="E", default=None)
    mark_price: Sent = field(name="p", default=UNSET)
    index_price: Sent = field(name="i", default=UNSET)
    funding_rate: Sent = field(name="r", default=UNSET)
    funding_timestamp: Number | UnsetType | None = field(name="T", default=UNSET)
    last_price: Sent = field(name="c", default=UNSET)
    open_interest: Sent = field(name="openInterest", default=UNSET)


class _TickerMessage(Struct, gc=False):
    data: _TickerPart


def _derivative_tickers(making: Making) -> Route:
    decode = Decoder(_TickerMessage).decode
    emit = making.emitter.derivative_ticker

    def derivative_ticker(line: bytes) -> bool:
        part = decode(line).data
        symbol = part.polled_symbol if part.symbol is UNSET else part.symbol
        if symbol is UNSET:
            raise MapperError("ticker", "no symbol")
        timestamp = None
        mark = index = rate = last = None
        funding: int | None = None
        if part.event == "markPriceUpdate":
            mark = required(part.mark_price, "markPrice", "p")
            # Dated futures have an empty rate, or 0 as its time.
            if part.funding_rate not in (UNSET, "") and part.funding_timestamp != 0:
                rate = required(part.funding_rate, "markPrice", "r")
                funding = _time(part.funding_timestamp, "markPrice", "T")
            index = optional(part.index_price)
            timestamp = int(part.timestamp or 0)
        elif part.event == "24hrTicker":
            last = required(part.last_price, "ticker", "c")
            timestamp = int(part.timestamp or 0)
        emit(
            symbol,
            timestamp,
            last_price=last,
            open_interest=optional(part.open_interest),
            funding_rate=rate,
            funding_timestamp=funding,
            index_price=index,
            mark_price=mark,
        )
        return True

    def route(stream: str) -> Handler | None:
        wanted = "@markPrice" in stream or stream.endswith(("@ticker", "@openInterest"))
        return derivative_ticker if wanted else None

    return route


class _Order(Struct, gc=False):
    status: str | None = field(name="X", default=None)
    symbol: str | None = field(name="s", default=None)
    side: str | None = field(name="S", default=None)
    price: Sent = field(name="p", default=UNSET)
    amount: Sent = field(name="z", default=UNSET)
    timestamp: Number | None = field(name="T", default=None)


class _ForceOrder(Struct, gc=False):
    order: _Order = field(name="o")


class _ForceOrderMessage(Struct, gc=False):
    data: _ForceOrder


def _liquidations(making: Making) -> Route:
    decode = Decoder(_ForceOrderMessage).decode
    emit = making.emitter.liquidation

    def liquidation(line: bytes) -> bool:
        order = decode(line).data.order
        if order.status != "FILLED":
            return True
        if order.symbol is None:
            raise MapperError("forceOrder", "no symbol")
        emit(
            order.symbol,
            None,
            required(order.price, "forceOrder", "p"),
            required(order.amount, "forceOrder", "z"),
            "sell" if order.side == "SELL" else "buy",
            _time(order.timestamp, "forceOrder", "T"),
        )
        return True

    return lambda stream: liquidation if stream.endswith("@forceOrder") else None


class _BookTicker(Struct, gc=False):
    symbol: str = field(name="s")
    bid_price: Sent = field(name="b", default=UNSET)
    bid_amount: Sent = field(name="B", default=UNSET)
    ask_price: Sent = field(name="a", default=UNSET)
    ask_amount: Sent = field(name="A", default=UNSET)
    timestamp: Number | UnsetType | None = field(name="E", default=UNSET)


class _BookTickerMessage(Struct, gc=False):
    data: _BookTicker


def _book_tickers(making: Making) -> Route:
    decode = Decoder(_BookTickerMessage).decode
    emit = making.emitter.book_ticker

    def book_ticker(line: bytes) -> bool:
        row = decode(line).data
        timestamp = row.timestamp
        emit(
            row.symbol,
            row.ask_amount or optional(row.ask_amount),
            row.ask_price or optional(row.ask_price),
            row.bid_price or optional(row.bid_price),
            row.bid_amount or optional(row.bid_amount),
            None if timestamp is UNSET else _time(timestamp, "bookTicker", "E"),
        )
        return True

    return lambda stream: book_ticker if stream.endswith("@bookTicker") else None


_FUTURES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Making], Route]]]] = {
    "trade": (("trade",), _trades),
    "book_change": (("depth", "depthSnapshot"), _book_changes),
    "derivative_ticker": (("markPrice", "ticker", "openInterest"), _derivative_tickers),
    "liquidation": (("forceOrder",), _liquidations),
    "book_ticker": (("bookTicker",), _book_tickers),
}


def _mapper(making: Making) -> Handler:
    routes = [_FUTURES[each][1](making) for each in making.forms]
    envelope = Decoder(_Envelope).decode

    def route(stream: str) -> Handler | None:
        # A stream belongs to one type at most.
        return next((h for r in routes if (h := r(stream)) is not None), None)

    return dispatcher(b'{"stream":"', lambda line: envelope(line).stream, route)


def _streams(speeds: Mapping[str, str]) -> Subscribe:
    """Subscribe with a message per channel; some channels come in several speeds."""

    def subscribe(filters: Sequence[Filter], _: Session) -> Iterator[Outgoing]:
        for number, each in enumerate(filters, 1):
            channel = each.channel + speeds.get(each.channel, "")
            names = [f"{symbol}@{channel}" for symbol in each.symbols or ()]
            yield {"method": "SUBSCRIBE", "params": names, "id": number}

    return subscribe


def _weight_limit(info: Any) -> int | None:
    """Find what the exchange allows in a minute among its rate limits."""
    limits = at(info, "rateLimits")
    for each in limits if isinstance(limits, list) else ():
        if at(each, "rateLimitType") == "REQUEST_WEIGHT" and isinstance(at(each, "limit"), int):
            return int(each["limit"])
    return None


def _budget(info: str, per_minute: int, reserve: int) -> Budget:
    return Budget(
        per_minute=per_minute,
        reserve=reserve,
        header="x-mbx-used-weight-1m",
        info=info,
        read=_weight_limit,
    )


def _depth_snapshot(url: str, weight: int) -> Snapshot:
    return Snapshot(
        channel="depthSnapshot",
        deltas="depth",
        url=url + "?symbol={SYMBOL}&limit=1000",
        render=generated('{"stream":"{symbol}@depthSnapshot","generated":true,"data":<answer>}'),
        weight=weight,
        at_once=4,
    )


def _open_interest(url: str, every_s: float) -> Poller:
    return Poller(
        channel="openInterest",
        urls=(url + "?symbol={SYMBOL}",),
        render=generated('{"stream":"{symbol}@openInterest","generated":true,"data":<answer>}'),
        every_s=every_s,
    )


_ACK: Final = null("result")
_NOT_A_STREAM: Final = either(present("error"), both(absent("stream"), negated(_ACK)))
_PUBLIC: Final = frozenset(("bookTicker", "depth", "depthSnapshot", "trade"))
_NATIVE: Final = subscriptions({"method": "SUBSCRIBE"}, "params", symbol_first("@"))

_FUTURES_LIVE: Final = Dialect(
    endpoints=(
        Endpoint(name="public", url="wss://fstream.binance.com/public/stream", channels=_PUBLIC),
        Endpoint(name="market", url="wss://fstream.binance.com/market/stream"),
    ),
    subscribe=_streams({"depth": "@0ms", "markPrice": "@1s"}),
    data=(b'{"stream":"',),
    acks=_ACK,
    errors=_NOT_A_STREAM,
    snapshots=(_depth_snapshot("https://fapi.binance.com/fapi/v1/depth", weight=20),),
    pollers=(_open_interest("https://fapi.binance.com/fapi/v1/openInterest", every_s=5),),
    budget=_budget("https://fapi.binance.com/fapi/v1/exchangeInfo", 2400, reserve=160),
    quiet=frozenset(("trade", "forceOrder")),
    max_streams=1024,
    max_messages_per_s=10,
)


EXCHANGES: Final = (
    Exchange(
        name="binance-futures",
        types={
            each: (Era(tuple(Channel(name, str.lower) for name in channels)),)
            for each, (channels, _) in _FUTURES.items()
        },
        make=_mapper,
        live=_FUTURES_LIVE,
        subscriptions=_NATIVE,
    ),
)
