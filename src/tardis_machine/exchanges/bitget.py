"""Bitget: spot and futures share their messages; version 3 renamed channels."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.engine import ASK_FIRST, PAIRS
from tardis_machine.engine.shapes import (
    Amount,
    AskAmount,
    AskPrice,
    Asks,
    BidAmount,
    BidPrice,
    Bids,
    Is,
    KernelShape,
    Milliseconds,
    Object,
    Price,
    Rows,
    Single,
    Symbol,
    TakerSide,
    TextId,
    Whole,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Subscribe,
    chunks,
    equals,
    with_text_pong,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonLevels,
    JsonNumber,
    best,
    number_if_nonzero,
    number_or_error,
    side,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter

Maker = Callable[[MapperContext], ChannelHandlers]
A = TypeVar("A")
R = TypeVar("R")
_VERSION_3: Final = date("2026-04-28")
_BOTH: Final = frozenset(("snapshot", "update"))
_NO_FUNDING: Final = frozenset(("", "0"))


class _Message(Struct, Generic[A, R], gc=False):
    """The envelope of all channels: `arg` names channel and symbol of the rows."""

    arg: A
    action: str | None = None
    data: list[R] = []


def _shape(
    emits: Literal["trade", "book_change", "book_snapshot", "book_ticker"],
    action: str,
    argument: str,
    data: Single | Rows,
) -> KernelShape:
    """Return a message with the symbol in its argument."""
    arg = Object({argument: Symbol()})
    return KernelShape(emits=emits, fields={"action": Is((action,)), "arg": arg, "data": data})


def _trades(
    channel: str, decode: Callable[[bytes], _Message[Any, Any]], shape: KernelShape
) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.trade

        def trades(line: bytes) -> bool:
            message = decode(line)
            if message.action != "update":  # a snapshot repeats trades of the past
                return False
            for row in message.data:
                emit(
                    symbol(message.arg.symbol, channel),
                    row.id,
                    row.price or number_or_error(row.price, channel, "price"),
                    row.amount or number_or_error(row.amount, channel, "amount"),
                    side(row.side, "buy"),
                    time(row.timestamp, channel, "time"),
                )
            return True

        return named({channel: KernelHandler(trades, shape)})

    return make


# Version 2 ----------------------------------------------------------------------------------------


class _Argument2(Struct, gc=False):
    symbol: str | None = field(name="instId", default=None)


class _Trade2(Struct, gc=False):
    price: JsonNumber
    amount: JsonNumber = field(name="size")
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    id: str | None = field(name="tradeId", default=None)
    side: str | None = None


_TRADES_2: Final = _shape(
    "trade",
    "update",
    "instId",
    Rows(
        {
            "ts": Milliseconds(text=True),
            "price": Price(text=True),
            "size": Amount(text=True),
            "side": TakerSide(buy="buy", sell="sell"),
            "tradeId": TextId(),
        }
    ),
)
_trades_2: Final = _trades("trade", Decoder(_Message[_Argument2, _Trade2]).decode, _TRADES_2)


class _Book2(Struct, gc=False):
    bids: Raw
    asks: Raw
    timestamp: JsonNumber = field(name="ts", default=UNSET)


def _book_changes_2(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Message[_Argument2, _Book2]).decode
    emit = context.emitter.book_change

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        if message.action != "snapshot":
            return False
        for row in message.data:
            name = symbol(message.arg.symbol, "books15")
            emit(name, True, row.bids, row.asks, time(row.timestamp, "books15", "ts"))
        return True

    return named({"books15": KernelHandler(book_changes, _BOOK_2)})


_BOOK_2: Final = _shape(
    "book_snapshot",
    "snapshot",
    "instId",
    Single(
        {"asks": Asks(PAIRS), "bids": Bids(PAIRS), "ts": Milliseconds(text=True)},
    ),
)


class _Best2(Struct, gc=False):
    asks: JsonLevels = None
    bids: JsonLevels = None
    timestamp: JsonNumber = field(name="ts", default=UNSET)


def _book_tickers_2(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Message[_Argument2, _Best2]).decode
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        message = decode(line)
        if message.action != "snapshot":
            return False
        for row in message.data:
            ask_price, ask_amount = best(row.asks, "books1")
            bid_price, bid_amount = best(row.bids, "books1")
            name = symbol(message.arg.symbol, "books1")
            timestamp = time(row.timestamp, "books1", "ts")
            emit(name, ask_amount, ask_price, bid_price, bid_amount, timestamp)
        return True

    return named({"books1": KernelHandler(book_tickers, _BEST_2)})


_BEST_2: Final = _shape(
    "book_ticker",
    "snapshot",
    "instId",
    Single(
        {
            "asks": Single((AskPrice(text=True), AskAmount(text=True))),
            "bids": Single((BidPrice(text=True), BidAmount(text=True))),
            "ts": Milliseconds(text=True),
        }
    ),
)


class _Ticker2(Struct, gc=False):
    symbol: str | None = None
    last: JsonNumber = field(name="lastPr", default=UNSET)
    open_interest: JsonNumber = field(name="holdingAmount", default=UNSET)
    index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    funding_time: JsonNumber = field(name="nextFundingTime", default=UNSET)
    timestamp: JsonNumber = field(name="ts", default=UNSET)


def _send(
    emit: Callable[..., None], name: str, timestamp: JsonNumber, row: Any, *, has_funding: bool
) -> None:
    """Emit a ticker of either version."""
    funding = time(row.funding_time, "ticker", "nextFundingTime") if has_funding else None
    emit(
        name,
        ticker_time(timestamp),
        last_price=number_or_error(row.last, "ticker", "last price"),
        open_interest=number_or_error(row.open_interest, "ticker", "open interest"),
        funding_rate=number_or_error(row.funding_rate, "ticker", "fundingRate")
        if has_funding
        else None,
        funding_timestamp=funding,
        index_price=number_or_error(row.index_price, "ticker", "indexPrice"),
        mark_price=number_or_error(row.mark_price, "ticker", "markPrice"),
    )


class _Tickers2(Struct, gc=False):
    action: str | None = None
    data: list[_Ticker2] = []


def _derivative_tickers_2(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Tickers2).decode
    emit = context.emitter.derivative_ticker

    def derivative_tickers(line: bytes) -> bool:
        message = decode(line)
        if message.action != "snapshot":
            return False
        for row in message.data:
            has_funding = row.funding_time != "0"
            _send(emit, symbol(row.symbol, "ticker"), row.timestamp, row, has_funding=has_funding)
        return True

    return named({"ticker": derivative_tickers})


# Version 3 ----------------------------------------------------------------------------------------


class _Argument3(Struct, gc=False):
    symbol: str | None = None


class _Trade3(Struct, gc=False):
    price: JsonNumber = field(name="p")
    amount: JsonNumber = field(name="v")
    timestamp: JsonNumber = field(name="T", default=UNSET)
    id: str | None = field(name="i", default=None)
    side: str | None = field(name="S", default=None)


_TRADES_3: Final = _shape(
    "trade",
    "update",
    "symbol",
    Rows(
        {
            "p": Price(text=True),
            "v": Amount(text=True),
            "S": TakerSide(buy="buy", sell="sell"),
            "T": Milliseconds(text=True),
            "i": TextId(),
        }
    ),
)
_trades_3: Final = _trades("publicTrade", Decoder(_Message[_Argument3, _Trade3]).decode, _TRADES_3)


class _Book3(Struct, gc=False):
    bids: Raw = field(name="b")
    asks: Raw = field(name="a")
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    last_id: int | None = field(name="seq", default=None)
    previous_id: int | None = field(name="pseq", default=None)


def _book_changes_3(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Message[_Argument3, _Book3]).decode
    emit = context.emitter.book_change
    ids = UpdateIds("books", checks_ids=context.checks_ids)

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        if message.action not in _BOTH:
            return False
        is_snapshot = message.action == "snapshot"
        for row in message.data:
            name = symbol(message.arg.symbol, "books")
            if is_snapshot:
                ids.start(name, row.last_id)
            elif not ids.follow(name, row.previous_id, row.last_id):
                continue
            emit(name, is_snapshot, row.bids, row.asks, time(row.timestamp, "books", "ts"))
        return True

    return named({"books": context.unchecked(book_changes, _UPDATE_3)})


_UPDATE_3: Final = _shape(
    "book_change",
    "update",
    "symbol",
    Single(
        {
            "a": Asks(PAIRS),
            "b": Bids(PAIRS),
            "pseq": Whole(),
            "seq": Whole(),
            "ts": Milliseconds(text=True),
        }
    ),
)


class _Best3(Struct, gc=False):
    asks: JsonLevels = field(name="a", default=None)
    bids: JsonLevels = field(name="b", default=None)
    timestamp: JsonNumber = field(name="ts", default=UNSET)


def _book_tickers_3(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Message[_Argument3, _Best3]).decode
    context.emitter.order_book_ticker(ASK_FIRST)
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        message = decode(line)
        if message.action != "snapshot":
            return False
        for row in message.data:
            ask_price, ask_amount = best(row.asks, "books1")
            bid_price, bid_amount = best(row.bids, "books1")
            emit(
                symbol(message.arg.symbol, "books1"),
                number_if_nonzero(ask_amount),
                number_if_nonzero(ask_price),
                number_if_nonzero(bid_price),
                number_if_nonzero(bid_amount),
                time(row.timestamp, "books1", "ts"),
            )
        return True

    return named({"books1": KernelHandler(book_tickers, _BEST_3)})


_BEST_3: Final = _shape(
    "book_ticker",
    "snapshot",
    "symbol",
    Single(
        {
            "a": Single((AskPrice(text=True, nonzero=True), AskAmount(text=True, nonzero=True))),
            "b": Single((BidPrice(text=True, nonzero=True), BidAmount(text=True, nonzero=True))),
            "ts": Milliseconds(text=True),
        }
    ),
)


class _Ticker3(Struct, gc=False):
    last: JsonNumber = field(name="lastPrice", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)
    index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    funding_time: JsonNumber = field(name="nextFundingTime", default=UNSET)


class _Tickers3(Struct, gc=False):
    arg: _Argument3
    action: str | None = None
    data: list[_Ticker3] = []
    timestamp: JsonNumber = field(name="ts", default=UNSET)


def _derivative_tickers_3(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Tickers3).decode
    emit = context.emitter.derivative_ticker

    def derivative_tickers(line: bytes) -> bool:
        message = decode(line)
        if message.action not in _BOTH:
            return False
        for row in message.data:
            name = symbol(message.arg.symbol, "ticker")
            has_funding = row.funding_time not in _NO_FUNDING
            _send(emit, name, message.timestamp, row, has_funding=has_funding)
        return True

    return named({"ticker": derivative_tickers})


class _Liquidation(Struct, gc=False):
    symbol: str
    price: JsonNumber
    amount: JsonNumber
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    side: str | None = None


class _Liquidations(Struct, gc=False):
    action: str | None = None
    data: list[_Liquidation] = []


def _liquidations(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Liquidations).decode
    emit = context.emitter.liquidation

    def liquidations(line: bytes) -> bool:
        message = decode(line)
        if message.action != "update":
            return False
        for row in message.data:
            emit(
                row.symbol,
                None,
                number_or_error(row.price, "liquidation", "price"),
                number_or_error(row.amount, "liquidation", "amount"),
                "sell" if row.side == "buy" else "buy",  # the side is the position's
                time(row.timestamp, "liquidation", "ts"),
            )
        return True

    return named({"liquidation": liquidations})


# Exchanges ----------------------------------------------------------------------------------------


def _spot(_: str) -> str:
    return "spot"


def _settled_in(symbol: str) -> str:
    """Return the market of a contract, which is named after its settlement currency."""
    if symbol.endswith("USDT"):
        return "usdt-futures"
    return "usdc-futures" if symbol.endswith("PERP") else "coin-futures"


_MARKETS: Final = ("usdt-futures", "usdc-futures", "coin-futures")


def _requests(op: str, market: Callable[[str], str]) -> Subscribe:
    def requests(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
        arguments: list[dict[str, Any]] = []
        for each in filters:
            if each.channel == "liquidation":  # sent for whole markets
                arguments += [{"instType": name, "topic": each.channel} for name in _MARKETS]
            else:
                arguments += [
                    {"instType": market(name), "topic": each.channel, "symbol": name}
                    for name in each.symbols or ()
                ]
        for some in chunks(arguments, 5):
            yield {"op": op, "args": some}

    return requests


def _live(market: Callable[[str], str]) -> Dialect:
    return Dialect(
        endpoints=(Endpoint(url="wss://ws.bitget.com/v3/ws/public"),),
        subscribe=_requests("subscribe", market),
        unsubscribe=_requests("unsubscribe", market),
        data=(b'{"action":"',),
        decode=with_text_pong,
        acks=equals("event", "subscribe", "unsubscribe"),
        heartbeats=equals("event", "pong"),
        ping=lambda _: "ping",  # without a ping the exchange closes a connection after two minutes
        errors=equals("event", "error"),
        quiet=frozenset(("publicTrade", "liquidation")),
        without_symbols=frozenset(("liquidation",)),
        max_streams=1000,
        throttle_s=0.1,
    )


_by_channel: Final = fields("channel", "instId")
_by_topic: Final = fields("topic", "symbol")


def _asked(entry: Any) -> Iterable[Filter]:
    """Yield the filters of an argument, whose keys differ in version 2."""
    return _by_topic(entry) if "topic" in entry else _by_channel(entry)


_NATIVE: Final = subscriptions({"op": "subscribe"}, "args", _asked)


_CHANNELS: Final = keyed("arg", "channel")
_TOPICS: Final = keyed("arg", "topic")


def _era_2(make: Maker, channel: str, spell: Callable[[str], str] = str.upper) -> Era:
    return Era((Channel(channel, spell),), make, _VERSION_3, _CHANNELS)


def _eras(before: tuple[Maker, str], now: tuple[Maker, str]) -> tuple[Era, Era]:
    return _era_2(*before), Era((Channel(now[1], str.upper),), now[0])


_SPOT: Final = {
    "trade": _eras((_trades_2, "trade"), (_trades_3, "publicTrade")),
    "book_change": _eras((_book_changes_2, "books15"), (_book_changes_3, "books")),
    "book_ticker": _eras((_book_tickers_2, "books1"), (_book_tickers_3, "books1")),
}

EXCHANGES: Final = (
    Exchange(
        name="bitget",
        types=_SPOT,
        dispatch=_TOPICS,
        live=_live(_spot),
        subscriptions=_NATIVE,
    ),
    Exchange(
        name="bitget-futures",
        types={
            "trade": _SPOT["trade"],
            "book_change": _SPOT["book_change"],
            "derivative_ticker": (
                _era_2(_derivative_tickers_2, "ticker", str),
                Era((Channel("ticker", str.upper),), _derivative_tickers_3),
            ),
            "liquidation": (Era((Channel("liquidation", has_symbols=False),), _liquidations),),
            "book_ticker": _SPOT["book_ticker"],
        },
        dispatch=_TOPICS,
        live=_live(_settled_in),
        subscriptions=_NATIVE,
    ),
)
