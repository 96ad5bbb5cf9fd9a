"""OKEx: version 3 named its tables by market, version 5 has the same channels for all of them."""

import hmac
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import KEEP_OR_LOCAL, LATEST_KNOWN, PAIRS
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
    Iso,
    KernelShape,
    Milliseconds,
    Object,
    Plain,
    Price,
    Rows,
    Single,
    Symbol,
    TakerSide,
    TextId,
    Whole,
)
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    KernelHandler,
    SharedDecoder,
    named,
    prefixed,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Secrets,
    both,
    chunks,
    equals,
    pairs,
    with_text_pong,
)
from tardis_machine.exchanges.base.exchange import (
    Channel,
    Era,
    Exchange,
    MapperContext,
    date,
    upper_channels,
)
from tardis_machine.exchanges.base.fields import (
    JsonLevels,
    JsonNumber,
    best,
    number_if_nonzero,
    number_if_sent,
    number_or_error,
    side,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import channel_first, subscriptions
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import cut_ms, parse_ms

Maker = Callable[[MapperContext], ChannelHandlers]
R = TypeVar("R")

V3: Final = prefixed(b'{"table":"', "table")
V5: Final = prefixed(b'{"arg":{"channel":"', "arg", "channel")
VERSION_5: Final = date("2021-12-23")
_NO_LEVELS: Final = 2  # the length of []
_MAX_ARGUMENTS: Final = 500  # of a message, which may have 64 KiB


def _has_levels(bids: Raw, asks: Raw) -> bool:
    return len(bids) > _NO_LEVELS or len(asks) > _NO_LEVELS


# Version 3 ----------------------------------------------------------------------------------------


class _Trade3(Struct, gc=False):
    symbol: str = field(name="instrument_id")
    price: JsonNumber
    side: Literal["buy", "sell"]
    timestamp: str
    id: str | float | None = field(name="trade_id", default=None)
    size: JsonNumber = UNSET
    quantity: JsonNumber = field(name="qty", default=UNSET)


class _Trades3(Struct, gc=False):
    data: list[_Trade3]


def trades_3(market: str) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_Trades3).decode
        emit = context.emitter.trade

        def trades(line: bytes) -> bool:
            for row in decode(line).data:
                amount = row.size if row.quantity is UNSET else row.quantity
                emit(
                    row.symbol,
                    row.id if isinstance(row.id, str) else None,
                    number_or_error(row.price, "trade", "price"),
                    number_or_error(amount, "trade", "size"),
                    row.side,
                    cut_ms(row.timestamp),
                )
            return True

        return named({f"{market}/trade": KernelHandler(trades, _SHAPES_3.get(market, _TRADES_3))})

    return make


def _trades_shape_3(sizes: Mapping[str, Field]) -> KernelShape:
    row: dict[str, Field] = {
        "instrument_id": Symbol(),
        "price": Price(text=True),
        "side": TakerSide(buy="buy", sell="sell"),
        **sizes,
        "timestamp": Iso(),
        "trade_id": TextId(),
    }
    return KernelShape(emits="trade", fields={"data": Rows(row)})


_TRADES_3: Final = _trades_shape_3({"size": Amount(text=True), "qty": Absent()})
_FUTURES_TRADES_3: Final = _trades_shape_3({"qty": Amount(text=True), "size": Plain()})
_SHAPES_3: Final = {"futures": _FUTURES_TRADES_3}


class _Book3(Struct, gc=False):
    symbol: str = field(name="instrument_id")
    bids: Raw
    asks: Raw
    timestamp: str


class _Books3(Struct, gc=False):
    data: list[_Book3]
    action: str | None = None


def book_changes_3(table: str) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_Books3).decode
        emit = context.emitter.book_change

        def book_changes(line: bytes) -> bool:
            message = decode(line)
            is_snapshot = message.action == "partial"
            for row in message.data:
                if is_snapshot or _has_levels(row.bids, row.asks):
                    emit(row.symbol, is_snapshot, row.bids, row.asks, cut_ms(row.timestamp))
            return True

        return named({table: KernelHandler(book_changes, _UPDATE_3)})

    return make


_UPDATE_3: Final = KernelShape(
    emits="book_change",
    fields={
        "action": Is(("update",)),
        "data": Single(
            {
                "instrument_id": Symbol(),
                "asks": Asks(PAIRS),
                "bids": Bids(PAIRS),
                "timestamp": Iso(),
            }
        ),
    },
    filled=True,
)


class _Ticker3(Struct, gc=False):
    """A ticker, a mark price or a funding rate, distinguished by their fields."""

    symbol: str = field(name="instrument_id")
    timestamp: str | UnsetType | None = UNSET
    last: JsonNumber = UNSET
    open_interest: JsonNumber = UNSET
    mark_price: JsonNumber = UNSET
    funding_rate: JsonNumber = UNSET
    funding_time: str | None = None
    estimated_rate: JsonNumber = UNSET
    best_ask: JsonNumber = UNSET
    best_ask_size: JsonNumber = UNSET
    best_bid: JsonNumber = UNSET
    best_bid_size: JsonNumber = UNSET


class _Tickers3(Struct, gc=False):
    data: list[_Ticker3]


_decode_tickers_3: Final = Decoder(_Tickers3).decode


def derivative_tickers_3(market: str, *tables: str) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.derivative_ticker

        def derivative_tickers(message: _Tickers3) -> bool:
            for row in message.data:
                timestamp = row.timestamp
                has_rate = row.funding_rate is not UNSET
                emit(
                    row.symbol,
                    KEEP_OR_LOCAL
                    if timestamp is UNSET
                    else parse_ms(timestamp)
                    if timestamp
                    else LATEST_KNOWN,
                    last_price=number_if_sent(row.last),
                    open_interest=number_if_nonzero(row.open_interest),
                    funding_rate=number_if_sent(row.funding_rate),
                    funding_timestamp=cut_ms(row.funding_time or "") if has_rate else None,
                    predicted_funding_rate=number_if_sent(row.estimated_rate) if has_rate else None,
                    mark_price=number_if_sent(row.mark_price),
                )
            return True

        handler = SharedDecoder(_decode_tickers_3, derivative_tickers)
        return named({f"{market}/{table}": handler for table in tables})

    return make


def book_tickers_3(market: str) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.book_ticker

        def book_tickers(message: _Tickers3) -> bool:
            for row in message.data:
                emit(
                    row.symbol,
                    number_if_nonzero(row.best_ask_size),
                    number_if_nonzero(row.best_ask),
                    number_if_nonzero(row.best_bid),
                    number_if_nonzero(row.best_bid_size),
                    cut_ms(row.timestamp or ""),
                )
            return True

        return named({f"{market}/ticker": SharedDecoder(_decode_tickers_3, book_tickers)})

    return make


class _Liquidation3(Struct, gc=False):
    symbol: str = field(name="instrument_id")
    price: JsonNumber
    size: JsonNumber
    timestamp: str = field(name="created_at")
    type: str | None = None


class _Liquidations3(Struct, gc=False):
    data: list[_Liquidation3]


_LONG: Final = "3"


def liquidations_3(market: str) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_Liquidations3).decode
        emit = context.emitter.liquidation

        def liquidations(line: bytes) -> bool:
            for row in decode(line).data:
                emit(
                    row.symbol,
                    None,
                    number_or_error(row.price, "liquidation", "price"),
                    number_or_error(row.size, "liquidation", "size"),
                    "sell" if row.type == _LONG else "buy",
                    cut_ms(row.timestamp),
                )
            return True

        return named({f"{market}/liquidation": liquidations})

    return make


# Version 5 ----------------------------------------------------------------------------------------


class _Argument(Struct, gc=False):
    symbol: str | None = field(name="instId", default=None)


class _Trade5(Struct, gc=False):
    symbol: str = field(name="instId")
    price: JsonNumber = field(name="px")
    amount: JsonNumber = field(name="sz")
    timestamp: JsonNumber = field(name="ts")
    id: str | None = field(name="tradeId", default=None)
    side: str | None = None


class Trades5(Struct, Generic[R], gc=False):
    """Trades; what answers a subscription has none."""

    data: list[R] | UnsetType = UNSET


def trades_shape(symbol: str) -> KernelShape:
    """Return the shape of trades that have their symbol at this key."""
    row: dict[str, Field] = {
        symbol: Symbol(),
        "tradeId": TextId(),
        "px": Price(text=True),
        "sz": Amount(text=True),
        "side": TakerSide(buy="buy", sell="sell"),
        "ts": Milliseconds(text=True),
    }
    return KernelShape(emits="trade", fields={"data": Rows(row)})


def trades_of(
    decode: Callable[[bytes], Trades5[Any]], shape: KernelShape, *channels: str
) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.trade

        def trades(line: bytes) -> bool:
            rows = decode(line).data
            if rows is UNSET:
                return False
            for row in rows:
                emit(
                    row.symbol,
                    row.id,
                    row.price or number_or_error(row.price, "trades", "px"),
                    row.amount or number_or_error(row.amount, "trades", "sz"),
                    side(row.side, "buy"),
                    time(row.timestamp, "trades", "ts"),
                )
            return True

        return named(dict.fromkeys(channels, KernelHandler(trades, shape)))

    return make


_TRADES_5: Final = trades_shape("instId")
trades_5: Final = trades_of(Decoder(Trades5[_Trade5]).decode, _TRADES_5, "trades", "trades-all")


class _Book5(Struct, gc=False):
    bids: Raw
    asks: Raw
    timestamp: JsonNumber = field(name="ts")
    last_id: int | None = field(name="seqId", default=None)
    previous_id: int | None = field(name="prevSeqId", default=None)


class _Books5(Struct, gc=False):
    arg: _Argument
    data: list[_Book5] | UnsetType = UNSET
    action: str | None = None


_UPDATE_5: Final = KernelShape(
    emits="book_change",
    fields={
        "arg": Object({"instId": Symbol()}),
        "action": Is(("update",)),
        "data": Single(
            {
                "asks": Asks(PAIRS),
                "bids": Bids(PAIRS),
                "ts": Milliseconds(text=True),
                "prevSeqId": Whole(),
                "seqId": Whole(),
            }
        ),
    },
    filled=True,
)


def book_changes_5(channel: str) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_Books5).decode
        emit = context.emitter.book_change
        ids = UpdateIds(channel, checks_ids=context.checks_ids)

        def book_changes(line: bytes) -> bool:
            message = decode(line)
            rows = message.data
            if rows is UNSET:
                return False
            name = symbol(message.arg.symbol, "books")
            is_snapshot = message.action == "snapshot"
            for row in rows:
                if is_snapshot:
                    ids.start(name, row.last_id)
                elif not ids.follow(name, row.previous_id, row.last_id):
                    continue
                timestamp = ticker_time(row.timestamp)
                # The time of an instrument that has no book is 0.
                if timestamp and (is_snapshot or _has_levels(row.bids, row.asks)):
                    emit(name, is_snapshot, row.bids, row.asks, timestamp)
            return True

        return named({channel: context.unchecked(book_changes, _UPDATE_5)})

    return make


class Ticker5(Struct, gc=False):
    """The fields of tickers, open interests, mark prices, index prices and funding rates."""

    symbol: str | None = field(name="instId", default=None)
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    last: JsonNumber = UNSET
    open_interest: JsonNumber = field(name="oi", default=UNSET)
    mark_price: JsonNumber = field(name="markPx", default=UNSET)
    index_price: JsonNumber = field(name="idxPx", default=UNSET)
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    funding_time: JsonNumber = field(name="fundingTime", default=UNSET)
    next_funding_rate: JsonNumber = field(name="nextFundingRate", default=UNSET)
    ask_price: JsonNumber = field(name="askPx", default=UNSET)
    ask_amount: JsonNumber = field(name="askSz", default=UNSET)
    bid_price: JsonNumber = field(name="bidPx", default=UNSET)
    bid_amount: JsonNumber = field(name="bidSz", default=UNSET)


class Tickers5(Struct, gc=False):
    data: list[Ticker5] | UnsetType = UNSET


decode_tickers_5: Final = Decoder(Tickers5).decode


def family_of(symbol: str) -> str:
    """Return a contract's instrument family: BTC-USD_UM of BTC-USD_UM-240329-50000-P."""
    return "-".join(symbol.upper().split("-")[:2])


def index_of(symbol: str) -> str:
    """Return the index of a contract: BTC-USD of BTC-USD-SWAP and BTC-USD_UM_XPERP-310404."""
    return family_of(symbol).partition("_")[0]


def dollar_index_of(symbol: str) -> str:
    """Return the index's symbol while contracts in USDC had the index in USD."""
    return index_of(symbol).replace("-USDC", "-USD")


def derivative_tickers_5(index: Callable[[str], str]) -> Maker:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.derivative_ticker
        index_prices = BoundedDict[str | None, str | int | float]()

        def index_tickers(message: Tickers5) -> bool:
            for row in message.data or ():
                price = number_if_nonzero(row.index_price)
                if price is not None:
                    index_prices[row.symbol] = price
            return message.data is not UNSET

        def derivative_tickers(message: Tickers5) -> bool:
            for row in message.data or ():
                name = symbol(row.symbol, "tickers")
                last = number_if_nonzero(row.last)
                interest = number_if_nonzero(row.open_interest)
                mark = number_if_nonzero(row.mark_price)
                # A message without values has no time either; it may still bring an index price.
                has_values = last is not None or interest is not None or mark is not None
                emit(
                    name,
                    ticker_time(row.timestamp) if has_values else KEEP_OR_LOCAL,
                    last_price=last,
                    open_interest=interest,
                    index_price=index_prices.get(index(name)),
                    mark_price=mark,
                )
            return message.data is not UNSET

        def funding_rates(message: Tickers5) -> bool:
            for row in message.data or ():
                name = symbol(row.symbol, "funding-rate")
                funding = row.funding_time
                predicted = row.next_funding_rate
                emit(
                    name,
                    KEEP_OR_LOCAL if row.timestamp is UNSET else ticker_time(row.timestamp),
                    funding_rate=number_if_sent(row.funding_rate),
                    funding_timestamp=None
                    if funding is UNSET
                    else time(funding, "funding", "time"),
                    predicted_funding_rate=None if predicted == "" else number_if_sent(predicted),
                    index_price=index_prices.get(index(name)),
                )
            return message.data is not UNSET

        handler = SharedDecoder(decode_tickers_5, derivative_tickers)
        return named(
            {
                "tickers": handler,
                "open-interest": handler,
                "mark-price": handler,
                "funding-rate": SharedDecoder(decode_tickers_5, funding_rates),
                "index-tickers": SharedDecoder(decode_tickers_5, index_tickers),
            }
        )

    return make


def book_tickers_5(context: MapperContext) -> ChannelHandlers:
    """Map book tickers from tickers, before they had a channel of their own."""
    emit = context.emitter.book_ticker

    def book_tickers(message: Tickers5) -> bool:
        for row in message.data or ():
            emit(
                symbol(row.symbol, "tickers"),
                number_if_nonzero(row.ask_amount),
                number_if_nonzero(row.ask_price),
                number_if_nonzero(row.bid_price),
                number_if_nonzero(row.bid_amount),
                time(row.timestamp, "tickers", "ts"),
            )
        return message.data is not UNSET

    return named({"tickers": SharedDecoder(decode_tickers_5, book_tickers)})


class Best5(Struct, gc=False):
    asks: JsonLevels = None
    bids: JsonLevels = None
    timestamp: JsonNumber = field(name="ts", default=UNSET)


class _Bests5(Struct, gc=False):
    arg: _Argument
    data: list[Best5] | UnsetType = UNSET


_BEST_5: Final = KernelShape(
    emits="book_ticker",
    fields={
        "arg": Object({"instId": Symbol()}),
        "data": Single(
            {
                "asks": Single((AskPrice(text=True), AskAmount(text=True), Plain(), Plain())),
                "bids": Single((BidPrice(text=True), BidAmount(text=True), Plain(), Plain())),
                "ts": Milliseconds(text=True),
            }
        ),
    },
)


def best_5(channel: str) -> Maker:
    """Return the mapper of book tickers from a book of one level."""

    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_Bests5).decode
        emit = context.emitter.book_ticker

        def book_tickers(line: bytes) -> bool:
            message = decode(line)
            for row in message.data or ():
                ask_price, ask_amount = best(row.asks, channel)
                bid_price, bid_amount = best(row.bids, channel)
                emit(
                    symbol(message.arg.symbol, channel),
                    ask_amount,
                    ask_price,
                    bid_price,
                    bid_amount,
                    time(row.timestamp, channel, "ts"),
                )
            return message.data is not UNSET

        return named({channel: KernelHandler(book_tickers, _BEST_5)})

    return make


class _Liquidation5(Struct, gc=False):
    price: JsonNumber = field(name="bkPx")
    amount: JsonNumber = field(name="sz")
    timestamp: JsonNumber = field(name="ts")
    side: str | None = None


class _Liquidations5(Struct, gc=False):
    arg: _Argument
    data: list[_Liquidation5] | UnsetType = UNSET


class _LiquidationOrder5(Struct, gc=False):
    symbol: str = field(name="instId")
    details: list[_Liquidation5]


class _LiquidationOrders5(Struct, gc=False):
    data: list[_LiquidationOrder5] | UnsetType = UNSET


def liquidations_5(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Liquidations5).decode
    decode_orders = Decoder(_LiquidationOrders5).decode
    emit = context.emitter.liquidation
    seen_orders = False

    def send(symbol: str, row: _Liquidation5) -> None:
        emit(
            symbol,
            None,
            number_or_error(row.price, "liquidations", "bkPx"),
            number_or_error(row.amount, "liquidations", "sz"),
            side(row.side, "buy"),
            time(row.timestamp, "liquidations", "ts"),
        )

    def liquidations(line: bytes) -> bool:
        message = decode(line)
        for row in message.data or ():
            send(symbol(message.arg.symbol, "liquidations"), row)
        return message.data is not UNSET

    def orders(line: bytes) -> bool:
        nonlocal seen_orders
        rows = decode_orders(line).data
        if rows is UNSET:
            return False
        if not seen_orders:  # the first message repeats trades of the past
            seen_orders = True
            return True
        for order in rows:
            for row in order.details:
                send(order.symbol, row)
        return True

    return named({"liquidations": liquidations, "liquidation-orders": orders})


# Exchanges ----------------------------------------------------------------------------------------


def era_3(make: Maker, *tables: str, until: int = VERSION_5) -> Era:
    """Return an era of version 3, with tables that name their market."""
    return Era(upper_channels(*tables), make, until, V3)


def era_5(make: Maker, *channels: str, until: int | None = None) -> Era:
    """Return an era of version 5."""
    return Era(upper_channels(*channels), make, until, V5)


def _ticker_era(index: Callable[[str], str], until: int | None = None) -> Era:
    """Return an era of version 5's derivative tickers; index prices go by the index's name."""
    before = upper_channels("tickers", "open-interest", "mark-price")
    channels = (*before, Channel("index-tickers", index), *upper_channels("funding-rate"))
    return Era(channels, derivative_tickers_5(index), until, V5)


def trade_eras(market: str) -> tuple[Era, ...]:
    return (
        era_3(trades_3(market), f"{market}/trade"),
        era_5(trades_5, "trades", until=date("2023-10-19")),
        era_5(trades_5, "trades-all"),
    )


def book_change_eras_3(market: str, tick_by_tick: int, until: int = VERSION_5) -> tuple[Era, ...]:
    """Return a market's books: tick by tick from a date on, both tables before it."""
    each_tick, depth = f"{market}/depth_l2_tbt", f"{market}/depth"
    return (
        era_3(book_changes_3(depth), each_tick, depth, until=tick_by_tick),
        era_3(book_changes_3(each_tick), each_tick, until=until),
    )


def book_change_eras(market: str, tick_by_tick: int) -> tuple[Era, ...]:
    return (
        *book_change_eras_3(market, tick_by_tick),
        era_5(book_changes_5("books-l2-tbt"), "books-l2-tbt", until=date("2023-02-25")),
        era_5(book_changes_5("books"), "books", until=date("2023-03-09")),
        era_5(book_changes_5("books-l2-tbt"), "books-l2-tbt", until=date("2026-05-21")),
        era_5(book_changes_5("books"), "books"),
    )


def derivative_ticker_eras(market: str, *tables: str) -> tuple[Era, ...]:
    return (
        era_3(derivative_tickers_3(market, *tables), *(f"{market}/{table}" for table in tables)),
        _ticker_era(dollar_index_of, until=date("2023-04-10T08:40:00Z")),
        _ticker_era(index_of),
    )


def liquidation_eras(market: str) -> tuple[Era, ...]:
    return (
        era_3(liquidations_3(market), f"{market}/liquidation"),
        era_5(liquidations_5, "liquidations", "liquidation-orders"),
    )


def book_ticker_eras(market: str) -> tuple[Era, ...]:
    return (
        era_3(book_tickers_3(market), f"{market}/ticker"),
        era_5(book_tickers_5, "tickers", until=date("2022-05-06")),
        era_5(best_5("bbo-tbt"), "bbo-tbt"),
    )


def _instrument_type(symbol: str) -> str:
    return "SWAP" if symbol.endswith("SWAP") else "FUTURES"


def _argument(channel: str, symbol: str) -> dict[str, str]:
    match channel:
        case "liquidation-orders":  # sent for a whole market
            return {"channel": channel, "instType": _instrument_type(symbol)}
        case "opt-summary":
            return {"channel": channel, "instFamily": symbol}
        case _ if channel.startswith("sprd-"):
            return {"channel": channel, "sprdId": symbol}
    return {"channel": channel, "instId": symbol}


def _request(op: str, filters: Sequence[Filter]) -> Iterator[Outgoing]:
    arguments = [
        _argument(channel, symbol)
        for channel, symbol in pairs(filters)
        if channel != "liquidations"  # was generated from REST answers, and is no longer recorded
    ]
    for some in chunks(arguments, _MAX_ARGUMENTS):
        yield {"op": op, "args": some}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _request("subscribe", filters)


def _unsubscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _request("unsubscribe", filters)


def _login(session: ConnectionContext) -> Outgoing:
    key, secret, passphrase = session.secrets
    timestamp = str(session.seconds)
    signed = f"{timestamp}GET/users/self/verify"
    sign = b64encode(hmac.digest(secret.encode(), signed.encode(), "sha256")).decode()
    proof = {"apiKey": key, "passphrase": passphrase, "timestamp": timestamp, "sign": sign}
    return {"op": "login", "args": [proof]}


LIVE: Final = Dialect(
    endpoints=(
        Endpoint(
            name="business",
            url="wss://ws.okx.com:8443/ws/v5/business",
            channels=frozenset(("trades-all",)),
        ),
        Endpoint(name="public", url="wss://ws.okx.com:8443/ws/v5/public"),
    ),
    secrets=Secrets(names=("OKX_API_KEY", "OKX_API_SECRET_KEY", "OKX_API_PASSPHRASE")),
    login=_login,
    logged_in=both(equals("event", "login"), equals("code", "0")),
    subscribe=_subscribe,
    unsubscribe=_unsubscribe,
    data=(b'{"arg":{"channel":"',),
    decode=with_text_pong,
    acks=equals("event", "subscribe", "unsubscribe", "login", "channel-conn-count"),
    heartbeats=equals("event", "pong"),
    # Without a ping the exchange closes a quiet connection after thirty seconds.
    ping=lambda _: "ping",
    errors=equals("event", "error", "channel-conn-count-error"),
    quiet=frozenset(("trades-all", "trades", "liquidation-orders", "funding-rate")),
)


def _asked(entry: Any) -> Iterable[Filter]:
    """Read an argument of version 5, or text such as spot/trade:BTC-USDT of version 3."""
    if isinstance(entry, str):
        return channel_first(":")(entry)
    names = (entry.get(key) for key in ("instId", "instFamily", "sprdId"))
    return (Filter(entry["channel"], tuple(name for name in names if name is not None)),)


NATIVE: Final = subscriptions({"op": "subscribe"}, "args", _asked)

_OKCOIN_5: Final = date("2023-04-27")

EXCHANGES: Final = (
    Exchange(
        name="okex",
        types={
            "trade": trade_eras("spot"),
            "book_change": book_change_eras("spot", date("2020-04-10")),
            "book_ticker": book_ticker_eras("spot"),
        },
        dispatch=V5,
        live=LIVE,
        subscriptions=NATIVE,
    ),
    Exchange(
        name="okex-futures",
        types={
            "trade": trade_eras("futures"),
            "book_change": book_change_eras("futures", date("2019-12-05")),
            "derivative_ticker": derivative_ticker_eras("futures", "ticker", "mark_price"),
            "liquidation": liquidation_eras("futures"),
            "book_ticker": book_ticker_eras("futures"),
        },
        dispatch=V5,
        live=LIVE,
        subscriptions=NATIVE,
    ),
    Exchange(
        name="okex-swap",
        types={
            "trade": trade_eras("swap"),
            "book_change": book_change_eras("swap", date("2020-02-08")),
            "derivative_ticker": derivative_ticker_eras(
                "swap", "ticker", "mark_price", "funding_rate"
            ),
            "liquidation": liquidation_eras("swap"),
            "book_ticker": book_ticker_eras("swap"),
        },
        dispatch=V5,
        live=LIVE,
        subscriptions=NATIVE,
    ),
    Exchange(
        name="okcoin",
        types={
            "trade": (
                era_3(trades_3("spot"), "spot/trade", until=_OKCOIN_5),
                era_5(trades_5, "trades"),
            ),
            "book_change": (
                *book_change_eras_3("spot", date("2020-02-13"), until=_OKCOIN_5),
                era_5(book_changes_5("books"), "books"),
            ),
            "book_ticker": (
                era_3(book_tickers_3("spot"), "spot/ticker", until=_OKCOIN_5),
                era_5(best_5("bbo-tbt"), "bbo-tbt"),
            ),
        },
        dispatch=V5,
        live=replace(LIVE, endpoints=(Endpoint(url="wss://real.okcoin.com:8443/ws/v5/public"),)),
        subscriptions=NATIVE,
        closed="the exchange has closed",
    ),
)
