"""BitMEX: tables of rows with an action (partial, insert, update, delete)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, ValidationError, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedSet
from tardis_machine.engine import KEEP_OR_LOCAL, LATEST_KNOWN, Keyed, Side
from tardis_machine.engine.shapes import (
    Amount,
    AskAmount,
    AskPrice,
    BidAmount,
    BidPrice,
    Is,
    Iso,
    KernelShape,
    Price,
    Rows,
    Symbol,
    TableShape,
    TakerSide,
    TextId,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    both,
    chunks,
    either,
    equals,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import number_if_nonzero
from tardis_machine.exchanges.base.subscriptions import channel_first, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import cut_ms, parse_ms

Number = int | float
Row = TypeVar("Row")
_OPEN: Final = frozenset(("Open", "Closed"))


class _Envelope(Struct, gc=False):
    action: str | None = None


_envelope: Final = Decoder(_Envelope).decode


class _Inserted(Struct, Generic[Row], gc=False):
    data: list[Row]
    action: str | None = None


def _inserts(row: type[Row]) -> Callable[[bytes], list[Row] | None]:
    """Return a decoder of a table's inserted rows, which returns None for another action.

    A partial repeats rows of the past; updates and deletes have no whole rows.
    """
    decode = Decoder(_Inserted[row]).decode  # type: ignore[valid-type]

    def inserts(line: bytes) -> list[Row] | None:
        try:
            message = decode(line)
        except ValidationError:
            if _envelope(line).action == "insert":
                raise
            return None
        return message.data if message.action == "insert" else None

    return inserts


class _Trade(Struct, gc=False):
    symbol: str
    price: Number
    size: Number
    timestamp: str
    id: str | None = field(name="trdMatchID", default=None)
    side: str | UnsetType | None = UNSET


_TRADES: Final = KernelShape(
    emits="trade",
    fields={
        "action": Is(("insert",)),
        "data": Rows(
            {
                "timestamp": Iso(),
                "symbol": Symbol(),
                "side": TakerSide("Buy", "Sell"),
                "size": Amount(),
                "price": Price(),
                "trdMatchID": TextId(optional=True),
            }
        ),
    },
)


def _trades(context: MapperContext) -> ChannelHandlers:
    inserts = _inserts(_Trade)
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        rows = inserts(line)
        if rows is None:
            return False
        for row in rows:
            side = row.side
            emit(
                row.symbol,
                row.id,
                row.price,
                row.size,
                "buy" if side == "Buy" else "unknown" if side is UNSET else "sell",
                cut_ms(row.timestamp),
            )
        return True

    return named({"trade": KernelHandler(trades, _TRADES)})


_BOOK: Final = Keyed(
    rows="data",
    action="action",
    snapshot="partial",
    removal="delete",
    selection="filter",
    symbol="symbol",
    id="id",
    side="side",
    price="price",
    amount="size",
    timestamp="timestamp",
    bid="Buy",
)


def _book_changes(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_table

    def book_changes(line: bytes) -> bool:
        emit(line, _BOOK)
        return True

    return named({"orderBookL2": KernelHandler(book_changes, TableShape(_BOOK))})


class _Instrument(Struct, gc=False):
    symbol: str | None = None
    state: str | UnsetType | None = UNSET
    open_interest: Number | None = field(name="openInterest", default=None)
    funding_rate: Number | None = field(name="fundingRate", default=None)
    funding_timestamp: str | None = field(name="fundingTimestamp", default=None)
    predicted_funding_rate: Number | None = field(name="indicativeFundingRate", default=None)
    index_price: Number | None = field(name="indicativeSettlePrice", default=None)
    mark_price: Number | None = field(name="markPrice", default=None)
    last_price: Number | None = field(name="lastPrice", default=None)
    timestamp: str | UnsetType | None = UNSET


class _Instruments(Struct, gc=False):
    data: list[_Instrument]
    action: str | None = None


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Instruments).decode
    emit = context.emitter.derivative_ticker
    known = BoundedSet[str]()

    def derivative_tickers(line: bytes) -> bool:
        message = decode(line)
        partial = message.action == "partial"
        for row in message.data:
            symbol = row.symbol
            is_known = partial or symbol in known
            if not is_known or (row.state is not UNSET and row.state not in _OPEN):
                continue
            if symbol is None:
                raise MapperError("instrument", "no symbol")
            known.add(symbol)
            funding = row.funding_timestamp
            timestamp = row.timestamp
            emit(
                symbol,
                KEEP_OR_LOCAL
                if timestamp is UNSET
                else parse_ms(timestamp)
                if timestamp
                else LATEST_KNOWN,
                last_price=row.last_price,
                open_interest=row.open_interest,
                funding_rate=row.funding_rate,
                funding_timestamp=parse_ms(funding) if funding else None,
                predicted_funding_rate=row.predicted_funding_rate,
                index_price=row.index_price,
                mark_price=row.mark_price,
            )
        return True

    return named({"instrument": derivative_tickers})


class _Liquidation(Struct, gc=False):
    symbol: str
    price: Number
    amount: Number = field(name="leavesQty")
    id: str | None = field(name="orderID", default=None)
    side: str | None = None


def _liquidations(context: MapperContext) -> ChannelHandlers:
    inserts = _inserts(_Liquidation)
    emit = context.emitter.liquidation

    def liquidations(line: bytes) -> bool:
        rows = inserts(line)
        if rows is None:
            return False
        for row in rows:
            side: Side = "buy" if row.side == "Buy" else "sell"
            emit(row.symbol, row.id, row.price, row.amount, side, None)
        return True

    return named({"liquidation": liquidations})


class _Quote(Struct, gc=False):
    symbol: str
    timestamp: str
    bid_amount: Number | None = field(name="bidSize", default=None)
    bid_price: Number | None = field(name="bidPrice", default=None)
    ask_price: Number | None = field(name="askPrice", default=None)
    ask_amount: Number | None = field(name="askSize", default=None)


_QUOTES: Final = KernelShape(
    emits="book_ticker",
    fields={
        "action": Is(("insert",)),
        "data": Rows(
            {
                "timestamp": Iso(),
                "symbol": Symbol(),
                "bidSize": BidAmount(nonzero=True),
                "bidPrice": BidPrice(nonzero=True),
                "askPrice": AskPrice(nonzero=True),
                "askSize": AskAmount(nonzero=True),
            }
        ),
    },
)


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    inserts = _inserts(_Quote)
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        rows = inserts(line)
        if rows is None:
            return False
        for row in rows:
            emit(
                row.symbol,
                number_if_nonzero(row.ask_amount),
                number_if_nonzero(row.ask_price),
                number_if_nonzero(row.bid_price),
                number_if_nonzero(row.bid_amount),
                cut_ms(row.timestamp),
            )
        return True

    return named({"quote": KernelHandler(book_tickers, _QUOTES)})


def _topics(op: str, filters: Sequence[Filter]) -> Iterator[Outgoing]:
    for each in filters:
        if each.symbols is None:
            yield {"op": op, "args": [each.channel]}
        else:
            for symbols in chunks(each.symbols, 10):
                yield {"op": op, "args": [f"{each.channel}:{symbol}" for symbol in symbols]}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _topics("subscribe", filters)


def _unsubscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _topics("unsubscribe", filters)


_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://ws.bitmex.com/realtime"),),
    subscribe=_subscribe,
    unsubscribe=_unsubscribe,
    without_symbols=None,
    data=(b'{"table":"',),
    acks=either(present("info"), equals("success", True)),
    errors=either(present("error"), both(present("subscribe"), equals("success", False))),
)


EXCHANGES: Final = (
    Exchange(
        name="bitmex",
        types={
            "trade": one_era(_trades, "trade"),
            "book_change": one_era(_book_changes, "orderBookL2"),
            "derivative_ticker": one_era(_derivative_tickers, "instrument"),
            "liquidation": one_era(_liquidations, "liquidation"),
            "book_ticker": one_era(_book_tickers, "quote"),
        },
        dispatch=prefixed(b'{"table":"', "table"),
        live=_LIVE,
        subscriptions=subscriptions({"op": "subscribe"}, "args", channel_first(":")),
    ),
)
