"""WOO X: names end with the channel until version 3 of the API and begin with it since."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict, BoundedDict
from tardis_machine.engine import PAIRS, Emitter, Layout, Objects
from tardis_machine.exchanges.base.channels import (
    AllHandlers,
    ChannelHandlers,
    Handler,
    SharedDecoder,
    find,
    keyed,
    named,
    prefixed,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    SnapshotRequest,
    at,
    either,
    equals,
    generated,
    pairs,
    present,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_not_empty,
    number_or_error,
    side_unless_sell,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions, symbol_first
from tardis_machine.history.filters import Filter

_V3_SINCE: Final = date("2026-06-29T22:02:00.000Z")
_NO_LEVELS: Final = Raw(b"[]")
_REST_LEVELS: Final = Objects("price", "quantity")
_KEPT_UPDATES: Final = 2000
_FOR_INFORMATION: Final = 0
"""The source of trades that were not made on WOO X: they only show the market's price."""

M = TypeVar("M", "_OldMessage", "_Message")

_topics: Final = prefixed(b'{"topic":"', "topic")


def _requests_too(handlers: AllHandlers, emitter: Emitter | None = None) -> Handler:
    """Dispatch by the name in topic, or in id of requested snapshots (before version 3)."""
    topics = _topics(handlers, emitter)
    requests = keyed("id")(handlers)

    def handle(line: bytes) -> bool:
        if line.startswith(b'{"topic":"'):
            return topics(line)
        # The key may come after the data, or have blanks around it.
        is_request = b'"event":"request"' in line[:256] or find(line, ("event",)) == "request"
        return requests(line) if is_request else topics(line)

    return handle


class _Kept(NamedTuple):
    """An update of a book, and the time of the one before it."""

    previous: JsonTime
    bids: Raw
    asks: Raw
    timestamp: int


class _Book:
    """The book of one symbol, which sends the updates before its snapshot after it."""

    __slots__ = ("_emit", "_kept", "_started_at", "_symbol")

    def __init__(self, symbol: str, context: MapperContext) -> None:
        self._symbol = symbol
        self._emit = context.emitter.book_change
        self._kept: deque[_Kept] = deque(maxlen=_KEPT_UPDATES)
        self._started_at: int | None = None

    def start(self, bids: Raw, asks: Raw, timestamp: int, layout: Layout = PAIRS) -> None:
        self._emit(self._symbol, True, bids, asks, timestamp, layout)
        self._started_at = timestamp
        kept = list(self._kept)
        self._kept.clear()
        for update in kept:
            self.update(update)

    def update(self, update: _Kept) -> None:
        if self._started_at is None:
            self._kept.append(update)
        elif update.previous is UNSET or ticker_time(update.previous) >= self._started_at:
            self._emit(self._symbol, False, update.bids, update.asks, update.timestamp)


def _books(context: MapperContext) -> BoundedDefaultDict[str, _Book]:
    return BoundedDefaultDict(lambda symbol: _Book(symbol, context))


def _channel_last(handlers: Mapping[str, Handler | SharedDecoder[Any]]) -> ChannelHandlers:
    return lambda name: handlers.get(name.rpartition("@")[2])


class _OldRow(Struct, gc=False):
    symbol: str | None = None
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None
    source: Any = None
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    funding_timestamp: JsonTime = field(name="fundingTs", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)


class _OldMessage(Struct, gc=False):
    data: _OldRow
    timestamp: JsonTime = field(name="ts", default=UNSET)


_decode_old: Final = Decoder(_OldMessage).decode


def _old_trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trade(message: _OldMessage) -> bool:
        row = message.data
        if row.source != _FOR_INFORMATION:
            emit(
                symbol(row.symbol, "trade"),
                None,
                number_or_error(row.price, "trade", "price"),
                number_or_error(row.size, "trade", "size"),
                side_unless_sell(row.side, "SELL"),
                time(message.timestamp, "trade", "ts"),
            )
        return True

    return _channel_last({"trade": SharedDecoder(_decode_old, trade)})


class _OldBook(Struct, gc=False):
    symbol: str
    timestamp: JsonTime = field(name="ts", default=UNSET)
    previous: JsonTime = field(name="prevTs", default=UNSET)
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _OldBookMessage(Struct, gc=False):
    data: _OldBook | None = None
    timestamp: JsonTime = field(name="ts", default=UNSET)
    event: str | None = None
    success: bool | None = None


def _old_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldBookMessage).decode
    books = _books(context)

    def update(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        if row is None:
            return False
        timestamp = time(message.timestamp, "orderbookupdate", "ts")
        books[row.symbol].update(_Kept(row.previous, row.bids, row.asks, timestamp))
        return True

    def answer(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        if row is None or message.event != "request" or not message.success:
            return False
        books[row.symbol].start(row.bids, row.asks, time(row.timestamp, "orderbook", "ts"))
        return True

    return _channel_last({"orderbookupdate": update, "orderbook": answer})


def _spot(symbol: str) -> str:
    return symbol.upper().replace("PERP_", "SPOT_", 1)


class _Indexes(BoundedDict[str, JsonNumber]):
    """Index prices by perpetual, which a ticker adds to its next message."""

    __slots__ = ()

    def learn(self, spot: str | None, price: JsonNumber) -> bool:
        self[symbol(spot, "indexprice").replace("SPOT_", "PERP_", 1)] = price
        return True

    def of(self, perpetual: str) -> str | int | float | None:
        return number_if_not_empty(self.get(perpetual))


def _of_perpetuals(emit_row: Callable[[str, M], None]) -> Callable[[M], bool]:
    """Return a handler that ignores spot markets, which tickers use as index prices only."""

    def map_message(message: M) -> bool:
        market = message.data.symbol
        if market is None or not market.startswith("PERP_"):
            return False
        emit_row(market, message)
        return True

    return map_message


def _old_derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker
    indexes = _Indexes()

    def trade(market: str, message: _OldMessage) -> None:
        price, timestamp = number_if_not_empty(message.data.price), ticker_time(message.timestamp)
        emit(market, timestamp, last_price=price, index_price=indexes.of(market))

    def mark_price(market: str, message: _OldMessage) -> None:
        price, timestamp = number_if_not_empty(message.data.price), ticker_time(message.timestamp)
        emit(market, timestamp, mark_price=price, index_price=indexes.of(market))

    def index_price(message: _OldMessage) -> bool:
        return indexes.learn(message.data.symbol, message.data.price)

    def funding(market: str, message: _OldMessage) -> None:
        row = message.data
        emit(
            market,
            ticker_time(message.timestamp),
            funding_rate=number_if_not_empty(row.funding_rate),
            funding_timestamp=time(row.funding_timestamp, "estfundingrate", "fundingTs"),
            index_price=indexes.of(market),
        )

    def open_interest(market: str, message: _OldMessage) -> None:
        amount, timestamp = (
            number_if_not_empty(message.data.open_interest),
            ticker_time(message.timestamp),
        )
        emit(market, timestamp, open_interest=amount, index_price=indexes.of(market))

    return _channel_last(
        {
            "trade": SharedDecoder(_decode_old, _of_perpetuals(trade)),
            "markprice": SharedDecoder(_decode_old, _of_perpetuals(mark_price)),
            "indexprice": SharedDecoder(_decode_old, index_price),
            "estfundingrate": SharedDecoder(_decode_old, _of_perpetuals(funding)),
            "openinterest": SharedDecoder(_decode_old, _of_perpetuals(open_interest)),
        }
    )


class _OldQuote(Struct, gc=False):
    symbol: str
    ask_price: JsonNumber = field(name="ask", default=UNSET)
    ask_amount: JsonNumber = field(name="askSize", default=UNSET)
    bid_price: JsonNumber = field(name="bid", default=UNSET)
    bid_amount: JsonNumber = field(name="bidSize", default=UNSET)


class _OldQuoteMessage(Struct, gc=False):
    data: _OldQuote
    timestamp: JsonTime = field(name="ts", default=UNSET)


def _old_book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldQuoteMessage).decode
    emit = context.emitter.book_ticker

    def quote(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        emit(
            row.symbol,
            number_if_not_empty(row.ask_amount),
            number_if_not_empty(row.ask_price),
            number_if_not_empty(row.bid_price),
            number_if_not_empty(row.bid_amount),
            time(message.timestamp, "bbo", "ts"),
        )
        return True

    return _channel_last({"bbo": quote})


class _Row(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    timestamp: JsonTime = field(name="ts", default=UNSET)
    price: JsonNumber = field(name="px", default=UNSET)
    size: JsonNumber = field(name="sx", default=UNSET)
    side: str | None = field(name="sd", default=None)
    source: Any = field(name="src", default=None)
    funding_rate: JsonNumber = field(name="r", default=UNSET)
    funding_timestamp: JsonTime = field(name="ft", default=UNSET)
    open_interest: JsonNumber = field(name="oi", default=UNSET)


class _Message(Struct, gc=False):
    data: _Row


_decode: Final = Decoder(_Message).decode


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trade(message: _Message) -> bool:
        row = message.data
        if row.source != _FOR_INFORMATION:
            emit(
                symbol(row.symbol, "trade"),
                None,
                number_or_error(row.price, "trade", "px"),
                number_or_error(row.size, "trade", "sx"),
                side_unless_sell(row.side, "SELL"),
                time(row.timestamp, "trade", "ts"),
            )
        return True

    return named({"trade": SharedDecoder(_decode, trade)}, separator="@")


class _BookRow(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    timestamp: JsonTime = field(name="ts", default=UNSET)
    previous: JsonTime = field(name="prevTs", default=UNSET)
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS

    def layout(self) -> Layout:
        """Return the layout: levels of the REST server are objects, those of the stream pairs."""
        both = bytes(self.bids), bytes(self.asks)
        return _REST_LEVELS if any(side.startswith(b"[{") for side in both) else PAIRS


class _BookMessage(Struct, gc=False):
    topic: str
    data: _BookRow
    timestamp: JsonTime = field(name="ts", default=UNSET)
    generated: bool = False


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    books = _books(context)

    def apply(message: _BookMessage) -> bool:
        row = message.data
        # REST answers contain neither symbol nor time.
        named_in_topic = message.topic.partition("@")[2].partition("@")[0]
        book = books[symbol(row.symbol or named_in_topic or None, "orderbookupdate")]
        if message.generated:
            sent = message.timestamp if row.timestamp is UNSET else row.timestamp
            book.start(row.bids, row.asks, time(sent, "orderbook", "ts"), row.layout())
        else:
            timestamp = time(row.timestamp, "orderbookupdate", "ts")
            book.update(_Kept(row.previous, row.bids, row.asks, timestamp))
        return True

    def update(line: bytes) -> bool:
        return apply(decode(line))

    def snapshot(line: bytes) -> bool:
        message = decode(line)
        # Books without `generated` come from the stream, and belong to another channel.
        return message.generated and apply(message)

    return named({"orderbookupdate": update, "orderbook": snapshot}, separator="@")


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker
    indexes = _Indexes()

    def trade(market: str, message: _Message) -> None:
        row = message.data
        price = number_or_error(row.price, "trade", "px")
        index = indexes.of(market)
        emit(market, ticker_time(row.timestamp), last_price=price, index_price=index)

    def mark_price(market: str, message: _Message) -> None:
        row = message.data
        price = number_or_error(row.price, "markprice", "px")
        index = indexes.of(market)
        emit(market, ticker_time(row.timestamp), mark_price=price, index_price=index)

    def index_price(message: _Message) -> bool:
        row = message.data
        return indexes.learn(row.symbol, number_or_error(row.price, "indexprice", "px"))

    def funding(market: str, message: _Message) -> None:
        row = message.data
        emit(
            market,
            ticker_time(row.timestamp),
            funding_rate=number_or_error(row.funding_rate, "estfundingrate", "r"),
            funding_timestamp=time(row.funding_timestamp, "estfundingrate", "ft"),
            index_price=indexes.of(market),
        )

    def open_interest(market: str, message: _Message) -> None:
        row = message.data
        amount = number_or_error(row.open_interest, "openinterest", "oi")
        index = indexes.of(market)
        emit(market, ticker_time(row.timestamp), open_interest=amount, index_price=index)

    return named(
        {
            "trade": SharedDecoder(_decode, _of_perpetuals(trade)),
            "markprice": SharedDecoder(_decode, _of_perpetuals(mark_price)),
            "indexprice": SharedDecoder(_decode, index_price),
            "estfundingrate": SharedDecoder(_decode, _of_perpetuals(funding)),
            "openinterest": SharedDecoder(_decode, _of_perpetuals(open_interest)),
        },
        separator="@",
    )


class _Quote(Struct, gc=False):
    symbol: str = field(name="s")
    timestamp: JsonTime = field(name="ts", default=UNSET)
    ask_price: JsonNumber = field(name="ap", default=UNSET)
    ask_amount: JsonNumber = field(name="aq", default=UNSET)
    bid_price: JsonNumber = field(name="bp", default=UNSET)
    bid_amount: JsonNumber = field(name="bq", default=UNSET)


class _QuoteMessage(Struct, gc=False):
    data: _Quote


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_QuoteMessage).decode
    emit = context.emitter.book_ticker

    def quote(line: bytes) -> bool:
        row = decode(line).data
        emit(
            row.symbol,
            number_if_not_empty(row.ask_amount),
            number_if_not_empty(row.ask_price),
            number_if_not_empty(row.bid_price),
            number_if_not_empty(row.bid_amount),
            time(row.timestamp, "bbo", "ts"),
        )
        return True

    return named({"bbo": quote}, separator="@")


_TOPICS: Final = (
    *("trade", "orderbookupdate", "bbo"),
    *("markprice", "estfundingrate", "openinterest", "indexprice"),
)
_TOPIC_ORDER: Final = {topic: place for place, topic in enumerate(_TOPICS)}


def _place(asked: tuple[str, str]) -> int:
    return _TOPIC_ORDER.get(asked[0], len(_TOPICS))


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    topics: dict[str, list[str]] = {}
    for channel, market in sorted(pairs(filters), key=_place):
        depth = "@50" if channel == "orderbookupdate" else ""
        topics.setdefault(market, []).append(f"{channel}@{market}{depth}")
    for market, its_topics in topics.items():
        yield {"id": market, "cmd": "subscribe", "params": its_topics}


def _reply(message: Any) -> Outgoing | None:
    if at(message, "cmd") == "PING":
        return {"cmd": "PONG"}
    return {"event": "ping"} if at(message, "event") == "ping" else None


def _eras(
    old: Callable[[MapperContext], ChannelHandlers],
    new: Callable[[MapperContext], ChannelHandlers],
    *channels: Channel,
) -> tuple[Era, Era]:
    return Era(channels, old, until=_V3_SINCE, dispatch=_requests_too), Era(channels, new)


_TRADE: Final = Channel("trade", str.upper)

EXCHANGES: Final = (
    Exchange(
        name="woo-x",
        types={
            "trade": _eras(_old_trades, _trades, _TRADE),
            "book_change": _eras(
                _old_book_changes,
                _book_changes,
                Channel("orderbook", str.upper),
                Channel("orderbookupdate", str.upper),
            ),
            "derivative_ticker": _eras(
                _old_derivative_tickers,
                _derivative_tickers,
                _TRADE,
                Channel("markprice", str.upper),
                Channel("estfundingrate", str.upper),
                Channel("openinterest", str.upper),
                Channel("indexprice", _spot, default_symbols=()),
            ),
            "book_ticker": _eras(_old_book_tickers, _book_tickers, Channel("bbo", str.upper)),
        },
        dispatch=_topics,
        live=Dialect(
            endpoints=(Endpoint(url="wss://wss.woox.io/v3/public"),),
            subscribe=_subscribe,
            data=(b'{"topic":"',),
            acks=equals("success", True),
            heartbeats=either(equals("cmd", "PING"), equals("event", "ping")),
            errors=either(equals("success", False), present("errorMsg"), equals("cmd", "ERROR")),
            reply=_reply,
            snapshots=(
                SnapshotRequest(
                    channel="orderbook",
                    deltas="orderbookupdate",
                    url="https://api.woox.io/v3/public/orderbook?symbol={SYMBOL}&maxLevel=50",
                    render=generated(
                        '{"topic":"orderbook@{SYMBOL}@50","ts":<answer.timestamp>,'
                        '"generated":true,"data":<answer.data>}',
                        equals("success", True),
                    ),
                ),
            ),
            quiet=frozenset(("trade",)),
        ),
        subscriptions=subscriptions({"event": "subscribe"}, "topic", symbol_first("@")),
    ),
)
