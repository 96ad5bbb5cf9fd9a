"""BitMEX: tables of rows, with an action that says what happened to them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, ValidationError, field
from msgspec.json import Decoder

from tardis_machine.emit import Emitter
from tardis_machine.exchanges.dialect import (
    Dialect,
    Endpoint,
    Outgoing,
    Session,
    both,
    chunks,
    either,
    equals,
    present,
)
from tardis_machine.exchanges.dispatch import dispatcher
from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Handler, Making
from tardis_machine.exchanges.numbers import nonzero
from tardis_machine.exchanges.subscriptions import channel_first, subscriptions
from tardis_machine.exchanges.tickers import Tickers
from tardis_machine.exchanges.times import is_later, milliseconds, to_millisecond
from tardis_machine.history.filters import Filter

Number = int | float
Row = TypeVar("Row")
_OPEN: Final = frozenset(("Open", "Closed"))


class _Envelope(Struct, gc=False):
    table: str | None = None
    action: str | None = None


_envelope: Final = Decoder(_Envelope).decode


class _Inserted(Struct, Generic[Row], gc=False):
    data: list[Row]
    action: str | None = None


def _inserts(row: type[Row]) -> Callable[[bytes], list[Row] | None]:
    """Read the rows of a table in which only inserts count: None if it is another action.

    A partial repeats what was there before, updates and deletes are not whole rows.
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


def _trades(emitter: Emitter) -> Handler:
    inserts = _inserts(_Trade)
    emit = emitter.trade

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
                to_millisecond(row.timestamp),
            )
        return True

    return trades


class _Level(Struct, gc=False):
    symbol: str | None = None
    id: Number | None = None
    side: str | None = None
    size: Number | None = None
    price: Number | UnsetType = UNSET
    timestamp: str | UnsetType | None = UNSET


class _Selection(Struct, gc=False):
    symbol: str | None = None


class _Levels(Struct, gc=False):
    data: list[_Level]
    action: str | None = None
    filter: _Selection | None = None


def _book_changes(emitter: Emitter) -> Handler:
    decode = Decoder(_Levels).decode
    emit = emitter.book_change
    prices: dict[Number | None, Number] = {}
    price_of = prices.get

    def change(symbol: str | None, action: str | None, rows: list[_Level]) -> bool:
        bids: list[tuple[Number, Number]] = []
        asks: list[tuple[Number, Number]] = []
        latest = rows[0].timestamp if rows else UNSET
        for row in rows:
            timestamp = row.timestamp
            if timestamp != latest and timestamp and (not latest or is_later(timestamp, latest)):
                latest = timestamp
            price = row.price
            if price is UNSET:
                known = price_of(row.id)
                if known is None:  # an update before its partial
                    continue
                price = known
            else:
                prices[row.id] = price
            (bids if row.side == "Buy" else asks).append((price, row.size or 0))
            if action == "delete":
                del prices[row.id]
        if bids or asks or action == "partial":
            if symbol is None or (not latest and latest is not UNSET):
                raise MapperError("orderBookL2", f"rows without {'time' if symbol else 'symbol'}")
            emit(
                symbol,
                action == "partial",
                bids,
                asks,
                to_millisecond(latest) if latest else emitter.local,
            )
        return True

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        rows = message.data
        action = message.action
        if action != "partial":  # of one symbol
            if not rows:
                raise MapperError("orderBookL2", f"{action} without rows")
            return change(rows[0].symbol, action, rows)
        by_symbol: dict[str | None, list[_Level]] = {}
        for row in rows:
            by_symbol.setdefault(row.symbol, []).append(row)
        if not rows and message.filter is not None and message.filter.symbol is not None:
            by_symbol[message.filter.symbol] = rows
        for symbol, its_rows in by_symbol.items():
            change(symbol, action, its_rows)
        return True

    return book_changes


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


def _derivative_tickers(emitter: Emitter) -> Handler:
    decode = Decoder(_Instruments).decode
    tickers = Tickers(emitter)

    def derivative_tickers(line: bytes) -> bool:
        message = decode(line)
        partial = message.action == "partial"
        for row in message.data:
            symbol = row.symbol
            known = partial or symbol in tickers
            if not known or (row.state is not UNSET and row.state not in _OPEN):
                continue
            if symbol is None:
                raise MapperError("instrument", "no symbol")
            funding = row.funding_timestamp
            funding_timestamp = milliseconds(funding) if funding else None
            ticker = tickers[symbol]
            timestamp = row.timestamp
            if timestamp is not UNSET:
                ticker.seen_at(milliseconds(timestamp) if timestamp else None, "instrument")
            ticker.update(
                last_price=row.last_price,
                open_interest=row.open_interest,
                funding_rate=row.funding_rate,
                funding_timestamp=funding_timestamp,
                predicted_funding_rate=row.predicted_funding_rate,
                index_price=row.index_price,
                mark_price=row.mark_price,
            )
            ticker.send()
        return True

    return derivative_tickers


class _Liquidation(Struct, gc=False):
    symbol: str
    price: Number
    amount: Number = field(name="leavesQty")
    id: str | None = field(name="orderID", default=None)
    side: str | None = None


def _liquidations(emitter: Emitter) -> Handler:
    inserts = _inserts(_Liquidation)
    emit = emitter.liquidation

    def liquidations(line: bytes) -> bool:
        rows = inserts(line)
        if rows is None:
            return False
        for row in rows:
            side = "buy" if row.side == "Buy" else "sell"
            emit(row.symbol, row.id, row.price, row.amount, side, emitter.local)
        return True

    return liquidations


class _Quote(Struct, gc=False):
    symbol: str
    timestamp: str
    bid_amount: Number | None = field(name="bidSize", default=None)
    bid_price: Number | None = field(name="bidPrice", default=None)
    ask_price: Number | None = field(name="askPrice", default=None)
    ask_amount: Number | None = field(name="askSize", default=None)


def _book_tickers(emitter: Emitter) -> Handler:
    inserts = _inserts(_Quote)
    emit = emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        rows = inserts(line)
        if rows is None:
            return False
        for row in rows:
            emit(
                row.symbol,
                nonzero(row.ask_amount),
                nonzero(row.ask_price),
                nonzero(row.bid_price),
                nonzero(row.bid_amount),
                to_millisecond(row.timestamp),
            )
        return True

    return book_tickers


_TABLES: Final[Mapping[str, tuple[str, Callable[[Emitter], Handler]]]] = {
    "trade": ("trade", _trades),
    "book_change": ("orderBookL2", _book_changes),
    "derivative_ticker": ("instrument", _derivative_tickers),
    "liquidation": ("liquidation", _liquidations),
    "book_ticker": ("quote", _book_tickers),
}


def _mapper(making: Making) -> Handler:
    handlers = {}
    for each in making.forms:
        table, make = _TABLES[each]
        handlers[table] = make(making.emitter)
    return dispatcher(b'{"table":"', lambda line: _envelope(line).table, handlers.get)


def _topics(op: str, filters: Sequence[Filter]) -> Iterator[Outgoing]:
    for each in filters:
        if each.symbols is None:
            yield {"op": op, "args": [each.channel]}
        else:
            for symbols in chunks(each.symbols, 10):
                yield {"op": op, "args": [f"{each.channel}:{symbol}" for symbol in symbols]}


def _subscribe(filters: Sequence[Filter], _: Session) -> Iterator[Outgoing]:
    return _topics("subscribe", filters)


def _unsubscribe(filters: Sequence[Filter], _: Session) -> Iterator[Outgoing]:
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
        types={each: (Era((Channel(t, str.upper),)),) for each, (t, _) in _TABLES.items()},
        make=_mapper,
        live=_LIVE,
        subscriptions=subscriptions({"op": "subscribe"}, "args", channel_first(":")),
    ),
)
