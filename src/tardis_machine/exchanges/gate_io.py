"""Gate.io: messages of a channel with an event and a result."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.engine import Objects, Signed
from tardis_machine.engine.shapes import (
    AskAmount,
    AskPrice,
    BidAmount,
    BidPrice,
    BookRows,
    Field,
    Is,
    KernelShape,
    Milliseconds,
    NumberId,
    Object,
    Plain,
    Price,
    Rows,
    SignedAmount,
    Symbol,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    both,
    either,
    equals,
    negated,
    present,
    reads_as_unknown_symbol,
)
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_nonzero,
    number_if_sent,
    number_or_error,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.history.filters import Filter

_MILLISECONDS: Final = 1000
_NO_LEVELS: Final = Raw(b"[]")
_NO_RESULT: Final = Raw(b"null")


def _size(value: JsonNumber) -> tuple[str | int | float, bool]:
    """Return a size without its sign, and whether it was below 0."""
    size = number_or_error(value, "trades", "size")
    if isinstance(size, str):
        return size.removeprefix("-"), size.startswith("-")
    return abs(size), size < 0


class _Trade(Struct, gc=False):
    symbol: str = field(name="contract")
    price: JsonNumber
    size: JsonNumber
    id: int | str
    seconds: JsonNumber = field(name="create_time", default=UNSET)
    milliseconds: JsonNumber = field(name="create_time_ms", default=UNSET)


class _Trades(Struct, gc=False):
    """A list of trades; `result` is an object in the answer to a subscription."""

    result: list[_Trade] | dict[str, Any] | None = None
    event: str | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        message = decode(line)
        if message.event != "update" or not isinstance(message.result, list):
            return False
        for row in message.result:
            amount, is_sale = _size(row.size)
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, "trades", "price"),
                amount,
                "sell" if is_sale else "buy",
                _time(row.milliseconds, row.seconds),
            )
        return True

    return named({"futures.trades": KernelHandler(trades, _TRADES)})


_TRADES: Final = KernelShape(
    emits="trade",
    fields={
        "event": Is(("update",)),
        "result": Rows(
            {
                "contract": Symbol(),
                "id": NumberId(),
                "price": Price(text=True),
                "size": SignedAmount(text=None),
                "create_time": Plain(),
                "create_time_ms": Milliseconds(),
            }
        ),
    },
)


def _time(milliseconds: JsonNumber, seconds: JsonNumber) -> int:
    """Return the time in milliseconds, from seconds if there are no milliseconds."""
    if milliseconds is not UNSET:
        return time(milliseconds, "message", "time_ms")
    return time(seconds, "message", "time") * _MILLISECONDS


class _Book(Struct, gc=False):
    symbol: str | None = field(name="contract", default=None)
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    milliseconds: JsonNumber = field(name="t", default=UNSET)


class _Row(Struct, gc=False):
    """The first row of an update, whose contract and time are those of all rows."""

    symbol: str | None = field(name="c", default=None)
    milliseconds: JsonNumber = field(name="t", default=UNSET)


class _Books(Struct, gc=False):
    """A snapshot is one object, an update a list of rows."""

    result: Raw = _NO_RESULT
    event: str | None = None
    seconds: JsonNumber = field(name="time", default=UNSET)


def _unsigned(levels: Raw) -> Raw:
    """Return a snapshot's levels without signs, which mean a side only in updates."""
    return Raw(_SIGN.sub(rb"\1", bytes(levels)))


_SIGN: Final = re.compile(rb'("s"\s*:\s*"?)-')
_LEVELS: Final = Objects("p", "s")
_ROWS: Final = Signed("p", "s")
_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={
        "time": Plain(),
        "event": Is(("update",)),
        "result": BookRows(_ROWS, symbol="c", milliseconds="t"),
    },
)


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Books).decode
    decode_snapshot = Decoder(_Book).decode
    decode_rows = Decoder(list[Raw]).decode
    decode_row = Decoder(_Row).decode
    emit = context.emitter.book_change
    emit_rows = context.emitter.book_rows

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        if message.event == "update":
            rows = decode_rows(message.result)
            if rows:
                first = decode_row(rows[0])
                contract = symbol(first.symbol, "order_book")
                # time_ms, where there is one, never counted here
                timestamp = _time(first.milliseconds, message.seconds)
                emit_rows(contract, False, message.result, timestamp, _ROWS)
        elif message.event == "all":
            book = decode_snapshot(message.result)
            if book.milliseconds != 0:  # a contract without a book has no time
                contract = symbol(book.symbol, "order_book")
                timestamp = _time(book.milliseconds, message.seconds)
                bids, asks = _unsigned(book.bids), _unsigned(book.asks)
                emit(contract, True, bids, asks, timestamp, _LEVELS)
        else:
            return False
        return True

    return named({"futures.order_book": KernelHandler(book_changes, _UPDATE)})


class _Ticker(Struct, gc=False):
    symbol: str | None = field(name="contract", default=None)
    last: JsonNumber = UNSET
    mark_price: JsonNumber = UNSET
    index_price: JsonNumber = UNSET
    funding_rate: JsonNumber = UNSET
    indicative_rate: JsonNumber = field(name="funding_rate_indicative", default=UNSET)
    total_size: JsonNumber = UNSET


class _Tickers(Struct, gc=False):
    """A message of tickers; rows that are lists, sent for a while, are ignored."""

    result: list[_Ticker | list[Any]] | _Ticker | UnsetType | None = UNSET
    event: str | None = None
    seconds: JsonNumber = field(name="time", default=UNSET)
    milliseconds: JsonNumber = field(name="time_ms", default=UNSET)


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Tickers).decode
    emit = context.emitter.derivative_ticker

    def derivative_tickers(line: bytes) -> bool:
        message = decode(line)
        if message.event != "update":
            return False
        result = message.result
        for row in [result] if isinstance(result, _Ticker) else result or ():
            if isinstance(row, list) or row.symbol is None:
                continue
            if message.milliseconds is UNSET:
                timestamp = ticker_time(message.seconds) * _MILLISECONDS
            else:
                timestamp = ticker_time(message.milliseconds)
            emit(
                row.symbol,
                timestamp,
                last_price=number_or_error(row.last, "tickers", "last"),
                open_interest=number_if_sent(row.total_size),
                funding_rate=number_or_error(row.funding_rate, "tickers", "funding_rate"),
                predicted_funding_rate=number_or_error(
                    row.indicative_rate, "tickers", "indicative rate"
                ),
                index_price=number_or_error(row.index_price, "tickers", "index_price"),
                mark_price=number_or_error(row.mark_price, "tickers", "mark_price"),
            )
        return True

    return named({"futures.tickers": derivative_tickers})


class Best(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    bid_price: JsonNumber = field(name="b", default=UNSET)
    bid_amount: JsonNumber = field(name="B", default=UNSET)
    ask_price: JsonNumber = field(name="a", default=UNSET)
    ask_amount: JsonNumber = field(name="A", default=UNSET)
    milliseconds: JsonNumber = field(name="t", default=UNSET)


class _Bests(Struct, gc=False):
    result: Best | UnsetType | None = UNSET
    event: str | None = None


_decode_best: Final = Decoder(_Bests).decode


def updated_best(line: bytes) -> Best | None:
    """Return a book ticker; None for the answer to a subscription."""
    message = _decode_best(line)
    row = message.result
    return row if message.event == "update" and isinstance(row, Best) else None


def best_shape(bid_amount: BidAmount, ask_amount: AskAmount) -> KernelShape:
    """Return the shape of book tickers; amounts differ."""
    row: dict[str, Field] = {
        "t": Milliseconds(),
        "s": Symbol(),
        "b": BidPrice(text=True),
        "B": bid_amount,
        "a": AskPrice(text=True),
        "A": ask_amount,
    }
    return KernelShape(
        emits="book_ticker", fields={"event": Is(("update",)), "result": Object(row)}
    )


def _price(value: JsonNumber, name: str) -> str | int | float | None:
    """Return a price; None if it is empty, for an empty side of the book."""
    return None if value == "" else number_or_error(value, "book_ticker", name)


def _amount(value: JsonNumber, name: str) -> str | int | float | None:
    """Return an amount; None for 0, for an empty side of the book."""
    return number_if_nonzero(number_or_error(value, "book_ticker", name))


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        row = updated_best(line)
        if row is None:
            return False
        timestamp = row.milliseconds
        if timestamp == 0:  # a contract that was never quoted has no time
            return True
        emit(
            symbol(row.symbol, "book_ticker"),
            _amount(row.ask_amount, "A"),
            _price(row.ask_price, "a"),
            _price(row.bid_price, "b"),
            _amount(row.bid_amount, "B"),
            None if timestamp is UNSET else time(timestamp, "book_ticker", "t"),
        )
        return True

    return named({"futures.book_ticker": KernelHandler(book_tickers, _BEST)})


_BEST: Final = best_shape(BidAmount(text=None, nonzero=True), AskAmount(text=None, nonzero=True))


ERRORS: Final = present("error")
ACKS: Final = both(equals("event", "subscribe", "unsubscribe"), negated(ERRORS))
REFUSALS: Final = either(reads_as_unknown_symbol, equals("error.code", 2))  # a wrong argument


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    for each in filters:
        payloads = [[symbol, "20", "0"] for symbol in each.symbols or ()]
        if each.channel != "order_book":
            payloads = [list(each.symbols or ())]
        for payload in payloads:
            yield {
                "event": "subscribe",
                "channel": f"futures.{each.channel}",
                "payload": payload,
                "time": session.seconds,
            }


def _asked(message: Any) -> Iterable[Filter]:
    channel = message["channel"].removeprefix("futures.")
    return (Filter(channel, tuple(message.get("payload") or ())),)


_LIVE: Final = Dialect(
    endpoints=(
        Endpoint(
            name="usdt",
            url="wss://fx-ws.gateio.ws/v4/ws/usdt",
            symbols=lambda symbol: symbol.endswith("_USDT"),
        ),
        Endpoint(name="btc", url="wss://fx-ws.gateio.ws/v4/ws/btc"),
    ),
    headers={"X-Gate-Size-Decimal": "1"},  # sizes with fractions, not only whole contracts
    subscribe=_subscribe,
    acks=ACKS,
    errors=ERRORS,
    refusals=REFUSALS,
    quiet=frozenset(("trades",)),
)


EXCHANGES: Final = (
    Exchange(
        name="gate-io-futures",
        types={
            "trade": one_era(_trades, "trades"),
            "book_change": one_era(_book_changes, "order_book"),
            "derivative_ticker": one_era(_derivative_tickers, "tickers"),
            "book_ticker": one_era(_book_tickers, "book_ticker"),
        },
        dispatch=keyed("channel"),
        live=_LIVE,
        subscriptions=subscriptions({"event": "subscribe"}, "", _asked),
    ),
)
