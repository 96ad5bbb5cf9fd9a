"""Gate.io's spot market: methods with parameters, then channels; three kinds of books over time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict, BoundedSet
from tardis_machine.engine import PAIRS
from tardis_machine.engine.shapes import (
    Absent,
    Amount,
    AskAmount,
    Asks,
    BidAmount,
    Bids,
    Is,
    KernelShape,
    LastId,
    Milliseconds,
    NumberId,
    Object,
    Price,
    Symbol,
    TakerSide,
    Whole,
)
from tardis_machine.exchanges.base.book_joins import JoinedBook, overwrite_levels
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    pairs,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    side_unless_sell,
    symbol,
    time,
)
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.exchanges.gate_io import ACKS, ERRORS, REFUSALS, best_shape, updated_best
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import seconds_ms, seconds_us

_VERSION_4: Final = date("2023-04-29")
_PUSHED_BOOKS: Final = date("2025-08-01")
_NO_LEVELS: Final = Raw(b"[]")


# Until version 4: {"method": …, "params": […]} ----------------------------------------------------


class _OldTrade(Struct, gc=False):
    id: int | str
    seconds: str | float = field(name="time")
    price: JsonNumber = UNSET
    amount: JsonNumber = UNSET
    side: str | None = field(name="type", default=None)


class _OldTrades(Struct, gc=False):
    params: tuple[str, list[_OldTrade]]


def _old_trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldTrades).decode
    emit = context.emitter.trade
    seen = BoundedSet[str]()

    def trades(line: bytes) -> bool:
        pair, rows = decode(line).params
        if pair not in seen:  # the first message repeats trades of the past
            if rows:
                seen.add(pair)
            return True
        for row in reversed(rows):  # rows are sent latest first
            emit(
                pair,
                row.id,
                number_or_error(row.price, "trades", "price"),
                number_or_error(row.amount, "trades", "amount"),
                side_unless_sell(row.side, "sell"),
                seconds_us(row.seconds),
            )
        return True

    return named({"trades.update": trades})


class _OldBook(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    seconds: str | float | UnsetType = field(name="current", default=UNSET)


class _OldBooks(Struct, gc=False):
    params: tuple[bool, _OldBook, str]


def _old_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldBooks).decode
    emit = context.emitter.book_change

    def book_changes(line: bytes) -> bool:
        is_snapshot, book, pair = decode(line).params
        timestamp = None if book.seconds is UNSET else seconds_ms(book.seconds)
        emit(pair, is_snapshot, book.bids, book.asks, timestamp)
        return True

    return named({"depth.update": book_changes})


# Version 4: {"channel": …, "event": …, "result": {…}} ---------------------------------------------


class _Trade(Struct, gc=False):
    id: int | str | None = None
    symbol: str | None = field(name="currency_pair", default=None)
    price: JsonNumber = UNSET
    amount: JsonNumber = UNSET
    side: str | None = None
    milliseconds: JsonNumber = field(name="create_time_ms", default=UNSET)


class _TradeMessage(Struct, gc=False):
    result: _Trade
    event: str | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TradeMessage).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        message = decode(line)
        if message.event != "update":
            return False
        row = message.result
        if row.milliseconds is UNSET or not row.milliseconds:
            raise MapperError("trades", "no time in create_time_ms")
        emit(
            symbol(row.symbol, "trades"),
            row.id,
            number_or_error(row.price, "trades", "price"),
            number_or_error(row.amount, "trades", "amount"),
            side_unless_sell(row.side, "sell"),
            int(float(row.milliseconds)),
        )
        return True

    return named({"spot.trades": KernelHandler(trades, _TRADE)})


_TRADE: Final = KernelShape(
    emits="trade",
    fields={
        "event": Is(("update",)),
        "result": Object(
            {
                "id": NumberId(),
                "create_time_ms": Milliseconds(text=True, cut=True),
                "side": TakerSide(buy="buy", sell="sell"),
                "currency_pair": Symbol(),
                "amount": Amount(text=True),
                "price": Price(text=True),
            }
        ),
    },
)


_Level = list[str | int | float | None]


class _Depth(Struct, gc=False):
    """A REST snapshot, or an update that follows it."""

    snapshot_id: int | None = field(name="id", default=None)
    snapshot_time: JsonNumber = field(name="update", default=UNSET)
    bids: list[_Level] | None = None
    asks: list[_Level] | None = None
    symbol: str | None = field(name="s", default=None)
    timestamp: JsonNumber = field(name="t", default=UNSET)
    first_id: int | None = field(name="U", default=None)
    last_id: int | UnsetType | None = field(name="u", default=UNSET)
    new_bids: Raw = field(name="b", default=_NO_LEVELS)
    new_asks: Raw = field(name="a", default=_NO_LEVELS)

    @property
    def previous_id(self) -> int | None:
        return None if self.first_id is None else self.first_id - 1


class _DepthMessage(Struct, gc=False):
    result: _Depth
    event: str | None = None
    symbol: str | None = None


def _joined_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_DepthMessage).decode
    emit = context.emitter.book_change
    gates = context.emitter.gates()

    def new_book(pair: str) -> JoinedBook[_Depth]:
        return JoinedBook(pair, "order_book_update", context, gates.of(pair))

    books = BoundedDefaultDict(new_book, lambda book: book.gate.close())

    def snapshot(message: _DepthMessage) -> None:
        pair = symbol(message.symbol, "order_book_update")
        book = books[pair]
        if book.has_snapshot:  # later snapshots are ignored
            return
        row = message.result
        snapshot_id = row.snapshot_id or 0
        newer = book.updates_after(snapshot_id)
        emit(
            pair,
            True,
            overwrite_levels(row.bids or (), [update.new_bids for update in newer]),
            overwrite_levels(row.asks or (), [update.new_asks for update in newer]),
            None if row.snapshot_time is UNSET else time(row.snapshot_time, "book", "update"),
        )
        book.start(snapshot_id, newer)

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        if message.event == "snapshot":
            snapshot(message)
            return True
        if message.event != "update":
            return False
        row = message.result
        pair = symbol(row.symbol, "order_book_update")
        if books[pair].accept(row):
            timestamp = time(row.timestamp, "order_book_update", "t")
            emit(pair, False, row.new_bids, row.new_asks, timestamp)
        return True

    return named({"spot.order_book_update": KernelHandler(book_changes, _UPDATE, gates)})


_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={
        "event": Is(("update",)),
        "symbol": Absent(),
        "result": Object(
            {
                "t": Milliseconds(),
                "s": Symbol(),
                "U": Whole(),
                "u": LastId(),
                "b": Bids(PAIRS),
                "a": Asks(PAIRS),
                "id": Absent(),
                "update": Absent(),
                "bids": Absent(),
                "asks": Absent(),
            }
        ),
    },
)


class _Book(Struct, gc=False):
    topic: str | None = field(name="s", default=None)
    timestamp: JsonNumber = field(name="t", default=UNSET)
    full: bool | None = None
    first_id: int | None = field(name="U", default=None)
    last_id: int | None = field(name="u", default=None)
    bids: Raw = field(name="b", default=_NO_LEVELS)
    asks: Raw = field(name="a", default=_NO_LEVELS)


class _Books(Struct, gc=False):
    result: _Book | UnsetType | None = UNSET
    event: str | None = None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Books).decode
    emit = context.emitter.book_change
    ids = UpdateIds("obu", checks_ids=context.checks_ids)

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        book = message.result
        if message.event != "update" or not isinstance(book, _Book):
            return False
        _, _, rest = symbol(book.topic, "obu").partition(".")  # ob.BTC_USDT.400
        pair = symbol(rest.partition(".")[0], "obu")
        if book.full:
            ids.start(pair, book.last_id)
        elif not ids.follow(pair, (book.first_id or 0) - 1, book.last_id):
            return True
        emit(pair, bool(book.full), book.bids, book.asks, time(book.timestamp, "obu", "t"))
        return True

    return named({"spot.obu": context.unchecked(book_changes, _CHANGE)})


_CHANGE: Final = KernelShape(
    emits="book_change",
    fields={
        "event": Is(("update",)),
        "result": Object(
            {
                "t": Milliseconds(),
                "full": Absent(),
                "s": Symbol(after=".", until="."),
                "u": Whole(),
                "U": Whole(),
                "b": Bids(PAIRS),
                "a": Asks(PAIRS),
            }
        ),
    },
)


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        row = updated_best(line)
        if row is None:
            return False
        timestamp = row.milliseconds
        emit(
            symbol(row.symbol, "book_ticker"),
            number_if_sent(row.ask_amount),
            number_if_sent(row.ask_price),
            number_if_sent(row.bid_price),
            number_if_sent(row.bid_amount),
            None if timestamp is UNSET else time(timestamp, "book_ticker", "t"),
        )
        return True

    return named({"spot.book_ticker": KernelHandler(book_tickers, _BEST)})


_BEST: Final = best_shape(BidAmount(text=True), AskAmount(text=True))


def _requests(
    event: str, filters: Sequence[Filter], session: ConnectionContext
) -> Iterator[Outgoing]:
    for channel, pair in pairs(filters):
        head = {"time": session.seconds, "channel": f"spot.{channel}", "event": event}
        if channel == "obu":
            yield head | {"payload": [f"ob.{pair}.400"]}
        else:
            yield head | {"method": f"{channel}.{event}", "payload": [pair]}


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    return _requests("subscribe", filters, session)


def _unsubscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    return _requests("unsubscribe", filters, session)


def _native(message: Any) -> list[Filter] | None:
    """Read methods such as trades.subscribe, whose parameters are pairs or begin with one."""
    method = at(message, "method")
    if not isinstance(method, str) or not method.endswith(".subscribe"):
        return None
    asked = message.get("params") or message.get("payload") or []
    names = [each[0] if isinstance(each, list) else each for each in asked]
    symbols = tuple(name for name in names if isinstance(name, str) and "_" in name)
    return [Filter(method.removesuffix(".subscribe"), symbols)]


def _era(
    make: Callable[[MapperContext], ChannelHandlers],
    channel: str,
    until: int | None = None,
    key: str = "channel",
) -> Era:
    return Era((Channel(channel, str.upper),), make, until, _DISPATCH[key])


_DISPATCH: Final = {key: keyed(key) for key in ("method", "channel")}

EXCHANGES: Final = (
    Exchange(
        name="gate-io",
        types={
            "trade": (
                _era(_old_trades, "trades", _VERSION_4, "method"),
                _era(_trades, "trades"),
            ),
            "book_change": (
                _era(_old_book_changes, "depth", _VERSION_4, "method"),
                _era(_joined_book_changes, "order_book_update", _PUSHED_BOOKS),
                _era(_book_changes, "obu"),
            ),
            "book_ticker": (_era(_book_tickers, "book_ticker"),),
        },
        dispatch=_DISPATCH["channel"],
        live=Dialect(
            endpoints=(Endpoint(url="wss://api.gateio.ws/ws/v4/"),),
            subscribe=_subscribe,
            unsubscribe=_unsubscribe,
            acks=ACKS,
            errors=ERRORS,
            refusals=REFUSALS,
            quiet=frozenset(("trades",)),
        ),
        subscriptions=_native,
    ),
)
