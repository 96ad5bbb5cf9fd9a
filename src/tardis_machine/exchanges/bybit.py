"""Bybit: derivatives, spot and options, with an API each until 2023 and one for all since."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import LATEST_KNOWN, PAIRS
from tardis_machine.engine.shapes import (
    Amount,
    Asks,
    Bids,
    KernelShape,
    Milliseconds,
    Object,
    Price,
    Rows,
    Symbol,
    TakerSide,
    TextId,
    Unless,
    Whole,
)
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    Handler,
    KernelHandler,
    keyed,
    named,
)
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    both,
    chunks,
    either,
    equals,
    negated,
    pairs,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_nonzero,
    number_if_not_empty,
    number_if_sent,
    number_or_error,
    side_or_unknown,
    side_unless_sell,
    symbol,
    ticker_time,
    time,
    time_text,
)
from tardis_machine.exchanges.base.option_names import Option, Options, expiration
from tardis_machine.exchanges.base.subscriptions import subscriptions, symbol_last
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, micros, parse_ms

Number = str | int | float
_V5: Final = date("2023-04-05T00:00:00.000Z")
_ALL_LIQUIDATIONS: Final = date("2025-02-26T00:00:00.000Z")


# Derivatives until 2023


class _OldTrade(Struct, gc=False):
    symbol: str
    price: JsonNumber = UNSET
    amount: JsonNumber = field(name="size", default=UNSET)
    side: str | None = None
    id: str | None = field(name="trade_id", default=None)
    other_id: str | None = field(name="tradeId", default=None)
    ms: JsonTime = field(name="trade_time_ms", default=UNSET)
    other_ms: JsonTime = field(name="tradeTimeMs", default=UNSET)
    timestamp: str | None = None

    def time(self) -> int:
        ms = self.other_ms if self.ms is UNSET else self.ms
        if ms is not UNSET:
            return time(ms, "trade", "trade_time_ms")
        return parse_ms(time_text(self.timestamp, "trade", "timestamp"))


class _OldTrades(Struct, gc=False):
    data: list[_OldTrade]


def _old_trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldTrades).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        for row in decode(line).data:
            emit(
                row.symbol,
                row.id or row.other_id,
                number_or_error(row.price, "trade", "price"),
                number_or_error(row.amount, "trade", "size"),
                side_or_unknown(row.side, "Buy", "Sell"),
                row.time(),
            )
        return True

    return named({"trade": trades}, ".")


class _OldLevel(Struct, gc=False):
    price: JsonNumber = UNSET
    amount: JsonNumber = field(name="size", default=0)  # a removed level has no size
    side: str | None = None


class _OldLevels(Struct, gc=False):
    """The whole book of a contract settled in USDT or USDC, or what changed in any."""

    book: list[_OldLevel] = field(name="order_book", default_factory=list)
    other_book: list[_OldLevel] = field(name="orderBook", default_factory=list)
    removed: list[_OldLevel] = field(name="delete", default_factory=list)
    updated: list[_OldLevel] = field(name="update", default_factory=list)
    inserted: list[_OldLevel] = field(name="insert", default_factory=list)


class _OldBook(Struct, gc=False):
    topic: str
    data: list[_OldLevel] | _OldLevels
    type: str | None = None
    us: JsonTime = field(name="timestamp_e6", default=UNSET)
    other_us: JsonTime = field(name="timestampE6", default=UNSET)


def _old_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldBook).decode
    emit = context.emitter.book_change

    def book_changes(line: bytes) -> bool:
        message = decode(line)
        rows = message.data
        if isinstance(rows, _OldLevels):
            whole = rows.book or rows.other_book
            rows = [*whole, *rows.removed, *rows.updated, *rows.inserted]
        bids: list[tuple[Number, Number]] = []
        asks: list[tuple[Number, Number]] = []
        for row in rows:
            levels = bids if row.side == "Buy" else asks
            levels.append((number_or_error(row.price, "orderBookL2_25", "price"), row.amount or 0))
        us = message.other_us if message.us is UNSET else message.us
        emit(
            message.topic.rpartition(".")[2],
            message.type == "snapshot",
            bids,
            asks,
            micros(time(us, "orderBookL2_25", "timestamp_e6")),
        )
        return True

    return named({"orderBookL2_25": book_changes}, ".")


class _OldTicker(Struct, gc=False):
    """An instrument; those settled in USDC have other names for the same fields."""

    symbol: str | None = None
    last_price: JsonNumber = UNSET
    last_price_e4: JsonNumber = UNSET
    other_last_price_e4: JsonNumber = field(name="lastPriceE4", default=UNSET)
    other_last_price: JsonNumber = field(name="lastPrice", default=UNSET)
    mark_price: JsonNumber = UNSET
    mark_price_e4: JsonNumber = UNSET
    other_mark_price_e4: JsonNumber = field(name="markPriceE4", default=UNSET)
    other_mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    index_price: JsonNumber = UNSET
    index_price_e4: JsonNumber = UNSET
    other_index_price_e4: JsonNumber = field(name="indexPriceE4", default=UNSET)
    other_index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    open_interest: JsonNumber = UNSET
    open_interest_e8: JsonNumber = UNSET
    other_open_interest_e8: JsonNumber = field(name="openInterestE8", default=UNSET)
    funding_rate_e6: JsonNumber = UNSET
    other_funding_rate_e6: JsonNumber = field(name="fundingRateE6", default=UNSET)
    predicted_funding_rate_e6: JsonNumber = UNSET
    other_predicted_funding_rate_e6: JsonNumber = field(
        name="predictedFundingRateE6", default=UNSET
    )
    next_funding_time: str | None = None
    other_next_funding_time: str | None = field(name="nextFundingTime", default=None)
    updated_at: str | None = None
    update: "list[_OldTicker] | UnsetType" = UNSET


class _OldTickerMessage(Struct, gc=False):
    data: _OldTicker
    us: JsonTime = field(name="timestamp_e6", default=UNSET)
    other_us: JsonTime = field(name="timestampE6", default=UNSET)


def _scaled(scale: float, *values: JsonNumber) -> float | None:
    """Return the first value that is not missing, scaled to units."""
    for value in values:
        if value is not UNSET:
            return float(value or 0) / scale
    return None


def _price(plain: JsonNumber, other: JsonNumber, *scaled: JsonNumber) -> Number | None:
    if plain is UNSET:
        plain = other
    return _scaled(10_000, *scaled) if plain is UNSET else number_if_sent(plain)


def _funding_time(row: _OldTicker) -> int | None:
    iso = row.next_funding_time or row.other_next_funding_time
    ms = parse_ms(iso) if iso else 0
    return ms if ms > 0 else None  # times before 1970 mean no funding


def _updated_at(message: _OldTickerMessage, row: _OldTicker) -> TimeValue:
    """Return the message's time, or else the instrument's, or else LATEST_KNOWN."""
    us = message.other_us if message.us is UNSET else message.us
    if us is UNSET and row.updated_at:
        return parse_ms(row.updated_at)
    time_us = ticker_time(us)
    return micros(time_us) if time_us else LATEST_KNOWN


def _old_derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldTickerMessage).decode
    emit = context.emitter.derivative_ticker

    def instrument_info(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        if row.update is not UNSET:
            if not row.update:
                raise MapperError("instrument_info", "an update of nothing")
            row = row.update[0]
        interest = number_if_not_empty(row.open_interest)
        if interest is None:
            interest = _scaled(1e8, row.open_interest_e8, row.other_open_interest_e8)
        emit(
            symbol(row.symbol, "instrument_info"),
            _updated_at(message, row),
            last_price=_price(
                row.last_price,
                row.other_last_price,
                row.last_price_e4,
                row.other_last_price_e4 or UNSET,  # 0 means no price
            ),
            open_interest=interest,
            funding_rate=_scaled(1e6, row.funding_rate_e6, row.other_funding_rate_e6),
            funding_timestamp=_funding_time(row),
            predicted_funding_rate=_scaled(
                1e6, row.predicted_funding_rate_e6, row.other_predicted_funding_rate_e6
            ),
            index_price=_price(
                row.index_price,
                row.other_index_price,
                row.index_price_e4,
                row.other_index_price_e4,
            ),
            mark_price=_price(
                row.mark_price,
                row.other_mark_price,
                row.mark_price_e4,
                row.other_mark_price_e4,
            ),
        )
        return True

    return named({"instrument_info": instrument_info}, ".")


class _OldLiquidation(Struct, gc=False):
    symbol: str
    id: int | str | None = None
    price: JsonNumber = UNSET
    amount: JsonNumber = field(name="qty", default=UNSET)
    side: str | None = None
    time: JsonTime = UNSET


class _OldLiquidations(Struct, gc=False):
    data: list[_OldLiquidation] | _OldLiquidation


def _old_liquidations(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OldLiquidations).decode
    emit = context.emitter.liquidation

    def liquidations(line: bytes) -> bool:
        data = decode(line).data
        for row in data if isinstance(data, list) else (data,):
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, "liquidation", "price"),
                number_or_error(row.amount, "liquidation", "qty"),
                side_unless_sell(row.side, "Buy"),  # the position's side: a sale closes a long
                time(row.time, "liquidation", "time"),
            )
        return True

    return named({"liquidation": liquidations}, ".")


# Spot until 2023


class _SpotParams(Struct, gc=False):
    symbol: str


class _SpotTrade(Struct, gc=False):
    id: str | None = field(name="v", default=None)
    timestamp: JsonTime = field(name="t", default=UNSET)
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="q", default=UNSET)
    is_buy: Any = field(name="m", default=None)


class _SpotTradeMessage(Struct, gc=False):
    params: _SpotParams
    data: _SpotTrade | UnsetType = UNSET  # answers to subscriptions have no data


def _spot_trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_SpotTradeMessage).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        if row is UNSET:
            return False
        emit(
            message.params.symbol,
            row.id,
            number_or_error(row.price, "trade", "p"),
            number_or_error(row.amount, "trade", "q"),
            "buy" if row.is_buy is True else "sell",
            time(row.timestamp, "trade", "t"),
        )
        return True

    return named({"trade": trade})


class _SpotBook(Struct, gc=False):
    symbol: str = field(name="s")
    bids: Raw = field(name="b")
    asks: Raw = field(name="a")
    timestamp: JsonTime = field(name="t", default=UNSET)


class _SpotBookMessage(Struct, gc=False):
    data: _SpotBook | UnsetType = UNSET


def _spot_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_SpotBookMessage).decode
    emit = context.emitter.book_change

    def depth(line: bytes) -> bool:
        book = decode(line).data
        if book is UNSET:
            return False
        emit(book.symbol, True, book.bids, book.asks, time(book.timestamp, "depth", "t"))
        return True

    return named({"depth": depth})


class _SpotQuote(Struct, gc=False):
    symbol: str
    bid_price: JsonNumber = field(name="bidPrice", default=UNSET)
    bid_amount: JsonNumber = field(name="bidQty", default=UNSET)
    ask_price: JsonNumber = field(name="askPrice", default=UNSET)
    ask_amount: JsonNumber = field(name="askQty", default=UNSET)
    time: JsonTime = UNSET


class _SpotQuoteMessage(Struct, gc=False):
    data: _SpotQuote | UnsetType = UNSET


def _spot_book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_SpotQuoteMessage).decode
    emit = context.emitter.book_ticker

    def book_ticker(line: bytes) -> bool:
        row = decode(line).data
        if row is UNSET:
            return False
        emit(
            row.symbol,
            number_if_sent(row.ask_amount),
            number_if_sent(row.ask_price),
            number_if_sent(row.bid_price),
            number_if_sent(row.bid_amount),
            time(row.time, "bookTicker", "time"),
        )
        return True

    return named({"bookTicker": book_ticker})


# All markets since 2023


def _topics(handlers: dict[str, Handler | KernelHandler]) -> ChannelHandlers:
    """Return handlers by topic without its symbol, which comes last: orderbook.50.BTCUSDT."""
    return lambda topic: handlers.get(topic.rpartition(".")[0])


class _Trade(Struct, gc=False):
    symbol: str = field(name="s")
    id: str | None = field(name="i", default=None)
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="v", default=UNSET)
    side: str | None = field(name="S", default=None)
    timestamp: JsonTime = field(name="T", default=UNSET)


class _Trades(Struct, gc=False):
    data: list[_Trade]


_TRADES: Final = KernelShape(
    emits="trade",
    fields={
        "data": Rows(
            {
                "s": Symbol(),
                "i": TextId(optional=True),
                "p": Price(text=True),
                "v": Amount(text=True),
                "S": TakerSide("Buy", "Sell"),
                "T": Milliseconds(),
            }
        )
    },
)


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        for row in decode(line).data:
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, "publicTrade", "p"),
                number_or_error(row.amount, "publicTrade", "v"),
                side_or_unknown(row.side, "Buy", "Sell"),
                time(row.timestamp, "publicTrade", "T"),
            )
        return True

    return _topics({"publicTrade": KernelHandler(trades, _TRADES)})


class _Book(Struct, gc=False):
    symbol: str = field(name="s")
    bids: Raw = field(name="b")
    asks: Raw = field(name="a")
    id: int | None = field(name="u", default=None)


class _BookMessage(Struct, gc=False):
    data: _Book
    type: str | None = None
    timestamp: JsonTime = field(name="ts", default=UNSET)


_CHANGES: Final = KernelShape(
    emits="book_change",
    fields={
        "type": Unless(("snapshot",)),
        "ts": Milliseconds(),
        "data": Object({"s": Symbol(), "b": Bids(PAIRS), "a": Asks(PAIRS), "u": Whole()}),
    },
)


def _book_changes(channel: str) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_BookMessage).decode
        emit = context.emitter.book_change
        ids = UpdateIds(channel, checks_ids=context.checks_ids)

        def orderbook(line: bytes) -> bool:
            message = decode(line)
            book = message.data
            is_snapshot = message.type == "snapshot"
            if is_snapshot:
                ids.start(book.symbol, book.id)
            elif book.id is not None and not ids.follow(book.symbol, book.id - 1, book.id):
                return True
            timestamp = time(message.timestamp, channel, "ts")
            emit(book.symbol, is_snapshot, book.bids, book.asks, timestamp)
            return True

        return _topics({channel: context.unchecked(orderbook, _CHANGES)})

    return make


_Level = list[str | int | float | None]


class _Quote(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    bids: list[_Level] = field(name="b", default_factory=list)
    asks: list[_Level] = field(name="a", default_factory=list)


class _QuoteMessage(Struct, gc=False):
    data: _Quote
    type: str | None = None
    timestamp: JsonTime = field(name="ts", default=UNSET)


_Best = tuple[Number, Number]


def _best(levels: list[_Level]) -> _Best | None:
    """Return the first level that is not removed: only this text does that."""
    try:
        return next(((each[0] or 0, each[1] or 0) for each in levels if each[1] != "0"), None)
    except IndexError:
        raise MapperError("orderbook.1", "a level without price and amount") from None


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_QuoteMessage).decode
    emit = context.emitter.book_ticker
    known = BoundedDict[str, tuple[_Best | None, _Best | None]]()

    def orderbook(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        bid, ask = _best(row.bids), _best(row.asks)
        if message.type == "snapshot":
            name = symbol(row.symbol, "orderbook.1")
        else:
            name = row.symbol or ""
            if name not in known:
                return True
            bid, ask = bid or known[name][0], ask or known[name][1]
        timestamp = time(message.timestamp, "orderbook.1", "ts")
        bid_price, bid_amount = bid or (None, None)
        ask_price, ask_amount = ask or (None, None)
        emit(name, ask_amount, ask_price, bid_price, bid_amount, timestamp)
        known[name] = bid, ask
        return True

    return _topics({"orderbook.1": orderbook})


class _Ticker(Struct, gc=False):
    symbol: str | None = None
    last_price: JsonNumber = field(name="lastPrice", default=UNSET)
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    funding_time: JsonTime = field(name="nextFundingTime", default=UNSET)


class _TickerMessage(Struct, gc=False):
    data: _Ticker
    timestamp: JsonTime = field(name="ts", default=UNSET)


def _unless_empty(value: JsonNumber) -> Number | None:
    return None if value == "" else number_if_sent(value)


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.derivative_ticker

    def tickers(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        # Dated futures have an empty rate, and an empty time or 0.
        funding_time = None if row.funding_time == "0" else _unless_empty(row.funding_time)
        emit(
            symbol(row.symbol, "tickers"),
            time(message.timestamp, "tickers", "ts"),
            last_price=_unless_empty(row.last_price),
            open_interest=_unless_empty(row.open_interest),
            funding_rate=_unless_empty(row.funding_rate),
            funding_timestamp=None if funding_time is None else int(funding_time),
            index_price=_unless_empty(row.index_price),
            mark_price=_unless_empty(row.mark_price),
        )
        return True

    return _topics({"tickers": tickers})


class _Liquidation(Struct, gc=False):
    symbol: str
    price: JsonNumber = UNSET
    amount: JsonNumber = field(name="size", default=UNSET)
    side: str | None = None


class _LiquidationMessage(Struct, gc=False):
    data: _Liquidation
    timestamp: JsonTime = field(name="ts", default=UNSET)


def _liquidations(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_LiquidationMessage).decode
    emit = context.emitter.liquidation

    def liquidation(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        emit(
            row.symbol,
            None,
            number_or_error(row.price, "liquidation", "price"),
            number_or_error(row.amount, "liquidation", "size"),
            side_unless_sell(row.side, "Buy"),
            time(message.timestamp, "liquidation", "ts"),
        )
        return True

    return _topics({"liquidation": liquidation})


def _all_liquidations(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Trades).decode
    emit = context.emitter.liquidation

    def liquidations(line: bytes) -> bool:
        for row in decode(line).data:
            emit(
                row.symbol,
                None,
                number_or_error(row.price, "allLiquidation", "p"),
                number_or_error(row.amount, "allLiquidation", "v"),
                side_unless_sell(row.side, "Buy"),
                time(row.timestamp, "allLiquidation", "T"),
            )
        return True

    return _topics({"allLiquidation": liquidations})


class _OptionTicker(Struct, gc=False):
    symbol: str
    bid_price: JsonNumber = field(name="bidPrice", default=UNSET)
    bid_amount: JsonNumber = field(name="bidSize", default=UNSET)
    bid_iv: JsonNumber = field(name="bidIv", default=UNSET)
    ask_price: JsonNumber = field(name="askPrice", default=UNSET)
    ask_amount: JsonNumber = field(name="askSize", default=UNSET)
    ask_iv: JsonNumber = field(name="askIv", default=UNSET)
    last_price: JsonNumber = field(name="lastPrice", default=UNSET)
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    mark_iv: JsonNumber = field(name="markPriceIv", default=UNSET)
    underlying_price: JsonNumber = field(name="underlyingPrice", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)
    delta: JsonNumber = UNSET
    gamma: JsonNumber = UNSET
    vega: JsonNumber = UNSET
    theta: JsonNumber = UNSET


class _OptionTickerMessage(Struct, gc=False):
    data: _OptionTicker
    timestamp: JsonTime = field(name="ts", default=UNSET)


def _option(name: str) -> Option:
    """Read a name such as BTC-28APR23-29500-C or, settled in USDT, BTC-26SEP25-90000-P-USDT."""
    _, expiry, strike, kind, *_ = name.split("-")
    return Option(name, "put" if kind == "P" else "call", strike, expiration(expiry, "%d%b%y"))


def _option_summaries(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_OptionTickerMessage).decode
    emit = context.emitter.option_summary
    options = Options("tickers", _option)

    def tickers(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        option = options[row.symbol]
        emit(
            option.symbol,
            time(message.timestamp, "tickers", "ts"),
            option_type=option.type,
            strike_price=option.strike_price,
            expiration_date=option.expiration,
            best_bid_price=number_if_nonzero(row.bid_price),
            best_bid_amount=number_if_nonzero(row.bid_amount),
            best_bid_iv=number_if_nonzero(row.bid_iv),
            best_ask_price=number_if_nonzero(row.ask_price),
            best_ask_amount=number_if_nonzero(row.ask_amount),
            best_ask_iv=number_if_nonzero(row.ask_iv),
            last_price=number_if_nonzero(row.last_price),
            open_interest=number_if_nonzero(row.open_interest),
            mark_price=number_if_nonzero(row.mark_price),
            mark_iv=number_if_nonzero(row.mark_iv),
            delta=number_if_nonzero(row.delta),
            gamma=number_if_nonzero(row.gamma),
            vega=number_if_nonzero(row.vega),
            theta=number_if_nonzero(row.theta),
            underlying_price=number_if_nonzero(row.underlying_price),
            underlying_index="",
        )
        return True

    return _topics({"tickers": tickers})


def _is_linear(name: str) -> bool:
    return name.endswith(("USDT", "PERP")) or "-" in name


def _call(op: str, topics: Sequence[str]) -> Iterator[Outgoing]:
    for args in chunks(list(dict.fromkeys(topics)), 10):
        yield {"op": op, "args": list(args)}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _call("subscribe", [f"{channel}.{name}" for channel, name in pairs(filters)])


def _unsubscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _call("unsubscribe", [f"{channel}.{name}" for channel, name in pairs(filters)])


def _option_topics(filters: Sequence[Filter]) -> list[str]:
    """Return the topics of options; those of trades name the base coin only."""
    return [
        f"{channel}.{name.partition('-')[0] if channel == 'publicTrade' else name}"
        for channel, name in pairs(filters)
    ]


def _subscribe_options(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _call("subscribe", _option_topics(filters))


def _unsubscribe_options(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    return _call("unsubscribe", _option_topics(filters))


def _refused_topic(message: Any) -> str:
    """Return the topic in a refusal's text; empty if it has none."""
    if not isinstance(message, dict) or message.get("op") != "subscribe":
        return ""
    said = message.get("ret_msg")
    if not isinstance(said, str):
        return ""
    return said.partition(",topic:")[2] or said.partition("Invalid symbol :[")[2].rstrip("]")


def _has_failed(message: Any) -> bool:
    """Return whether a message is an answer that refuses some topics of options."""
    return bool(at(message, "data.failTopics"))


def _without_refused(refusal: Any, sent: Sequence[Outgoing]) -> Outgoing | None:
    """Return the subscription without the unknown topic, for which Bybit refused all topics."""
    topic = _refused_topic(refusal)
    for message in reversed(sent):
        args = message["args"] if isinstance(message, dict) else ()
        if topic in args:
            rest = [each for each in args if each != topic]
            return {"op": "subscribe", "args": rest} if rest else None
    return None


_LIVE: Final = Dialect(
    endpoints=(
        Endpoint(name="linear", url="wss://stream.bybit.com/v5/public/linear", symbols=_is_linear),
        Endpoint(name="inverse", url="wss://stream.bybit.com/v5/public/inverse"),
    ),
    subscribe=_subscribe,
    unsubscribe=_unsubscribe,
    data=(b'{"topic":"', b'{"id":"'),
    heartbeats=either(equals("op", "pong"), equals("ret_msg", "pong")),
    acks=both(
        equals("success", True),
        either(equals("op", "subscribe", "unsubscribe"), equals("type", "COMMAND_RESP")),
        negated(_has_failed),
    ),
    errors=either(equals("success", False), _has_failed),
    refusals=lambda message: bool(_refused_topic(message)) or _has_failed(message),
    salvage=_without_refused,
    ping=lambda _: {"op": "ping"},
    quiet=frozenset(("publicTrade", "allLiquidation")),
)


def _spot_topic(topic: str) -> Iterable[Filter]:
    """Read a topic as the Node server does, which leaves the depth of books out."""
    channel, found, rest = topic.partition(".")
    return (Filter(channel, (rest.rpartition(".")[2],) if found else ()),)


def _topic(topic: str) -> Iterable[Filter]:
    if topic.startswith("instrument_info."):
        return (Filter("instrument_info", (topic.rpartition(".")[2],)),)
    return symbol_last(".")(topic)


_SUBSCRIBE: Final = {"op": "subscribe"}


def _era(
    channel: str, make: Callable[[MapperContext], ChannelHandlers], until: int | None = None
) -> Era:
    return Era((Channel(channel, str.upper),), make, until)


EXCHANGES: Final = (
    Exchange(
        name="bybit",
        types={
            "trade": (_era("trade", _old_trades, _V5), _era("publicTrade", _trades)),
            "book_change": (
                _era("orderBookL2_25", _old_book_changes, _V5),
                _era("orderbook.50", _book_changes("orderbook.50")),
            ),
            "derivative_ticker": (
                _era("instrument_info", _old_derivative_tickers, _V5),
                _era("tickers", _derivative_tickers),
            ),
            "liquidation": (
                _era("liquidation", _old_liquidations, _V5),
                _era("liquidation", _liquidations, _ALL_LIQUIDATIONS),
                _era("allLiquidation", _all_liquidations),
            ),
            "book_ticker": (_era("orderbook.1", _book_tickers),),
        },
        dispatch=keyed("topic"),
        live=_LIVE,
        subscriptions=subscriptions(_SUBSCRIBE, "args", _topic),
    ),
    Exchange(
        name="bybit-spot",
        types={
            "trade": (_era("trade", _spot_trades, _V5), _era("publicTrade", _trades)),
            "book_change": (
                _era("depth", _spot_book_changes, _V5),
                _era("orderbook.50", _book_changes("orderbook.50")),
            ),
            "book_ticker": (
                _era("bookTicker", _spot_book_tickers, _V5),
                _era("orderbook.1", _book_tickers),
            ),
        },
        dispatch=keyed("topic"),
        live=replace(_LIVE, endpoints=(Endpoint(url="wss://stream.bybit.com/v5/public/spot"),)),
        subscriptions=subscriptions(_SUBSCRIBE, "args", _spot_topic),
    ),
    Exchange(
        name="bybit-options",
        types={
            "trade": (_era("publicTrade", _trades),),
            "book_change": (_era("orderbook.25", _book_changes("orderbook.25")),),
            "option_summary": (_era("tickers", _option_summaries),),
        },
        dispatch=keyed("topic"),
        live=replace(
            _LIVE,
            endpoints=(Endpoint(url="wss://stream.bybit.com/v5/public/option"),),
            subscribe=_subscribe_options,
            unsubscribe=_unsubscribe_options,
        ),
        subscriptions=subscriptions(_SUBSCRIBE, "args", _topic),
    ),
)
