"""Binance: streams named {symbol}@{channel}, books that start with a REST snapshot."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field, json
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict, BoundedDict
from tardis_machine.engine import KEEP_OR_LOCAL, LATEST_KNOWN, PAIRS
from tardis_machine.engine.shapes import (
    Amount,
    AskAmount,
    AskPrice,
    Asks,
    BidAmount,
    BidPrice,
    Bids,
    KernelShape,
    LastId,
    Milliseconds,
    NumberId,
    Object,
    Price,
    Symbol,
    TakerSide,
    Unless,
    Whole,
)
from tardis_machine.exchanges.base.book_joins import JoinedBook, apply_updates
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler, KernelHandler, prefixed
from tardis_machine.exchanges.base.dialect import (
    DAY_S,
    AnswerError,
    Budget,
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Poller,
    SnapshotRequest,
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
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    text,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions, symbol_first
from tardis_machine.history.filters import Filter

Number = int | float
_NO_LEVELS: Final = Raw(b"[]")
_OFF_BOOK: Final = frozenset(("INSURANCE_FUND", "ADL"))


class _Trade(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="q", default=UNSET)
    timestamp: Number | None = field(name="T", default=None)
    id: str | Number | UnsetType | None = field(name="t", default=UNSET)
    buyer_is_maker: Any = field(name="m", default=None)
    origin: str | None = field(name="X", default=None)


class _TradeMessage(Struct, gc=False):
    data: _Trade


def trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TradeMessage).decode
    emit = context.emitter.trade

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
            number if number.__class__ is int else text(number),
            row.price or number_or_error(row.price, "trade", "p"),
            row.amount or number_or_error(row.amount, "trade", "q"),
            "sell" if row.buyer_is_maker else "buy",
            timestamp if timestamp.__class__ is int else time(timestamp, "trade", "T"),
        )
        return True

    handler = KernelHandler(trade, _TRADE)
    return lambda stream: handler if stream.endswith("@trade") else None


_TRADE: Final = KernelShape(
    emits="trade",
    fields={
        "data": Object(
            {
                "s": Symbol(),
                "t": NumberId(),
                "p": Price(text=True),
                "q": Amount(text=True),
                "T": Milliseconds(),
                "m": TakerSide(buy=False, sell=True),
                "X": Unless(tuple(_OFF_BOOK)),
            }
        )
    },
)


class DepthUpdate(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    first_id: Number | None = field(name="U", default=None)
    last_id: Number | UnsetType | None = field(name="u", default=UNSET)
    previous_id: Number | None = field(name="pu", default=None)
    timestamp: Number | None = field(name="E", default=None)
    bids: Raw = field(name="b", default=_NO_LEVELS)
    asks: Raw = field(name="a", default=_NO_LEVELS)


class _UpdateMessage(Struct, gc=False):
    data: DepthUpdate


class _Snapshot(Struct, gc=False):
    last_id: Number | None = field(name="lastUpdateId")
    bids: list[list[str | Number | None]]
    asks: list[list[str | Number | None]]
    timestamp: Number | UnsetType | None = field(name="T", default=UNSET)


class _SnapshotMessage(Struct, gc=False):
    data: _Snapshot


_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={
        "data": Object(
            {
                "E": Milliseconds(),
                "s": Symbol(),
                "U": Whole(),
                "u": LastId(),
                "pu": Whole(),
                "b": Bids(PAIRS),
                "a": Asks(PAIRS),
            }
        )
    },
)
_decode_update: Final = Decoder(_UpdateMessage).decode
_decode_snapshot: Final = Decoder(_SnapshotMessage).decode


class Book(JoinedBook[DepthUpdate]):
    """The book of one symbol."""

    __slots__ = ("_emit",)

    def __init__(self, symbol: str, context: MapperContext) -> None:
        super().__init__(symbol, "depth", context)
        self._emit = context.emitter.book_change

    def update(self, line: bytes) -> bool:
        update = _decode_update(line).data
        if self.accept(update):
            symbol = update.symbol
            if symbol is None:
                raise MapperError("depth", "no symbol")
            timestamp = update.timestamp
            self._emit(
                symbol,
                False,
                update.bids,
                update.asks,
                timestamp if timestamp.__class__ is int else time(timestamp, "depth", "E"),
            )
        return True

    def snapshot(self, line: bytes) -> bool:
        if self.has_snapshot:  # later snapshots are ignored
            return True
        snapshot = _decode_snapshot(line).data
        snapshot_id = snapshot.last_id or 0
        newer = self.updates_after(snapshot_id)
        timestamp = snapshot.timestamp
        self._emit(
            self._symbol,
            True,
            apply_updates(snapshot.bids, [update.bids for update in newer]),
            apply_updates(snapshot.asks, [update.asks for update in newer]),
            None if timestamp is UNSET else time(timestamp, "depthSnapshot", "T"),
        )
        self.start(snapshot_id, newer)
        return True


class _SpotBook(Book):
    """A book whose first update has the snapshot's id plus 1; a new market's snapshot has id -1."""

    __slots__ = ()

    def joins(self, update: DepthUpdate, snapshot_id: Number) -> bool:
        return snapshot_id == -1 or super().joins(update, snapshot_id)

    def previous_id(self, update: DepthUpdate) -> Number | None:
        return None if update.first_id is None else update.first_id - 1


class _FuturesBook(Book):
    """A book whose updates overlap with the snapshot, and name the one before them."""

    overlaps = True
    __slots__ = ()


def _close(book: Book) -> None:
    book.gate.close()


def book_changes(book_type: type[Book]) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        books = BoundedDefaultDict[str, Book](lambda symbol: book_type(symbol, context), _close)

        def handler_of(stream: str) -> Handler | KernelHandler | None:
            name, _, channel = stream.partition("@")
            if not channel.startswith("depth"):
                return None
            book = books[name.upper()]
            if channel == "depthSnapshot":
                return book.snapshot
            return KernelHandler(book.update, _UPDATE, book.gate)

        return handler_of

    return make


class _TickerData(Struct, gc=False):
    """A mark price, a 24 h ticker or an open interest, distinguished by `event`."""

    event: str | None = field(name="e", default=None)
    symbol: str | UnsetType = field(name="s", default=UNSET)
    polled_symbol: str | UnsetType = field(name="symbol", default=UNSET)
    timestamp: Number | None = field(name="E", default=None)
    mark_price: JsonNumber = field(name="p", default=UNSET)
    index_price: JsonNumber = field(name="i", default=UNSET)
    funding_rate: JsonNumber = field(name="r", default=UNSET)
    funding_timestamp: Number | UnsetType | None = field(name="T", default=UNSET)
    last_price: JsonNumber = field(name="c", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)


class _TickerMessage(Struct, gc=False):
    data: _TickerData


class _IndexPrice(Struct, gc=False):
    pair: str = field(name="i")
    price: JsonNumber = field(name="p", default=UNSET)


class _IndexPriceMessage(Struct, gc=False):
    data: _IndexPrice


def _pair(symbol: str) -> str:
    """Return the pair of a contract, after which its index is named."""
    return symbol.partition("_")[0]


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    decode_index = Decoder(_IndexPriceMessage).decode
    emit = context.emitter.derivative_ticker
    index_prices = BoundedDict[str, str | Number]()

    def index_price(line: bytes) -> bool:
        row = decode_index(line).data
        index_prices[row.pair] = number_or_error(row.price, "indexPrice", "p")
        return True

    def derivative_ticker(line: bytes) -> bool:
        message = decode(line).data
        symbol = message.polled_symbol if message.symbol is UNSET else message.symbol
        if symbol is UNSET:
            raise MapperError("ticker", "no symbol")
        timestamp: int | None = KEEP_OR_LOCAL
        mark = rate = last = None
        index = index_prices.get(_pair(symbol)) if index_prices else None
        funding: int | None = None
        if message.event == "markPriceUpdate":
            mark = number_or_error(message.mark_price, "markPrice", "p")
            # Dated futures have an empty rate, or 0 as its time.
            if message.funding_rate not in (UNSET, "") and message.funding_timestamp != 0:
                rate = number_or_error(message.funding_rate, "markPrice", "r")
                funding = time(message.funding_timestamp, "markPrice", "T")
            if message.index_price is not UNSET:
                index = message.index_price or 0
            timestamp = int(message.timestamp or LATEST_KNOWN)
        elif message.event == "24hrTicker":
            last = number_or_error(message.last_price, "ticker", "c")
            timestamp = int(message.timestamp or LATEST_KNOWN)
        emit(
            symbol,
            timestamp,
            last_price=last,
            open_interest=number_if_sent(message.open_interest),
            funding_rate=rate,
            funding_timestamp=funding,
            index_price=index,
            mark_price=mark,
        )
        return True

    def handler_of(stream: str) -> Handler | None:
        if "@indexPrice" in stream:
            return index_price
        wanted = "@markPrice" in stream or stream.endswith(("@ticker", "@openInterest"))
        return derivative_ticker if wanted else None

    return handler_of


class _Order(Struct, gc=False):
    status: str | None = field(name="X", default=None)
    symbol: str | None = field(name="s", default=None)
    side: str | None = field(name="S", default=None)
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="z", default=UNSET)
    timestamp: Number | None = field(name="T", default=None)


class _ForceOrder(Struct, gc=False):
    order: _Order = field(name="o")


class _ForceOrderMessage(Struct, gc=False):
    data: _ForceOrder


def liquidations(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_ForceOrderMessage).decode
    emit = context.emitter.liquidation

    def liquidation(line: bytes) -> bool:
        order = decode(line).data.order
        if order.status != "FILLED":
            return True
        if order.symbol is None:
            raise MapperError("forceOrder", "no symbol")
        emit(
            order.symbol,
            None,
            number_or_error(order.price, "forceOrder", "p"),
            number_or_error(order.amount, "forceOrder", "z"),
            "sell" if order.side == "SELL" else "buy",
            time(order.timestamp, "forceOrder", "T"),
        )
        return True

    return lambda stream: liquidation if stream.endswith("@forceOrder") else None


class _BookTicker(Struct, gc=False):
    symbol: str = field(name="s")
    bid_price: JsonNumber = field(name="b", default=UNSET)
    bid_amount: JsonNumber = field(name="B", default=UNSET)
    ask_price: JsonNumber = field(name="a", default=UNSET)
    ask_amount: JsonNumber = field(name="A", default=UNSET)
    timestamp: Number | UnsetType | None = field(name="E", default=UNSET)


class _BookTickerMessage(Struct, gc=False):
    data: _BookTicker


_BOOK_TICKER: Final = KernelShape(
    emits="book_ticker",
    fields={
        "data": Object(
            {
                "s": Symbol(),
                "b": BidPrice(text=True),
                "B": BidAmount(text=True),
                "a": AskPrice(text=True),
                "A": AskAmount(text=True),
                "E": Milliseconds(optional=True),
            }
        )
    },
)


def book_tickers(
    read: Callable[[JsonNumber], str | Number | None],
) -> Callable[[MapperContext], ChannelHandlers]:
    """Return the mapper of best bids and asks; `read` decides on empty ones."""

    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_BookTickerMessage).decode
        emit = context.emitter.book_ticker

        def book_ticker(line: bytes) -> bool:
            row = decode(line).data
            timestamp = row.timestamp
            emit(
                row.symbol,
                row.ask_amount or read(row.ask_amount),
                row.ask_price or read(row.ask_price),
                row.bid_price or read(row.bid_price),
                row.bid_amount or read(row.bid_amount),
                None if timestamp is UNSET else time(timestamp, "bookTicker", "E"),
            )
            return True

        handler = KernelHandler(book_ticker, _BOOK_TICKER)
        return lambda stream: handler if stream.endswith("@bookTicker") else None

    return make


STREAMS: Final = prefixed(b'{"stream":"', "stream")


def streams(speeds: Mapping[str, str]) -> Subscribe:
    """Yield a subscribe message per channel; some channels have several speeds."""

    def subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
        for number, each in enumerate(filters, 1):
            channel = each.channel + speeds.get(each.channel, "")
            names = [f"{symbol}@{channel}" for symbol in each.symbols or ()]
            yield {"method": "SUBSCRIBE", "params": names, "id": number}

    return subscribe


def _weight_limit(info: Any) -> int | None:
    """Return the request weight per minute from the exchange's rate limits."""
    limits = at(info, "rateLimits")
    for each in limits if isinstance(limits, list) else ():
        if at(each, "rateLimitType") == "REQUEST_WEIGHT" and isinstance(at(each, "limit"), int):
            return int(each["limit"])
    return None


def budget(info: str, per_minute: int, reserve: int) -> Budget:
    return Budget(
        per_minute=per_minute,
        reserve=reserve,
        header="x-mbx-used-weight-1m",
        info=info,
        read=_weight_limit,
    )


_depth_message: Final = generated(
    '{"stream":"{symbol}@depthSnapshot","generated":true,"data":<answer>}'
)


def _render_depth(symbol: str, answers: Sequence[bytes]) -> Iterable[bytes]:
    """Return a book snapshot's message; raise AnswerError if it names another symbol."""
    name = at(json.decode(answers[0]), "symbol")
    if name is not None and str(name).upper() != symbol.upper():
        raise AnswerError(f"a book of {name} instead of {symbol.upper()}")
    return _depth_message(symbol, answers)


def depth_snapshot(url: str, weight: int) -> SnapshotRequest:
    return SnapshotRequest(
        channel="depthSnapshot",
        deltas="depth",
        url=url + "?symbol={SYMBOL}&limit=1000",
        render=_render_depth,
        weight=weight,
        at_once=4,
    )


def open_interest(url: str, every_s: float) -> Poller:
    return Poller(
        channel="openInterest",
        urls=(url + "?symbol={SYMBOL}",),
        render=generated('{"stream":"{symbol}@openInterest","generated":true,"data":<answer>}'),
        every_s=every_s,
    )


ACK: Final = null("result")
_NOT_A_STREAM: Final = either(present("error"), both(absent("stream"), negated(ACK)))
_PUBLIC: Final = frozenset(("bookTicker", "depth", "depthSnapshot", "trade"))
NATIVE: Final = subscriptions({"method": "SUBSCRIBE"}, "params", symbol_first("@"))


def _spot_live(url: str, rest: str) -> Dialect:
    return Dialect(
        endpoints=(Endpoint(url=url),),
        subscribe=streams({"depth": "@100ms"}),
        data=(b'{"stream":"',),
        acks=ACK,
        errors=_NOT_A_STREAM,
        snapshots=(depth_snapshot(f"{rest}/api/v1/depth", weight=10),),
        budget=budget(f"{rest}/api/v1/exchangeInfo", 1200, reserve=80),
        quiet=frozenset(("trade",)),
        max_streams=1024,
        life_s=DAY_S,
        max_messages_per_s=5,
    )


_FUTURES_LIVE: Final = Dialect(
    endpoints=(
        Endpoint(name="public", url="wss://fstream.binance.com/public/stream", channels=_PUBLIC),
        Endpoint(name="market", url="wss://fstream.binance.com/market/stream"),
    ),
    subscribe=streams({"depth": "@0ms", "markPrice": "@1s"}),
    data=(b'{"stream":"',),
    acks=ACK,
    errors=_NOT_A_STREAM,
    snapshots=(depth_snapshot("https://fapi.binance.com/fapi/v1/depth", weight=20),),
    pollers=(open_interest("https://fapi.binance.com/fapi/v1/openInterest", every_s=5),),
    budget=budget("https://fapi.binance.com/fapi/v1/exchangeInfo", 2400, reserve=160),
    quiet=frozenset(("trade", "forceOrder")),
    max_streams=1024,
    life_s=DAY_S,
    max_messages_per_s=10,
)

_DELIVERY_LIVE: Final = replace(
    _FUTURES_LIVE,
    endpoints=(Endpoint(url="wss://dstream.binance.com/stream"),),
    subscribe=streams({"depth": "@0ms", "markPrice": "@1s", "indexPrice": "@1s"}),
    snapshots=(depth_snapshot("https://dapi.binance.com/dapi/v1/depth", weight=20),),
    pollers=(open_interest("https://dapi.binance.com/dapi/v1/openInterest", every_s=5),),
    budget=budget("https://dapi.binance.com/dapi/v1/exchangeInfo", 2400, reserve=160),
)


def lower_channel(name: str) -> Channel:
    return Channel(name, str.lower)


def era(make: Callable[[MapperContext], ChannelHandlers], *channels: str) -> tuple[Era]:
    return (Era(tuple(map(lower_channel, channels)), make),)


_SPOT: Final = {
    "trade": era(trades, "trade"),
    "book_change": era(book_changes(_SpotBook), "depth", "depthSnapshot"),
    "book_ticker": era(book_tickers(number_if_sent), "bookTicker"),
}
_FUTURES: Final = {
    "trade": era(trades, "trade"),
    "book_change": era(book_changes(_FuturesBook), "depth", "depthSnapshot"),
    "derivative_ticker": era(_derivative_tickers, "markPrice", "ticker", "openInterest"),
    "liquidation": era(liquidations, "forceOrder"),
    "book_ticker": era(book_tickers(number_if_sent), "bookTicker"),
}
_INDEX: Final = Channel("indexPrice", lambda symbol: _pair(symbol.lower()))

EXCHANGES: Final = (
    Exchange(
        name="binance",
        types=_SPOT,
        dispatch=STREAMS,
        live=_spot_live(
            "wss://stream.binance.com/stream?timeUnit=microsecond", "https://api.binance.com"
        ),
        subscriptions=NATIVE,
    ),
    Exchange(
        name="binance-us",
        types=_SPOT,
        dispatch=STREAMS,
        live=_spot_live("wss://stream.binance.us:9443/stream", "https://api.binance.us"),
        subscriptions=NATIVE,
    ),
    Exchange(
        name="binance-jersey",
        types={each: _SPOT[each] for each in ("trade", "book_change")},
        dispatch=STREAMS,
        live=_spot_live("wss://stream.binance.je:9443/stream", "https://api.binance.je"),
        subscriptions=NATIVE,
        closed="the exchange has closed",
    ),
    Exchange(
        name="binance-futures",
        types=_FUTURES,
        dispatch=STREAMS,
        live=_FUTURES_LIVE,
        subscriptions=NATIVE,
    ),
    Exchange(
        name="binance-delivery",
        types=_FUTURES
        | {
            "derivative_ticker": (
                Era(
                    (*map(lower_channel, ("markPrice", "ticker", "openInterest")), _INDEX),
                    _derivative_tickers,
                ),
            )
        },
        dispatch=STREAMS,
        live=_DELIVERY_LIVE,
        subscriptions=NATIVE,
    ),
)
