"""Bitfinex: arrays with a number for their channel; since 2020 they end with its name and pair."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.engine import Signed
from tardis_machine.engine.shapes import (
    AskAmount,
    AskPrice,
    BidAmount,
    BidPrice,
    BookRow,
    Is,
    Items,
    KernelShape,
    Milliseconds,
    NumberId,
    Plain,
    Price,
    SignedAmount,
    Symbol,
    Whole,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler, KernelHandler, arrays
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import ticker_time, time
from tardis_machine.history.filters import Filter

# A message: [number, payload, sequence, milliseconds, channel, pair], or with a word before the
# payload that says what it is.
_PAYLOAD: Final = 1


class _Subscribed(Struct, gc=False):
    event: str | None = None
    number: int | None = field(name="chanId", default=None)
    channel: str | None = None
    pair: str | None = None
    precision: str | None = field(name="prec", default=None)
    key: str | None = None


_decode_subscribed: Final = Decoder(_Subscribed).decode


def announced(line: bytes) -> tuple[int, str] | None:
    """Return the number that stands for a channel and pair, and their names."""
    message = _decode_subscribed(line)
    if message.event != "subscribed" or message.number is None:
        return None
    if message.channel == "status":  # of deriv:tBTCF0:USTF0, or of all liquidations
        of, _, pair = (message.key or "").partition(":")
        channel = "status" if of == "deriv" else "liquidations" if pair == "global" else of
        return message.number, f"{channel} {pair.removeprefix('t')}"
    if message.channel == "book" and message.precision != "P0":
        return message.number, f"raw_book {message.pair}"
    return message.number, f"{message.channel} {message.pair or ''}"


def of_pairs(
    channel: str, handler: Callable[[str], Handler], shape: KernelShape | None = None
) -> ChannelHandlers:
    """Return handlers of a channel, one for each pair in the channel's names."""

    def handler_of(name: str) -> Handler | KernelHandler | None:
        its_channel, _, pair = name.partition(" ")
        if its_channel != channel or not pair:
            return None
        return handler(pair) if shape is None else KernelHandler(handler(pair), shape)

    return handler_of


class _Message(Struct, array_like=True, gc=False):
    """A message; heartbeats need not have a sequence and a time."""

    number: int
    payload: Raw
    sequence: Any = None
    timestamp: int | float | None = None


_decode_message: Final = Decoder(_Message).decode


def elements(line: bytes) -> tuple[bytes, int | float | None]:
    """Return payload and time of a message."""
    message = _decode_message(line)
    return bytes(message.payload), message.timestamp


class _Trade(Struct, array_like=True, gc=False):
    id: int | str
    timestamp: int | float | None
    amount: int | float
    price: int | float


class _Executed(Struct, array_like=True, gc=False):
    number: int
    word: Raw
    trade: Raw = Raw(b"null")


_decode_trade: Final = Decoder(_Trade).decode
_decode_executed: Final = Decoder(_Executed).decode


def trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def of_pair(pair: str) -> Handler:
        def trade(line: bytes) -> bool:
            message = _decode_executed(line)
            # Besides executed trades there are updates of them, and a snapshot of earlier ones.
            if bytes(message.word) == b'"te"':
                row = _decode_trade(message.trade)
                emit(
                    pair,
                    row.id,
                    row.price,
                    abs(row.amount),
                    "sell" if row.amount < 0 else "buy",
                    time(row.timestamp, "trades", "time"),
                )
            return True

        return trade

    return of_pairs("trades", of_pair, _TRADE)


_TRADE: Final = KernelShape(
    emits="trade",
    fields=(
        Whole(),
        Is(("te",)),
        Items((NumberId(), Milliseconds(), SignedAmount(), Price())),
        Plain(),
        Plain(),
        Is(("trades",)),
        Symbol(),
    ),
)


_LEVELS: Final = Signed(price=0, amount=2, count=1)


class _Change(Struct, array_like=True, gc=False):
    number: int
    payload: Any
    sequence: Any = None
    timestamp: int | float | None = None


_decode_change: Final = Decoder(_Change).decode


def book_changes(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_rows

    def of_pair(pair: str) -> Handler:
        def book_change(line: bytes) -> bool:
            message = _decode_change(line)
            payload = message.payload
            if isinstance(payload, list):  # or else a heartbeat
                is_snapshot = bool(payload) and isinstance(payload[0], list)
                rows = payload if is_snapshot else [payload]
                emit(pair, is_snapshot, rows, time(message.timestamp, "book", "time"), _LEVELS)
            return True

        return book_change

    return of_pairs("book", of_pair, _UPDATE)


_UPDATE: Final = KernelShape(
    emits="book_change",
    fields=(
        Whole(),
        BookRow(_LEVELS),
        Plain(),
        Milliseconds(),
        Is(("book",)),
        Symbol(),
    ),
)


_decode_ticker: Final = Decoder(list[str | int | float | None]).decode
# A currency's ticker, of funding, has more fields than a pair's.
_PAIR_FIELDS: Final = range(4, 12)


def book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker

    def of_pair(pair: str) -> Handler:
        def book_ticker(line: bytes) -> bool:
            payload, timestamp = elements(line)
            if payload[:1] == b"[":
                fields = _decode_ticker(payload)
                if len(fields) in _PAIR_FIELDS:
                    bid, bid_amount, ask, ask_amount = fields[:4]
                    emit(pair, ask_amount, ask, bid, bid_amount, time(timestamp, "ticker", "time"))
            return True

        return book_ticker

    return of_pairs("ticker", of_pair, _TICKER)


_TICKER: Final = KernelShape(
    emits="book_ticker",
    fields=(
        Whole(),
        Items((BidPrice(), BidAmount(), AskPrice(), AskAmount(), *[Plain()] * 7)),
        Plain(),
        Milliseconds(),
        Is(("ticker",)),
        Symbol(),
    ),
)


_LAST, _INDEX, _FUNDING_TIME, _PREDICTED, _RATE, _MARK, _INTEREST = 2, 3, 7, 8, 11, 14, 17
_STATUS: Final = 18
_decode_status: Final = Decoder(list[str | int | float | None]).decode


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker

    def of_pair(pair: str) -> Handler:
        def status(line: bytes) -> bool:
            payload, timestamp = elements(line)
            if payload[:1] != b"[":
                return True
            fields = _decode_status(payload)
            has_funding = len(fields) > _FUNDING_TIME
            fields += [None] * (_STATUS - len(fields))  # fields were added over the years
            emit(
                pair,
                ticker_time(timestamp),
                last_price=fields[_LAST],
                open_interest=fields[_INTEREST],
                funding_rate=fields[_RATE],
                funding_timestamp=time(fields[_FUNDING_TIME], "status", "funding")
                if has_funding
                else None,
                predicted_funding_rate=fields[_PREDICTED],
                index_price=fields[_INDEX],
                mark_price=fields[_MARK],
            )
            return True

        return status

    return of_pairs("status", of_pair)


class _Liquidation(Struct, array_like=True, gc=False):
    """A position that is liquidated; with `is_match` the row only reports its progress."""

    kind: str
    id: int | str
    timestamp: int | float | None
    _: Any
    symbol: str
    amount: int | float
    price: int | float
    __: Any = None
    is_match: int | float | None = None


_decode_liquidations: Final = Decoder(list[_Liquidation]).decode


def _liquidations(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.liquidation

    def liquidations(line: bytes) -> bool:
        payload, _ = elements(line)
        if payload[:1] == b"[":
            for row in _decode_liquidations(payload):
                if row.is_match == 0:
                    emit(
                        row.symbol.replace("t", "", 1),
                        row.id,
                        row.price,
                        abs(row.amount),
                        "buy" if row.amount < 0 else "sell",
                        time(row.timestamp, "liquidations", "time"),
                    )
        return True

    return of_pairs("liquidations", lambda _: liquidations)


_WITH_TIMES_AND_SEQUENCES: Final = 32768 + 65536


def _asked(channel: str, symbol: str) -> Mapping[str, Any]:
    match channel:
        case "status":
            return {"channel": channel, "key": f"deriv:t{symbol}"}
        case "book" | "raw_book":
            precision = "P0" if channel == "book" else "R0"
            book = {"channel": "book", "len": 100, "prec": precision, "freq": "F0"}
            return book | {"symbol": f"t{symbol}"}
    return {"channel": channel, "symbol": f"t{symbol}"}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    yield {"event": "conf", "flags": _WITH_TIMES_AND_SEQUENCES}
    for each in filters:
        if each.channel == "liquidations":  # of all symbols
            yield {"event": "subscribe", "channel": "status", "key": "liq:global"}
        else:
            for symbol in each.symbols or ():
                yield {"event": "subscribe", **_asked(each.channel, symbol)}


def _is_heartbeat(message: Any) -> bool:
    return isinstance(message, list) and message[_PAYLOAD : _PAYLOAD + 1] == ["hb"]


def _native(_: Any) -> list[Filter]:
    """Return no filters, which is all channels: clients distinguish them by numbers in messages."""
    return []


_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://api-pub.bitfinex.com/ws/2"),),
    subscribe=_subscribe,
    heartbeats=_is_heartbeat,
    acks=equals("event", "info", "conf", "subscribed"),
    errors=equals("event", "error"),
    without_symbols=frozenset(("liquidations",)),
    quiet=frozenset(("trades", "liquidations")),
    max_streams=25,
)


_DISPATCH: Final = arrays(2, announced)

EXCHANGES: Final = (
    Exchange(
        name="bitfinex",
        types={
            "trade": one_era(trades, "trades"),
            "book_change": one_era(book_changes, "book"),
            "book_ticker": one_era(book_tickers, "ticker"),
        },
        dispatch=_DISPATCH,
        live=_LIVE,
        subscriptions=_native,
    ),
    Exchange(
        name="bitfinex-derivatives",
        types={
            "trade": one_era(trades, "trades"),
            "book_change": one_era(book_changes, "book"),
            "derivative_ticker": one_era(_derivative_tickers, "status"),
            "liquidation": (Era((Channel("liquidations", has_symbols=False),), _liquidations),),
            "book_ticker": one_era(book_tickers, "ticker"),
        },
        dispatch=_DISPATCH,
        live=_LIVE,
        subscriptions=_native,
    ),
)
