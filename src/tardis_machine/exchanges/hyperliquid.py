"""Hyperliquid: whole books in every message; trades begin with those of the past."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict
from tardis_machine.engine import BID_FIRST, LOCAL_TIME, Objects
from tardis_machine.engine.shapes import (
    Absent,
    Amount,
    AskAmount,
    AskPrice,
    Asks,
    BidAmount,
    BidPrice,
    Bids,
    Field,
    Is,
    Items,
    KernelShape,
    Milliseconds,
    NumberId,
    Object,
    Price,
    Rows,
    Symbol,
    TakerSide,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    equals,
    pairs,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_sent,
    number_or_error,
    side,
    text,
    time,
)
from tardis_machine.history.filters import Filter

_LEVELS: Final = Objects("px", "sz")
_SYMBOL: Final = Symbol(upper=True)
_THOUSANDS: Final = frozenset(("kPEPE", "kSHIB", "kBONK", "kFLOKI", "kLUNC", "kDOGS", "kNEIRO"))
"""Coins traded by the thousand: the exchange writes kPEPE, clients KPEPE."""


def _coin(symbol: str) -> str:
    """Return a symbol as the exchange spells it."""
    by_thousand = symbol[:1].lower() + symbol[1:]
    return by_thousand if by_thousand in _THOUSANDS else symbol


class _Trade(Struct, gc=False):
    coin: str
    side: str | None = None
    price: JsonNumber = field(name="px", default=UNSET)
    amount: JsonNumber = field(name="sz", default=UNSET)
    timestamp: JsonTime = field(name="time", default=UNSET)
    id: str | int | float | UnsetType | None = field(name="tid", default=UNSET)


class _Trades(Struct, gc=False):
    data: list[_Trade]


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.trade
    gates = context.emitter.gates()
    known = BoundedDefaultDict(gates.of, lambda gate: gate.close())

    def trades(line: bytes) -> bool:
        rows = decode(line).data
        if rows and (symbol := rows[0].coin.upper()) not in known:
            # A subscription starts with trades of the past.
            known[symbol].open(0)
            return True
        for row in rows:
            emit(
                row.coin.upper(),
                text(row.id),
                number_or_error(row.price, "trades", "px"),
                number_or_error(row.amount, "trades", "sz"),
                side(row.side, "B"),
                time(row.timestamp, "trades", "time"),
            )
        return True

    return named({"trades": KernelHandler(trades, _TRADES, gates)})


_TRADES: Final = KernelShape(
    emits="trade",
    fields={
        "data": Rows(
            {
                "coin": _SYMBOL,
                "side": TakerSide(buy="B", sell="A"),
                "px": Price(text=True),
                "sz": Amount(text=True),
                "time": Milliseconds(),
                "tid": NumberId(),
            }
        )
    },
)


class _Book(Struct, gc=False):
    coin: str
    levels: tuple[Raw, Raw]
    timestamp: JsonTime = field(name="time", default=UNSET)
    fast: bool | None = None


class _BookMessage(Struct, gc=False):
    data: _Book


_decode_book: Final = Decoder(_BookMessage).decode


def _emit_book(context: MapperContext, book: _Book) -> bool:
    bids, asks = book.levels
    timestamp = time(book.timestamp, "l2Book", "time")
    context.emitter.book_change(book.coin.upper(), True, bids, asks, timestamp, _LEVELS)
    return True


def _book_shape(fast: Field) -> KernelShape:
    book: dict[str, Field] = {
        "coin": _SYMBOL,
        "time": Milliseconds(),
        "levels": Items((Bids(_LEVELS), Asks(_LEVELS))),
        "fast": fast,
    }
    return KernelShape(emits="book_snapshot", fields={"data": Object(book)})


_BOOK: Final = _book_shape(Absent())
_MARKED_BOOK: Final = _book_shape(Is((True,)))


def _book_changes(context: MapperContext) -> ChannelHandlers:
    def book(line: bytes) -> bool:
        return _emit_book(context, _decode_book(line).data)

    return named({"l2Book": KernelHandler(book, _BOOK)})


def _fast_book_changes(context: MapperContext) -> ChannelHandlers:
    """Map the fast books: those of fastBook, and those marked as fast in l2Book."""

    def marked(line: bytes) -> bool:
        book = _decode_book(line).data
        return bool(book.fast) and _emit_book(context, book)

    def fast(line: bytes) -> bool:
        return _emit_book(context, _decode_book(line).data)

    return named(
        {"fastBook": KernelHandler(fast, _BOOK), "l2Book": KernelHandler(marked, _MARKED_BOOK)}
    )


class _Context(Struct, gc=False):
    funding: JsonNumber = UNSET
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)
    oracle_price: JsonNumber = field(name="oraclePx", default=UNSET)
    mark_price: JsonNumber = field(name="markPx", default=UNSET)


class _AssetContext(Struct, gc=False):
    coin: str
    ctx: _Context


class _AssetContextMessage(Struct, gc=False):
    data: _AssetContext


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_AssetContextMessage).decode
    emit = context.emitter.derivative_ticker

    def asset_context(line: bytes) -> bool:
        message = decode(line).data
        row = message.ctx
        emit(
            message.coin.upper(),
            LOCAL_TIME,
            open_interest=number_if_sent(row.open_interest),
            funding_rate=number_if_sent(row.funding),
            index_price=number_if_sent(row.oracle_price),
            mark_price=number_if_sent(row.mark_price),
        )
        return True

    return named({"activeAssetCtx": asset_context})


class _Best(Struct, gc=False):
    price: JsonNumber = field(name="px", default=UNSET)
    amount: JsonNumber = field(name="sz", default=UNSET)


class _Quote(Struct, gc=False):
    coin: str
    bbo: list[_Best | None]
    timestamp: JsonTime = field(name="time", default=UNSET)


class _QuoteMessage(Struct, gc=False):
    data: _Quote


def _best(row: _Quote, index: int) -> tuple[Any, Any]:
    level = row.bbo[index] if index < len(row.bbo) else None
    if level is None:  # that side of the book is empty
        return None, None
    return number_or_error(level.price, "bbo", "px"), number_or_error(level.amount, "bbo", "sz")


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_QuoteMessage).decode
    emit = context.emitter.book_ticker
    context.emitter.order_book_ticker(BID_FIRST)

    def quote(line: bytes) -> bool:
        row = decode(line).data
        bid_price, bid_amount = _best(row, 0)
        ask_price, ask_amount = _best(row, 1)
        timestamp = time(row.timestamp, "bbo", "time")
        emit(row.coin.upper(), ask_amount, ask_price, bid_price, bid_amount, timestamp)
        return True

    return named({"bbo": KernelHandler(quote, _QUOTE)})


_QUOTE: Final = KernelShape(
    emits="book_ticker",
    fields={
        "data": Object(
            {
                "coin": _SYMBOL,
                "time": Milliseconds(),
                "bbo": Items(
                    (
                        Object({"px": BidPrice(text=True), "sz": BidAmount(text=True)}),
                        Object({"px": AskPrice(text=True), "sz": AskAmount(text=True)}),
                    )
                ),
            }
        )
    },
)


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, coin in pairs(filters):
        wanted: dict[str, Any] = {"coin": coin, "type": channel}
        if channel == "fastBook":
            wanted |= {"type": "l2Book", "fast": True}
        yield {"method": "subscribe", "subscription": wanted}


def _subscriptions(message: Any) -> list[Filter] | None:
    wanted = at(message, "subscription")
    if at(message, "method") != "subscribe" or not isinstance(wanted, dict):
        return None
    is_fast = wanted.get("type") == "l2Book" and wanted.get("fast") is True
    coin = wanted.get("coin")
    channel = "fastBook" if is_fast else str(wanted.get("type"))
    return [Filter(channel, () if coin is None else (coin,))]


def _era(
    channel: str, make: Callable[[MapperContext], ChannelHandlers], until: int | None = None
) -> Era:
    return Era((Channel(channel, _coin),), make, until)


EXCHANGES: Final = (
    Exchange(
        name="hyperliquid",
        types={
            "trade": (_era("trades", _trades),),
            "book_change": (
                _era("l2Book", _book_changes, until=date("2026-06-17T00:00:00.000Z")),
                _era("fastBook", _fast_book_changes),
            ),
            "derivative_ticker": (_era("activeAssetCtx", _derivative_tickers),),
            "book_ticker": (_era("bbo", _book_tickers),),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://api.hyperliquid.xyz/ws"),),
            subscribe=_subscribe,
            data=(b'{"channel":"trades"', b'{"channel":"l2Book"', b'{"channel":"bbo"'),
            acks=equals("channel", "subscriptionResponse"),
            heartbeats=equals("channel", "pong"),
            errors=equals("channel", "error"),
            ping=lambda _: {"method": "ping"},
            quiet=frozenset(("trades",)),
        ),
        subscriptions=_subscriptions,
    ),
)
