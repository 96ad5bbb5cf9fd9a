"""Kraken: arrays that end with their channel and pair, then objects since version 2."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.engine import Objects, Positions
from tardis_machine.engine.shapes import (
    Absent,
    Amount,
    AskAmount,
    AskPrice,
    Asks,
    BidAmount,
    BidPrice,
    Bids,
    Is,
    Iso,
    Items,
    KernelShape,
    NumberId,
    Object,
    Plain,
    Price,
    Rows,
    Seconds,
    Single,
    Symbol,
    TakerSide,
    Whole,
)
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    KernelHandler,
    arrays,
    named,
    prefixed,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    both,
    either,
    equals,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_nonzero,
    number_or_error,
    side,
    symbol,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, parse_ms, parse_us, seconds_us

_VERSION_2: Final = date("2026-07-10")
_NO_LEVELS: Final = Raw(b"[]")
_Text = str | int | float | None


# Version 1: [number, payload, channel, pair] ------------------------------------------------------

_PRICE, _AMOUNT, _TIME, _SIDE = range(4)


def _trades_1(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(tuple[int, list[list[_Text]], str, str]).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        _, rows, _, pair = decode(line)
        for row in rows:
            try:
                emit(
                    pair,
                    None,
                    row[_PRICE] or 0,
                    row[_AMOUNT] or 0,
                    side(row[_SIDE], "b"),
                    seconds_us(row[_TIME] or 0),
                )
            except IndexError:
                raise MapperError("trade", "a trade without price, amount, time, side") from None
        return True

    return named({"trade": KernelHandler(trades, _TRADES_1)}, " ")


_TRADES_1: Final = KernelShape(
    emits="trade",
    fields=(
        Whole(),
        Rows(
            (
                Price(text=True),
                Amount(text=True),
                Seconds(text=True),
                TakerSide(buy="b", sell="s"),
                Plain(),
                Plain(),
            )
        ),
        Is(("trade",)),
        Symbol(),
    ),
)


_Levels1 = list[list[_Text]]


class _Sides1(Struct, gc=False):
    """A side of an update, or both of a snapshot."""

    asks: _Levels1 | UnsetType = field(name="a", default=UNSET)
    bids: _Levels1 | UnsetType = field(name="b", default=UNSET)
    all_asks: _Levels1 | UnsetType = field(name="as", default=UNSET)
    all_bids: _Levels1 | UnsetType = field(name="bs", default=UNSET)


_LEVELS_1: Final = Positions(_PRICE, _AMOUNT)
_TWO_SIDED: Final = 5


def _latest(*sides: _Levels1) -> TimeValue | None:
    """Return the latest time of the levels; None if there are none."""
    try:
        latest = max((float(row[_TIME] or 0) for each in sides for row in each), default=None)
    except IndexError:
        raise MapperError("book", "a level without a time") from None
    return None if latest is None else seconds_us(latest)


def _book_changes_1(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(list[int | str | _Sides1 | None]).decode
    emit = context.emitter.book_change

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        sides = [each for each in message if isinstance(each, _Sides1)]
        if not sides:
            raise MapperError("book", "neither bids nor asks")
        is_snapshot = sides[0].all_asks is not UNSET
        bids: _Levels1 = []
        asks: _Levels1 = []
        for each in sides:
            bids = (each.all_bids if is_snapshot else each.bids) or bids
            asks = (each.all_asks if is_snapshot else each.asks) or asks
        # An update of both sides has one element more than others, and a snapshot never counts it.
        at = 4 if len(message) == _TWO_SIDED and not is_snapshot else 3
        pair = message[at] if at < len(message) else None
        if not isinstance(pair, str):
            raise MapperError("book", "no pair")
        emit(pair, is_snapshot, bids, asks, _latest(bids, asks), _LEVELS_1)
        return True

    handler = KernelHandler(book_changes, _UPDATE_1)
    return lambda name: handler if name.startswith("book") else None


_UPDATE_1: Final = KernelShape(
    emits="book_change",
    fields=(
        Whole(),
        Object(
            {
                "a": Asks(_LEVELS_1, seconds=_TIME, optional=True),
                "b": Bids(_LEVELS_1, seconds=_TIME, optional=True),
                "as": Absent(),
                "bs": Absent(),
            }
        ),
        Plain(),
        Symbol(),
    ),
)


def _book_tickers_1(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(tuple[int, tuple[_Text, _Text, _Text, _Text, _Text], str, str]).decode
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        _, (bid, ask, seconds, bid_amount, ask_amount), _, pair = decode(line)
        if float(seconds or 0):  # a pair that was never quoted has no time
            emit(
                pair,
                number_if_nonzero(ask_amount),
                number_if_nonzero(ask),
                number_if_nonzero(bid),
                number_if_nonzero(bid_amount),
                seconds_us(seconds or 0),
            )
        return True

    return named({"spread": KernelHandler(book_tickers, _SPREAD)}, " ")


_SPREAD: Final = KernelShape(
    emits="book_ticker",
    fields=(
        Whole(),
        Items(
            (
                BidPrice(text=True, nonzero=True),
                AskPrice(text=True, nonzero=True),
                Seconds(text=True),
                BidAmount(text=True, nonzero=True),
                AskAmount(text=True, nonzero=True),
            )
        ),
        Is(("spread",)),
        Symbol(),
    ),
)


# Version 2 ----------------------------------------------------------------------------------------


class _Trade2(Struct, gc=False):
    symbol: str
    price: JsonNumber
    amount: JsonNumber = field(name="qty")
    timestamp: str
    id: int | str | None = field(name="trade_id", default=None)
    side: str | None = None


class _Trades2(Struct, gc=False):
    data: list[_Trade2]
    type: str | None = None


def _trades_2(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades2).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        message = decode(line)
        if message.type != "update":  # a snapshot repeats trades of the past
            return False
        for row in message.data:
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, "trade", "price"),
                number_or_error(row.amount, "trade", "qty"),
                side(row.side, "buy"),
                parse_us(row.timestamp),
            )
        return True

    return named({"trade": KernelHandler(trades, _TRADES_2)})


_TRADES_2: Final = KernelShape(
    emits="trade",
    fields={
        "type": Is(("update",)),
        "data": Rows(
            {
                "symbol": Symbol(),
                "side": TakerSide(buy="buy", sell="sell"),
                "price": Price(text=None),
                "qty": Amount(text=None),
                "trade_id": NumberId(),
                "timestamp": Iso(6),
            }
        ),
    },
)


class _Book2(Struct, gc=False):
    symbol: str
    timestamp: str
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _Books2(Struct, gc=False):
    data: list[_Book2]
    type: str | None = None


_LEVELS_2: Final = Objects("price", "qty")


def _book_changes_2(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Books2).decode
    emit = context.emitter.book_change

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        is_snapshot = message.type == "snapshot"
        for row in message.data:
            time = parse_us(row.timestamp)
            emit(row.symbol, is_snapshot, row.bids, row.asks, time, _LEVELS_2)
        return True

    return named({"book": KernelHandler(book_changes, _UPDATE_2)})


_UPDATE_2: Final = KernelShape(
    emits="book_change",
    fields={
        "type": Is(("update",)),
        "data": Single(
            {
                "symbol": Symbol(),
                "bids": Bids(_LEVELS_2, optional=True),
                "asks": Asks(_LEVELS_2, optional=True),
                "timestamp": Iso(6),
            }
        ),
    },
)


class _Ticker2(Struct, gc=False):
    symbol: str | None = None
    bid: JsonNumber = UNSET
    bid_amount: JsonNumber = field(name="bid_qty", default=UNSET)
    ask: JsonNumber = UNSET
    ask_amount: JsonNumber = field(name="ask_qty", default=UNSET)
    timestamp: str | UnsetType | None = UNSET


class _Tickers2(Struct, gc=False):
    data: list[_Ticker2]


def _book_tickers_2(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Tickers2).decode
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        for row in decode(line).data:
            if row.timestamp is UNSET:
                raise MapperError("ticker", "no timestamp")
            # A pair that was never quoted has no time.
            if row.timestamp is not None and parse_ms(row.timestamp):
                emit(
                    symbol(row.symbol, "ticker"),
                    number_if_nonzero(row.ask_amount),
                    number_if_nonzero(row.ask),
                    number_if_nonzero(row.bid),
                    number_if_nonzero(row.bid_amount),
                    parse_us(row.timestamp),
                )
        return True

    return named({"ticker": KernelHandler(book_tickers, _TICKERS_2)})


_TICKERS_2: Final = KernelShape(
    emits="book_ticker",
    fields={
        "data": Rows(
            {
                "symbol": Symbol(),
                "bid": BidPrice(text=None, nonzero=True),
                "bid_qty": BidAmount(text=None, nonzero=True),
                "ask": AskPrice(text=None, nonzero=True),
                "ask_qty": AskAmount(text=None, nonzero=True),
                "timestamp": Iso(6),
            }
        ),
    },
)


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "book": {"depth": 1000},
    "ticker": {"event_trigger": "bbo"},
    "instrument": {"include_tokenized_assets": True},
}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for each in filters:
        params: dict[str, Any] = {"channel": each.channel}
        if each.channel != "instrument":
            params["symbol"] = list(each.symbols or ())
        yield {"method": "subscribe", "params": params | _OPTIONS.get(each.channel, {})}


_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://ws.kraken.com/v2"),),
    subscribe=_subscribe,
    data=(b'{"channel":"trade"', b'{"channel":"book"', b'{"channel":"ticker"'),
    heartbeats=either(equals("channel", "heartbeat"), equals("event", "heartbeat")),
    acks=either(
        equals("channel", "status"), both(equals("method", "subscribe"), equals("success", True))
    ),
    errors=either(equals("success", False), present("errorMessage")),
    without_symbols=frozenset(("instrument",)),
    quiet=frozenset(("trade", "instrument")),
)


_V1: Final = arrays(2)
_V2: Final = prefixed(b'{"channel":"', "channel")


def _eras(
    first: tuple[str, Callable[[MapperContext], ChannelHandlers]],
    second: tuple[str, Callable[[MapperContext], ChannelHandlers]],
) -> tuple[Era, Era]:
    return (
        Era((Channel(first[0]),), first[1], _VERSION_2, _V1),
        Era((Channel(second[0]),), second[1], dispatch=_V2),
    )


EXCHANGES: Final = (
    Exchange(
        name="kraken",
        types={
            "trade": _eras(("trade", _trades_1), ("trade", _trades_2)),
            "book_change": _eras(("book", _book_changes_1), ("book", _book_changes_2)),
            "book_ticker": _eras(("spread", _book_tickers_1), ("ticker", _book_tickers_2)),
        },
        dispatch=_V2,
        live=_LIVE,
        # Only subscriptions of version 1.
        subscriptions=subscriptions(
            {"event": "subscribe"}, "", fields("subscription.name", "pair")
        ),
    ),
)
