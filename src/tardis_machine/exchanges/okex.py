"""OKEx: version 3 named its tables by market, version 5 has the same channels for all of them."""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.dispatch import Part, Route, named, prefixed
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Making, date
from tardis_machine.exchanges.fields import (
    Sent,
    SentLevels,
    best,
    filled,
    optional,
    required,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.times import cut_ms, parse_ms

Maker = Callable[[Making], Route]

V3: Final = prefixed(b'{"table":"', "table")
V5: Final = prefixed(b'{"arg":{"channel":"', "arg", "channel")
VERSION_5: Final = date("2021-12-23")
_NO_LEVELS: Final = 2  # the length of []


def _has_levels(bids: Raw, asks: Raw) -> bool:
    return len(bids) > _NO_LEVELS or len(asks) > _NO_LEVELS


# Version 3 ----------------------------------------------------------------------------------------


class _Trade3(Struct, gc=False):
    symbol: str = field(name="instrument_id")
    id: str = field(name="trade_id")
    price: Sent
    side: Literal["buy", "sell"]
    timestamp: str
    size: Sent = UNSET
    quantity: Sent = field(name="qty", default=UNSET)


class _Trades3(Struct, gc=False):
    data: list[_Trade3]


def trades_3(market: str) -> Maker:
    def make(making: Making) -> Route:
        decode = Decoder(_Trades3).decode
        emit = making.emitter.trade

        def trades(line: bytes) -> bool:
            for row in decode(line).data:
                amount = row.size if row.quantity is UNSET else row.quantity
                emit(
                    row.symbol,
                    row.id,
                    required(row.price, "trade", "price"),
                    required(amount, "trade", "size"),
                    row.side,
                    cut_ms(row.timestamp),
                )
            return True

        return named({f"{market}/trade": trades})

    return make


class _Book3(Struct, gc=False):
    symbol: str = field(name="instrument_id")
    bids: Raw
    asks: Raw
    timestamp: str


class _Books3(Struct, gc=False):
    data: list[_Book3]
    action: str | None = None


def book_changes_3(table: str) -> Maker:
    def make(making: Making) -> Route:
        decode = Decoder(_Books3).decode
        emit = making.emitter.book_change

        def book_changes(line: bytes) -> bool:
            message = decode(line)
            is_snapshot = message.action == "partial"
            for row in message.data:
                if is_snapshot or _has_levels(row.bids, row.asks):
                    emit(row.symbol, is_snapshot, row.bids, row.asks, cut_ms(row.timestamp))
            return True

        return named({table: book_changes})

    return make


class _Ticker3(Struct, gc=False):
    """A ticker, a mark price or a funding rate, told apart by what they have."""

    symbol: str = field(name="instrument_id")
    timestamp: str | UnsetType | None = UNSET
    last: Sent = UNSET
    open_interest: Sent = UNSET
    mark_price: Sent = UNSET
    funding_rate: Sent = UNSET
    funding_time: str | None = None
    estimated_rate: Sent = UNSET
    best_ask: Sent = UNSET
    best_ask_size: Sent = UNSET
    best_bid: Sent = UNSET
    best_bid_size: Sent = UNSET


class _Tickers3(Struct, gc=False):
    data: list[_Ticker3]


_decode_tickers_3: Final = Decoder(_Tickers3).decode


def derivative_tickers_3(market: str, *tables: str) -> Maker:
    def make(making: Making) -> Route:
        emit = making.emitter.derivative_ticker

        def derivative_tickers(message: _Tickers3) -> bool:
            for row in message.data:
                timestamp = row.timestamp
                has_rate = row.funding_rate is not UNSET
                emit(
                    row.symbol,
                    None if timestamp is UNSET else parse_ms(timestamp) if timestamp else 0,
                    last_price=optional(row.last),
                    open_interest=filled(row.open_interest),
                    funding_rate=optional(row.funding_rate),
                    funding_timestamp=cut_ms(row.funding_time or "") if has_rate else None,
                    predicted_funding_rate=optional(row.estimated_rate) if has_rate else None,
                    mark_price=optional(row.mark_price),
                )
            return True

        part = Part(_decode_tickers_3, derivative_tickers)
        return named({f"{market}/{table}": part for table in tables})

    return make


def book_tickers_3(market: str) -> Maker:
    def make(making: Making) -> Route:
        emit = making.emitter.book_ticker

        def book_tickers(message: _Tickers3) -> bool:
            for row in message.data:
                emit(
                    row.symbol,
                    filled(row.best_ask_size),
                    filled(row.best_ask),
                    filled(row.best_bid),
                    filled(row.best_bid_size),
                    cut_ms(row.timestamp or ""),
                )
            return True

        return named({f"{market}/ticker": Part(_decode_tickers_3, book_tickers)})

    return make


class _Liquidation3(Struct, gc=False):
    symbol: str = field(name="instrument_id")
    price: Sent
    size: Sent
    timestamp: str = field(name="created_at")
    type: str | None = None


class _Liquidations3(Struct, gc=False):
    data: list[_Liquidation3]


_LONG: Final = "3"


def liquidations_3(market: str) -> Maker:
    def make(making: Making) -> Route:
        decode = Decoder(_Liquidations3).decode
        emit = making.emitter.liquidation

        def liquidations(line: bytes) -> bool:
            for row in decode(line).data:
                emit(
                    row.symbol,
                    None,
                    required(row.price, "liquidation", "price"),
                    required(row.size, "liquidation", "size"),
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
    id: str = field(name="tradeId")
    price: Sent = field(name="px")
    amount: Sent = field(name="sz")
    side: Literal["buy", "sell"]
    timestamp: Sent = field(name="ts")


class _Trades5(Struct, gc=False):
    data: list[_Trade5] | UnsetType = UNSET


def trades_5(making: Making) -> Route:
    decode = Decoder(_Trades5).decode
    emit = making.emitter.trade

    def trades(line: bytes) -> bool:
        rows = decode(line).data
        if rows is UNSET:  # an answer to a subscription
            return False
        for row in rows:
            emit(
                row.symbol,
                row.id,
                row.price or required(row.price, "trades", "px"),
                row.amount or required(row.amount, "trades", "sz"),
                row.side,
                time(row.timestamp, "trades", "ts"),
            )
        return True

    return named({"trades": trades, "trades-all": trades})


class _Book5(Struct, gc=False):
    bids: Raw
    asks: Raw
    timestamp: Sent = field(name="ts")


class _Books5(Struct, gc=False):
    arg: _Argument
    data: list[_Book5] | UnsetType = UNSET
    action: str | None = None


def book_changes_5(channel: str) -> Maker:
    def make(making: Making) -> Route:
        decode = Decoder(_Books5).decode
        emit = making.emitter.book_change

        def book_changes(line: bytes) -> bool:
            message = decode(line)
            rows = message.data
            if rows is UNSET:
                return False
            is_snapshot = message.action == "snapshot"
            for row in rows:
                if is_snapshot or _has_levels(row.bids, row.asks):
                    timestamp = time(row.timestamp, "books", "ts")
                    emit(
                        symbol(message.arg.symbol, "books"),
                        is_snapshot,
                        row.bids,
                        row.asks,
                        timestamp or None,
                    )
            return True

        return named({channel: book_changes})

    return make


class _Ticker5(Struct, gc=False):
    """What tickers, open interests, mark prices, index prices and funding rates have."""

    symbol: str | None = field(name="instId", default=None)
    timestamp: Sent = field(name="ts", default=UNSET)
    last: Sent = UNSET
    open_interest: Sent = field(name="oi", default=UNSET)
    mark_price: Sent = field(name="markPx", default=UNSET)
    index_price: Sent = field(name="idxPx", default=UNSET)
    funding_rate: Sent = field(name="fundingRate", default=UNSET)
    funding_time: Sent = field(name="fundingTime", default=UNSET)
    next_funding_rate: Sent = field(name="nextFundingRate", default=UNSET)
    ask_price: Sent = field(name="askPx", default=UNSET)
    ask_amount: Sent = field(name="askSz", default=UNSET)
    bid_price: Sent = field(name="bidPx", default=UNSET)
    bid_amount: Sent = field(name="bidSz", default=UNSET)


class _Tickers5(Struct, gc=False):
    data: list[_Ticker5] | UnsetType = UNSET


_decode_tickers_5: Final = Decoder(_Tickers5).decode


def index_of(symbol: str) -> str:
    """Name the index of a contract: BTC-USD of BTC-USD-SWAP and BTC-USD-240329."""
    return "-".join(symbol.upper().split("-")[:2])


def dollar_index_of(symbol: str) -> str:
    """The same while contracts in USDC had the index in USD."""
    return index_of(symbol).replace("-USDC", "-USD")


def derivative_tickers_5(index: Callable[[str], str]) -> Maker:
    def make(making: Making) -> Route:
        emit = making.emitter.derivative_ticker
        index_prices: dict[str | None, str | int | float] = {}

        def index_tickers(message: _Tickers5) -> bool:
            for row in message.data or ():
                price = filled(row.index_price)
                if price is not None:
                    index_prices[row.symbol] = price
            return message.data is not UNSET

        def derivative_tickers(message: _Tickers5) -> bool:
            for row in message.data or ():
                name = symbol(row.symbol, "tickers")
                emit(
                    name,
                    ticker_time(row.timestamp),
                    last_price=filled(row.last),
                    open_interest=filled(row.open_interest),
                    index_price=index_prices.get(index(name)),
                    mark_price=filled(row.mark_price),
                )
            return message.data is not UNSET

        def funding_rates(message: _Tickers5) -> bool:
            for row in message.data or ():
                name = symbol(row.symbol, "funding-rate")
                funding = row.funding_time
                predicted = row.next_funding_rate
                emit(
                    name,
                    None if row.timestamp is UNSET else ticker_time(row.timestamp),
                    funding_rate=optional(row.funding_rate),
                    funding_timestamp=None
                    if funding is UNSET
                    else time(funding, "funding", "time"),
                    predicted_funding_rate=None if predicted == "" else optional(predicted),
                    index_price=index_prices.get(index(name)),
                )
            return message.data is not UNSET

        part = Part(_decode_tickers_5, derivative_tickers)
        return named(
            {
                "tickers": part,
                "open-interest": part,
                "mark-price": part,
                "funding-rate": Part(_decode_tickers_5, funding_rates),
                "index-tickers": Part(_decode_tickers_5, index_tickers),
            }
        )

    return make


def book_tickers_5(making: Making) -> Route:
    """Read them from tickers, as long as there was nothing better."""
    emit = making.emitter.book_ticker

    def book_tickers(message: _Tickers5) -> bool:
        for row in message.data or ():
            emit(
                symbol(row.symbol, "tickers"),
                filled(row.ask_amount),
                filled(row.ask_price),
                filled(row.bid_price),
                filled(row.bid_amount),
                time(row.timestamp, "tickers", "ts"),
            )
        return message.data is not UNSET

    return named({"tickers": Part(_decode_tickers_5, book_tickers)})


class _Best5(Struct, gc=False):
    asks: SentLevels = None
    bids: SentLevels = None
    timestamp: Sent = field(name="ts", default=UNSET)


class _Bests5(Struct, gc=False):
    arg: _Argument
    data: list[_Best5] | UnsetType = UNSET


def best_5(channel: str) -> Maker:
    """Read book tickers from a book of one level."""

    def make(making: Making) -> Route:
        decode = Decoder(_Bests5).decode
        emit = making.emitter.book_ticker

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

        return named({channel: book_tickers})

    return make


class _Liquidation5(Struct, gc=False):
    price: Sent = field(name="bkPx")
    amount: Sent = field(name="sz")
    side: Literal["buy", "sell"]
    timestamp: Sent = field(name="ts")


class _Liquidations5(Struct, gc=False):
    arg: _Argument
    data: list[_Liquidation5] | UnsetType = UNSET


class _LiquidationOrder5(Struct, gc=False):
    symbol: str = field(name="instId")
    details: list[_Liquidation5]


class _LiquidationOrders5(Struct, gc=False):
    data: list[_LiquidationOrder5] | UnsetType = UNSET


def liquidations_5(making: Making) -> Route:
    decode = Decoder(_Liquidations5).decode
    decode_orders = Decoder(_LiquidationOrders5).decode
    emit = making.emitter.liquidation
    seen_orders = False

    def send(symbol: str, row: _Liquidation5) -> None:
        emit(
            symbol,
            None,
            required(row.price, "liquidations", "bkPx"),
            required(row.amount, "liquidations", "sz"),
            row.side,
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
        if not seen_orders:  # the first message repeats what was there before
            seen_orders = True
            return True
        for order in rows:
            for row in order.details:
                send(order.symbol, row)
        return True

    return named({"liquidations": liquidations, "liquidation-orders": orders})


# Exchanges ----------------------------------------------------------------------------------------


def _channels(*names: str) -> tuple[Channel, ...]:
    return tuple(Channel(name, str.upper) for name in names)


def era_3(make: Maker, *tables: str, until: int = VERSION_5) -> Era:
    """An era of version 3, with tables that name their market."""
    return Era(_channels(*tables), make, until, V3)


def era_5(make: Maker, *channels: str, until: int | None = None) -> Era:
    """An era of version 5."""
    return Era(_channels(*channels), make, until, V5)


def _ticker_era(index: Callable[[str], str], until: int | None = None) -> Era:
    """An era of derivative tickers in version 5; index prices are asked for by the index's name."""
    before = _channels("tickers", "open-interest", "mark-price")
    channels = (*before, Channel("index-tickers", index), *_channels("funding-rate"))
    return Era(channels, derivative_tickers_5(index), until, V5)


def trade_eras(market: str) -> tuple[Era, ...]:
    return (
        era_3(trades_3(market), f"{market}/trade"),
        era_5(trades_5, "trades", until=date("2023-10-19")),
        era_5(trades_5, "trades-all"),
    )


def book_change_eras(market: str, tick_by_tick: int) -> tuple[Era, ...]:
    """The books of a market: tick by tick from a date on; both tables were recorded before."""
    each_tick, depth = f"{market}/depth_l2_tbt", f"{market}/depth"
    return (
        era_3(book_changes_3(depth), each_tick, depth, until=tick_by_tick),
        era_3(book_changes_3(each_tick), each_tick),
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


EXCHANGES: Final = (
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
    ),
)
