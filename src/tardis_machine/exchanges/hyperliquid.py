"""Hyperliquid: whole books with every message, trades that begin with those of the past."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import Made
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
    Milliseconds,
    NumberId,
    Object,
    Price,
    Rows,
    Shape,
    Symbol,
    TakerSide,
)
from tardis_machine.exchanges.base.channels import Route, Shaped, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    Dialect,
    Endpoint,
    Outgoing,
    Session,
    at,
    equals,
    pairs,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, Making, date
from tardis_machine.exchanges.base.fields import (
    Sent,
    SentTime,
    optional,
    required,
    side,
    text,
    time,
)
from tardis_machine.history.filters import Filter

_LEVELS: Final = Objects("px", "sz")
_SYMBOL: Final = Symbol(upper=True)
_THOUSANDS: Final = frozenset(("kPEPE", "kSHIB", "kBONK", "kFLOKI", "kLUNC", "kDOGS", "kNEIRO"))
"""Coins that are traded by the thousand: the exchange writes a small k, clients a large one."""


def _coin(symbol: str) -> str:
    """Spell a symbol as the exchange does."""
    by_thousand = symbol[:1].lower() + symbol[1:]
    return by_thousand if by_thousand in _THOUSANDS else symbol


class _Trade(Struct, gc=False):
    coin: str
    side: str | None = None
    price: Sent = field(name="px", default=UNSET)
    amount: Sent = field(name="sz", default=UNSET)
    timestamp: SentTime = field(name="time", default=UNSET)
    id: str | int | float | UnsetType | None = field(name="tid", default=UNSET)


class _Trades(Struct, gc=False):
    data: list[_Trade]


def _trades(making: Making) -> Route:
    decode = Decoder(_Trades).decode
    emit = making.emitter.trade
    gates = making.emitter.gates()
    known = Made(gates.of, lambda gate: gate.close())

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
                required(row.price, "trades", "px"),
                required(row.amount, "trades", "sz"),
                side(row.side, "B"),
                time(row.timestamp, "trades", "time"),
            )
        return True

    return named({"trades": Shaped(trades, _TRADES, gates)})


_TRADES: Final = Shape(
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
    timestamp: SentTime = field(name="time", default=UNSET)
    fast: bool | None = None


class _BookMessage(Struct, gc=False):
    data: _Book


_decode_book: Final = Decoder(_BookMessage).decode


def _emit_book(making: Making, book: _Book) -> bool:
    bids, asks = book.levels
    timestamp = time(book.timestamp, "l2Book", "time")
    making.emitter.book_change(book.coin.upper(), True, bids, asks, timestamp, _LEVELS)
    return True


def _book_shape(fast: Field) -> Shape:
    book: dict[str, Field] = {
        "coin": _SYMBOL,
        "time": Milliseconds(),
        "levels": Items((Bids(_LEVELS), Asks(_LEVELS))),
        "fast": fast,
    }
    return Shape(emits="book_snapshot", fields={"data": Object(book)})


_BOOK: Final = _book_shape(Absent())
_MARKED_BOOK: Final = _book_shape(Is((True,)))


def _book_changes(making: Making) -> Route:
    def book(line: bytes) -> bool:
        return _emit_book(making, _decode_book(line).data)

    return named({"l2Book": Shaped(book, _BOOK)})


def _fast_book_changes(making: Making) -> Route:
    """Take the books that come faster: under their own name, or marked among the others."""

    def marked(line: bytes) -> bool:
        book = _decode_book(line).data
        return bool(book.fast) and _emit_book(making, book)

    def fast(line: bytes) -> bool:
        return _emit_book(making, _decode_book(line).data)

    return named({"fastBook": Shaped(fast, _BOOK), "l2Book": Shaped(marked, _MARKED_BOOK)})


class _Context(Struct, gc=False):
    funding: Sent = UNSET
    open_interest: Sent = field(name="openInterest", default=UNSET)
    oracle_price: Sent = field(name="oraclePx", default=UNSET)
    mark_price: Sent = field(name="markPx", default=UNSET)


class _AssetContext(Struct, gc=False):
    coin: str
    ctx: _Context


class _AssetContextMessage(Struct, gc=False):
    data: _AssetContext


def _derivative_tickers(making: Making) -> Route:
    decode = Decoder(_AssetContextMessage).decode
    emit = making.emitter.derivative_ticker

    def context(line: bytes) -> bool:
        message = decode(line).data
        row = message.ctx
        emit(
            message.coin.upper(),
            LOCAL_TIME,
            open_interest=optional(row.open_interest),
            funding_rate=optional(row.funding),
            index_price=optional(row.oracle_price),
            mark_price=optional(row.mark_price),
        )
        return True

    return named({"activeAssetCtx": context})


class _Best(Struct, gc=False):
    price: Sent = field(name="px", default=UNSET)
    amount: Sent = field(name="sz", default=UNSET)


class _Quote(Struct, gc=False):
    coin: str
    bbo: list[_Best | None]
    timestamp: SentTime = field(name="time", default=UNSET)


class _QuoteMessage(Struct, gc=False):
    data: _Quote


def _best(row: _Quote, index: int) -> tuple[Any, Any]:
    level = row.bbo[index] if index < len(row.bbo) else None
    if level is None:  # that side of the book is empty
        return None, None
    return required(level.price, "bbo", "px"), required(level.amount, "bbo", "sz")


def _book_tickers(making: Making) -> Route:
    decode = Decoder(_QuoteMessage).decode
    emit = making.emitter.book_ticker
    making.emitter.order_book_ticker(BID_FIRST)

    def quote(line: bytes) -> bool:
        row = decode(line).data
        bid_price, bid_amount = _best(row, 0)
        ask_price, ask_amount = _best(row, 1)
        timestamp = time(row.timestamp, "bbo", "time")
        emit(row.coin.upper(), ask_amount, ask_price, bid_price, bid_amount, timestamp)
        return True

    return named({"bbo": Shaped(quote, _QUOTE)})


_QUOTE: Final = Shape(
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


def _subscribe(filters: Sequence[Filter], _: Session) -> Iterator[Outgoing]:
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


def _era(channel: str, make: Callable[[Making], Route], until: int | None = None) -> Era:
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
