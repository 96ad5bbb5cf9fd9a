"""KuCoin, spot and futures: topics of symbols, books that start from REST snapshots."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict, BoundedDict
from tardis_machine.engine import KEEP_OR_LOCAL, PAIRS, Levels
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
    LevelText,
    Milliseconds,
    Nanoseconds,
    Nonzero,
    Object,
    Price,
    Symbol,
    TakerSide,
    TextId,
    UpdateGate,
)
from tardis_machine.exchanges.base.book_joins import (
    JoinedBook,
    apply_numeric_updates,
    overwrite_levels,
)
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    Handler,
    KernelHandler,
    SharedDecoder,
    keyed,
    named,
)
from tardis_machine.exchanges.base.dialect import (
    AnswerError,
    ConnectionContext,
    Dialect,
    Discovery,
    Endpoint,
    Outgoing,
    Poller,
    SnapshotRequest,
    chunks,
    equals,
    generated,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_not_empty,
    number_if_not_null,
    number_or_error,
    side_unless_sell,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import micros, nanos_ms

Number = int | float
_MAX_TOPICS: Final = 100
_NO_LEVELS: Final = Raw(b"[]")
_EMPTY: Final[tuple[Levels, ...]] = (_NO_LEVELS, Raw(b"null"), [])
_ZERO_PRICE: Final = re.compile(rb'\[\s*"?0*\.?0*(?:[eE][-+]?\d+)?"?\s*,')


def _handlers_of(
    maps: Mapping[str, Callable[[str, bytes], bool]],
    shapes: Mapping[str, KernelShape],
    memory: Callable[[str], UpdateGate] | None = None,
) -> ChannelHandlers:
    """Return handlers of topics such as /market/ticker:BTC-USDT, called with symbol and line."""

    def handler_of(topic: str) -> Handler | KernelHandler | None:
        channel, _, symbol = topic.partition(":")
        make = maps.get(channel)
        if make is None:
            return None
        shape = shapes.get(channel)
        handler = partial(make, symbol)
        if shape is None:
            return handler
        return KernelHandler(handler, shape, None if memory is None else memory(symbol))

    return handler_of


_SYMBOL: Final = Symbol(after=":")


class _Match(Struct, gc=False):
    symbol: str
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None
    id: str | int | None = field(name="tradeId", default=None)
    time: JsonTime = UNSET


class _MatchMessage(Struct, gc=False):
    data: _Match


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_MatchMessage).decode
    emit = context.emitter.trade

    def match(line: bytes) -> bool:
        row = decode(line).data
        emit(
            row.symbol,
            row.id,
            number_or_error(row.price, "market/match", "price"),
            number_or_error(row.size, "market/match", "size"),
            side_unless_sell(row.side, "sell"),
            micros(time(row.time, "market/match", "time") // 1000),
        )
        return True

    return named({"/market/match": KernelHandler(match, _MATCH)}, ":")


_MATCH: Final = KernelShape(
    emits="trade",
    fields={
        "data": Object(
            {
                "symbol": Symbol(),
                "side": TakerSide(buy="buy", sell="sell"),
                "price": Price(text=True),
                "size": Amount(text=True),
                "tradeId": TextId(),
                "time": Nanoseconds(text=True),
            }
        )
    },
)


class _Changes(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _Update(Struct, gc=False):
    changes: _Changes
    first_id: int = field(name="sequenceStart")
    last_id: int = field(name="sequenceEnd")
    time: JsonTime = UNSET

    @property
    def previous_id(self) -> int:
        return self.first_id - 1


class _UpdateMessage(Struct, gc=False):
    data: _Update


class _Snapshot(Struct, gc=False):
    sequence: int | str
    bids: list[list[str | Number | None]] | None = None
    asks: list[list[str | Number | None]] | None = None


class _SnapshotMessage(Struct, gc=False):
    data: _Snapshot | None = None


_decode_levels: Final = Decoder(list[list[str | Number | None]] | None).decode


def _priced(levels: Raw) -> list[list[str | Number | None]]:
    """Return changes without those at price 0, which are about orders outside of the book."""
    return [level[:2] for level in _decode_levels(levels) or () if level and float(level[0] or 0)]


class _Book(JoinedBook[Any]):
    """A book whose first update has the snapshot's id plus 1; a new market's id is 0 or -1."""

    __slots__ = ()

    def joins(self, update: Any, snapshot_id: Number) -> bool:
        return snapshot_id in {0, -1} or super().joins(update, snapshot_id)


def _books(channel: str, context: MapperContext) -> BoundedDefaultDict[str, _Book]:
    return BoundedDefaultDict(
        lambda symbol: _Book(symbol, channel, context), lambda book: book.gate.close()
    )


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_UpdateMessage).decode
    decode_snapshot = Decoder(_SnapshotMessage).decode
    emit = context.emitter.book_change
    books = _books("market/level2", context)

    def level2(symbol: str, line: bytes) -> bool:
        update = decode(line).data
        if books[symbol].accept(update):
            changes = update.changes
            bids: Levels = changes.bids
            asks: Levels = changes.asks
            if _ZERO_PRICE.search(line) is not None:
                bids, asks = _priced(changes.bids), _priced(changes.asks)
            if bids not in _EMPTY or asks not in _EMPTY:
                sent = update.time
                timestamp = None if sent is UNSET else time(sent, "market/level2", "time")
                emit(symbol, False, bids, asks, timestamp)
        return True

    def snapshot(symbol: str, line: bytes) -> bool:
        book = books[symbol]
        if book.has_snapshot:  # later snapshots are ignored
            return True
        content = decode_snapshot(line).data
        if content is None:
            raise MapperError("market/level2Snapshot", f"no data for {symbol}")
        snapshot_id = int(content.sequence)
        newer = book.updates_after(snapshot_id)
        emit(
            symbol,
            True,
            overwrite_levels(content.bids or (), [_priced(each.changes.bids) for each in newer]),
            overwrite_levels(content.asks or (), [_priced(each.changes.asks) for each in newer]),
            None,
        )
        book.start(snapshot_id, newer)
        return True

    return _handlers_of(
        {"/market/level2": level2, "/market/level2Snapshot": snapshot},
        {"/market/level2": _UPDATE},
        lambda symbol: books[symbol].gate,
    )


_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={
        "topic": _SYMBOL,
        "data": Object(
            {
                "changes": Object(
                    {"asks": Asks(PAIRS, priced=True), "bids": Bids(PAIRS, priced=True)}
                ),
                "sequenceEnd": LastId(),
                "sequenceStart": Nonzero(),
                "time": Milliseconds(),
            }
        ),
    },
    filled=True,
)


class _Ticker(Struct, gc=False):
    bid_price: JsonNumber = field(name="bestBid", default=UNSET)
    bid_amount: JsonNumber = field(name="bestBidSize", default=UNSET)
    ask_price: JsonNumber = field(name="bestAsk", default=UNSET)
    ask_amount: JsonNumber = field(name="bestAskSize", default=UNSET)
    time: JsonTime = UNSET


class _TickerMessage(Struct, gc=False):
    data: _Ticker


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.book_ticker

    def ticker(symbol: str, line: bytes) -> bool:
        row = decode(line).data
        emit(
            symbol,
            number_if_not_null(row.ask_amount),
            number_if_not_null(row.ask_price),
            number_if_not_null(row.bid_price),
            number_if_not_null(row.bid_amount),
            time(row.time, "market/ticker", "time"),
        )
        return True

    return _handlers_of({"/market/ticker": ticker}, {"/market/ticker": _TICKER})


_TICKER: Final = KernelShape(
    emits="book_ticker",
    fields={
        "topic": _SYMBOL,
        "data": Object(
            {
                "bestAsk": AskPrice(text=True),
                "bestAskSize": AskAmount(text=True),
                "bestBid": BidPrice(text=True),
                "bestBidSize": BidAmount(text=True),
                "time": Milliseconds(),
            }
        ),
    },
)


class _Execution(Struct, gc=False):
    symbol: str
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None
    id: str | int | None = field(name="tradeId", default=None)
    time: JsonTime = field(name="ts", default=UNSET)


class _ExecutionMessage(Struct, gc=False):
    data: _Execution


_decode_execution: Final = Decoder(_ExecutionMessage).decode
_EXECUTION: Final = "/contractMarket/execution"


def _futures_trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def execution(message: _ExecutionMessage) -> bool:
        row = message.data
        emit(
            row.symbol,
            row.id,
            number_or_error(row.price, _EXECUTION, "price"),
            number_or_error(row.size, _EXECUTION, "size"),
            side_unless_sell(row.side, "sell"),
            nanos_ms(time(row.time, _EXECUTION, "ts")),
        )
        return True

    return named(
        {_EXECUTION: KernelHandler(SharedDecoder(_decode_execution, execution), _FUTURES_TRADE)},
        ":",
    )


_FUTURES_TRADE: Final = KernelShape(
    emits="trade",
    fields={
        "data": Object(
            {
                "symbol": Symbol(),
                "side": TakerSide(buy="buy", sell="sell"),
                "price": Price(text=None),
                "size": Amount(text=None),
                "tradeId": TextId(),
                "ts": Nanoseconds(digits=3),
            }
        )
    },
)


class _FuturesUpdate(Struct, gc=False):
    last_id: int = field(name="sequence")
    change: str
    timestamp: JsonTime = UNSET

    @property
    def first_id(self) -> int:
        return self.last_id

    @property
    def previous_id(self) -> int:
        return self.last_id - 1


class _FuturesUpdateMessage(Struct, gc=False):
    data: _FuturesUpdate


_Level = tuple[str, str]


def _sides(update: _FuturesUpdate) -> tuple[list[_Level], list[_Level]]:
    """Read a change such as 0.21506,sell,0: bids, then asks."""
    price, its_side, amount, *_ = update.change.split(",")
    level = [(price, amount)]
    return (level, []) if its_side == "buy" else ([], level)


def _futures_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_FuturesUpdateMessage).decode
    decode_snapshot = Decoder(_SnapshotMessage).decode
    emit = context.emitter.book_change
    books = _books("contractMarket/level2", context)

    def level2(symbol: str, line: bytes) -> bool:
        update = decode(line).data
        if books[symbol].accept(update):
            timestamp = time(update.timestamp, "contractMarket/level2", "timestamp")
            bids, asks = _sides(update)
            emit(symbol, False, bids, asks, timestamp)
        return True

    def snapshot(symbol: str, line: bytes) -> bool:
        book = books[symbol]
        content = decode_snapshot(line).data
        if book.has_snapshot or content is None:
            return True
        snapshot_id = int(content.sequence)
        newer = book.updates_after(snapshot_id)
        changes = [_sides(each) for each in newer]
        emit(
            symbol,
            True,
            apply_numeric_updates(content.bids or (), [bids for bids, _ in changes]),
            apply_numeric_updates(content.asks or (), [asks for _, asks in changes]),
            None,
        )
        book.start(snapshot_id, newer)
        return True

    return _handlers_of(
        {"/contractMarket/level2": level2, "/contractMarket/level2Snapshot": snapshot},
        {"/contractMarket/level2": _FUTURES_UPDATE},
        lambda symbol: books[symbol].gate,
    )


_FUTURES_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={
        "topic": _SYMBOL,
        "data": Object(
            {
                "sequence": LastId(),
                "change": LevelText(bid="buy", ask="sell"),
                "timestamp": Milliseconds(),
            }
        ),
    },
)


class _FuturesTicker(Struct, gc=False):
    bid_price: JsonNumber = field(name="bestBidPrice", default=UNSET)
    bid_amount: JsonNumber = field(name="bestBidSize", default=UNSET)
    ask_price: JsonNumber = field(name="bestAskPrice", default=UNSET)
    ask_amount: JsonNumber = field(name="bestAskSize", default=UNSET)
    time: JsonTime = field(name="ts", default=UNSET)


class _FuturesTickerMessage(Struct, gc=False):
    data: _FuturesTicker


def _futures_book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_FuturesTickerMessage).decode
    emit = context.emitter.book_ticker

    def ticker(symbol: str, line: bytes) -> bool:
        row = decode(line).data
        emit(
            symbol,
            number_if_not_null(row.ask_amount),
            number_if_not_null(row.ask_price),
            number_if_not_null(row.bid_price),
            number_if_not_null(row.bid_amount),
            nanos_ms(time(row.time, "contractMarket/tickerV2", "ts")),
        )
        return True

    return _handlers_of(
        {"/contractMarket/tickerV2": ticker}, {"/contractMarket/tickerV2": _FUTURES_TICKER}
    )


_FUTURES_TICKER: Final = KernelShape(
    emits="book_ticker",
    fields={
        "topic": _SYMBOL,
        "data": Object(
            {
                "bestBidSize": BidAmount(text=None),
                "bestBidPrice": BidPrice(text=None),
                "bestAskPrice": AskPrice(text=None),
                "bestAskSize": AskAmount(text=None),
                "ts": Nanoseconds(digits=3),
            }
        ),
    },
)


class _Details(Struct, gc=False):
    symbol: str
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)


class _DetailsMessage(Struct, gc=False):
    data: _Details


class _Instrument(Struct, gc=False):
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    timestamp: JsonTime = UNSET


class _InstrumentMessage(Struct, gc=False):
    topic: str
    data: _Instrument
    subject: str | None = None


_decode_details: Final = Decoder(_DetailsMessage).decode
_decode_instrument: Final = Decoder(_InstrumentMessage).decode


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker
    last_prices = BoundedDict[str, str | Number | None]()
    open_interests = BoundedDict[str, str | Number | None]()

    def execution(message: _ExecutionMessage) -> bool:
        last_prices[message.data.symbol] = number_if_not_empty(message.data.price)
        return True

    def details(message: _DetailsMessage) -> bool:
        open_interests[message.data.symbol] = number_if_not_empty(message.data.open_interest)
        return True

    def instrument(message: _InstrumentMessage) -> bool:
        """Emit a ticker of all known values; only a funding rate sets the ticker's time."""
        symbol = message.topic.partition(":")[2]
        row = message.data
        is_funding = message.subject == "funding.rate"
        is_price = message.subject == "mark.index.price"
        emit(
            symbol,
            ticker_time(row.timestamp) if is_funding else KEEP_OR_LOCAL,
            last_price=last_prices.get(symbol),
            open_interest=open_interests.get(symbol),
            funding_rate=number_if_not_null(row.funding_rate) if is_funding else None,
            index_price=number_if_not_null(row.index_price) if is_price else None,
            mark_price=number_if_not_null(row.mark_price) if is_price else None,
        )
        return True

    return named(
        {
            _EXECUTION: SharedDecoder(_decode_execution, execution),
            "/contract/details": SharedDecoder(_decode_details, details),
            "/contract/instrument": SharedDecoder(_decode_instrument, instrument),
        },
        ":",
    )


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    for asked in _futures_subscribe(filters, session):
        yield {**asked, "privateChannel": False}


def _futures_subscribe(
    filters: Sequence[Filter], session: ConnectionContext
) -> Iterator[Mapping[str, Any]]:
    for each in filters:
        for symbols in chunks(each.symbols or (), _MAX_TOPICS):
            topic = f"/{each.channel}:{','.join(symbols)}"
            yield {"id": session.token(), "type": "subscribe", "topic": topic, "response": True}


def _ping(session: ConnectionContext) -> Outgoing:
    return {"id": str(session.now_ms), "type": "ping"}


def _address(answer: Any, session: ConnectionContext) -> str:
    data = answer["data"]
    endpoint = data["instanceServers"][0]["endpoint"]
    return f"{endpoint}?token={data['token']}&connectId={session.token()}"


def _topic(topic: str) -> Iterable[Filter]:
    """Read /market/match:BTC-USDT,ETH-USDT."""
    channel, _, symbols = topic.removeprefix("/").partition(":")
    return (Filter(channel, tuple(symbols.split(",")) if symbols else ()),)


class _Contract(Struct, gc=False):
    symbol: str


class _Contracts(Struct, gc=False):
    data: list[Raw]


_decode_contracts: Final = Decoder(_Contracts).decode
_decode_contract: Final = Decoder(_Contract).decode


def _render_details(_: str, answers: Sequence[bytes]) -> Iterator[bytes]:
    """Yield a message for each contract of an answer."""
    try:
        contracts = [(_decode_contract(each), each) for each in _decode_contracts(answers[0]).data]
    except ValueError:
        shown = answers[0][:200].decode(errors="replace")
        raise AnswerError(f"no contracts in the answer: {shown}") from None
    for contract, text in contracts:
        yield (
            b'{"topic":"/contract/details:%b","type":"message","subject":"contractDetails",'
            b'"generated":true,"data":%b}' % (contract.symbol.encode(), bytes(text))
        )


def _book_snapshot(channel: str, subject: str, url: str) -> SnapshotRequest:
    return SnapshotRequest(
        channel=f"{channel}Snapshot",
        deltas=channel,
        url=url,
        render=generated(
            f'{{"type":"message","generated":true,"topic":"/{channel}Snapshot:{{SYMBOL}}",'
            f'"subject":"{subject}","code":<answer.code>,"data":<answer.data>}}'
        ),
    )


_NATIVE: Final = subscriptions({"type": "subscribe"}, "topic", _topic)
_SPOT_API: Final = "https://api.kucoin.com/api/v1/"
_FUTURES_API: Final = "https://api-futures.kucoin.com/api/v1/"

EXCHANGES: Final = (
    Exchange(
        name="kucoin",
        types={
            "trade": one_era(_trades, "market/match"),
            "book_change": one_era(_book_changes, "market/level2", "market/level2Snapshot"),
            "book_ticker": one_era(_book_tickers, "market/ticker"),
        },
        dispatch=keyed("topic"),
        live=Dialect(
            endpoints=(Endpoint(url=""),),
            discovery=Discovery(url=f"{_SPOT_API}bullet-public", use=_address),
            subscribe=_subscribe,
            acks=equals("type", "welcome", "ack"),
            heartbeats=equals("type", "pong"),
            errors=equals("type", "error"),
            ping=_ping,
            snapshots=(
                _book_snapshot(
                    "market/level2",
                    "trade.l2Snapshot",
                    f"{_SPOT_API}market/orderbook/level2_100?symbol={{SYMBOL}}",
                ),
            ),
            quiet=frozenset(("market/match",)),
            max_streams=300,
        ),
        subscriptions=_NATIVE,
    ),
    Exchange(
        name="kucoin-futures",
        types={
            "trade": one_era(_futures_trades, "contractMarket/execution"),
            "book_change": one_era(
                _futures_book_changes, "contractMarket/level2", "contractMarket/level2Snapshot"
            ),
            "derivative_ticker": one_era(
                _derivative_tickers,
                "contract/instrument",
                "contractMarket/execution",
                "contract/details",
            ),
            "book_ticker": one_era(_futures_book_tickers, "contractMarket/tickerV2"),
        },
        dispatch=keyed("topic"),
        live=Dialect(
            endpoints=(Endpoint(url=""),),
            discovery=Discovery(url=f"{_FUTURES_API}bullet-public", use=_address),
            subscribe=_futures_subscribe,
            acks=equals("type", "welcome", "ack"),
            heartbeats=equals("type", "pong"),
            errors=equals("type", "error"),
            ping=_ping,
            snapshots=(
                _book_snapshot(
                    "contractMarket/level2",
                    "level2Snapshot",
                    f"{_FUTURES_API}level2/snapshot?symbol={{SYMBOL}}",
                ),
            ),
            pollers=(
                Poller(
                    channel="contract/details",
                    urls=(f"{_FUTURES_API}contracts/active",),
                    render=_render_details,
                    every_s=6,
                    per_symbol=False,
                ),
            ),
            quiet=frozenset(("contractMarket/execution",)),
            max_streams=300,
        ),
        subscriptions=_NATIVE,
    ),
)
