"""Binance's European options: books of the best levels, summaries from several channels."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import BID_FIRST
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler
from tardis_machine.exchanges.base.dialect import (
    DAY_S,
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    either,
    equals,
    present,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_nonzero,
    number_if_not_empty,
    number_or_error,
    text,
    time,
)
from tardis_machine.exchanges.base.option_names import Option, Options, expiration
from tardis_machine.exchanges.binance import ACK, NATIVE, STREAMS
from tardis_machine.history.filters import Filter

Number = int | float
_NO_LEVELS: Final = Raw(b"[]")
_LOWER_CASE_SINCE: Final = date("2025-12-17T00:00:00.000Z")


class _Trade(Struct, gc=False):
    symbol: str = field(name="s")
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="q", default=UNSET)
    timestamp: Number | None = field(name="T", default=None)
    id: str | Number | UnsetType | None = field(name="t", default=UNSET)
    side: Any = field(name="S", default=None)
    buyer_is_maker: Any = field(name="m", default=None)


class _TradeMessage(Struct, gc=False):
    data: _Trade


def _trades(
    channel: str, is_sale: Callable[[_Trade], bool], context: MapperContext
) -> ChannelHandlers:
    decode = Decoder(_TradeMessage).decode
    emit = context.emitter.trade

    def trade(line: bytes) -> bool:
        row = decode(line).data
        emit(
            row.symbol,
            text(row.id),
            number_or_error(row.price, channel, "p"),
            number_or_error(row.amount, channel, "q"),
            "sell" if is_sale(row) else "buy",
            time(row.timestamp, channel, "T"),
        )
        return True

    return lambda stream: trade if stream.endswith(f"@{channel}") else None


def _old_trades(context: MapperContext) -> ChannelHandlers:
    return _trades("trade", lambda row: row.side == "-1", context)


def _option_trades(context: MapperContext) -> ChannelHandlers:
    return _trades("optionTrade", lambda row: bool(row.buyer_is_maker), context)


class _Depth(Struct, gc=False):
    symbol: str = field(name="s")
    event_time: Number | UnsetType | None = field(name="E", default=UNSET)
    trade_time: Number | None = field(name="T", default=None)
    bids: Raw = field(name="b", default=_NO_LEVELS)
    asks: Raw = field(name="a", default=_NO_LEVELS)


class _DepthMessage(Struct, gc=False):
    data: _Depth


def _old_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_DepthMessage).decode
    emit = context.emitter.book_change

    def depth(line: bytes) -> bool:
        book = decode(line).data
        sent = book.trade_time if book.event_time is UNSET else book.event_time
        emit(book.symbol, True, book.bids, book.asks, time(sent, "depth100", "E"))
        return True

    return lambda stream: depth if "@depth100" in stream else None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_DepthMessage).decode
    emit = context.emitter.book_change

    def depth(line: bytes) -> bool:
        book = decode(line).data
        emit(book.symbol, True, book.bids, book.asks, time(book.trade_time, "depth20", "T"))
        return True

    return lambda stream: depth if "@depth20" in stream else None


class _BookTicker(Struct, gc=False):
    symbol: str = field(name="s")
    bid_price: JsonNumber = field(name="b", default=UNSET)
    bid_amount: JsonNumber = field(name="B", default=UNSET)
    ask_price: JsonNumber = field(name="a", default=UNSET)
    ask_amount: JsonNumber = field(name="A", default=UNSET)
    timestamp: Number | UnsetType | None = field(name="T", default=UNSET)


class _BookTickerMessage(Struct, gc=False):
    data: _BookTicker


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookTickerMessage).decode
    emit = context.emitter.book_ticker
    context.emitter.order_book_ticker(BID_FIRST)

    def book_ticker(line: bytes) -> bool:
        row = decode(line).data
        emit(
            row.symbol,
            number_if_nonzero(row.ask_amount),
            number_if_nonzero(row.ask_price),
            number_if_nonzero(row.bid_price),
            number_if_nonzero(row.bid_amount),
            time(row.timestamp, "bookTicker", "T"),
        )
        return True

    return lambda stream: book_ticker if stream.endswith("@bookTicker") else None


def _read_name(name: str) -> Option:
    """BTC-240927-25000-P."""
    _, expires, strike, kind = name.split("-")
    return Option(name, "call" if kind == "C" else "put", strike, expiration(expires, "%y%m%d"))


class _Summary(Struct, gc=False):
    """A ticker of old, or a mark price: both have all of these."""

    symbol: str = field(name="s")
    timestamp: Number | None = field(name="E", default=None)
    last_price: JsonNumber = field(name="c", default=UNSET)
    bid_price: JsonNumber = field(name="bo", default=UNSET)
    ask_price: JsonNumber = field(name="ao", default=UNSET)
    bid_amount: JsonNumber = field(name="bq", default=UNSET)
    ask_amount: JsonNumber = field(name="aq", default=UNSET)
    bid_iv: JsonNumber = field(name="b", default=UNSET)
    ask_iv: JsonNumber = field(name="a", default=UNSET)
    delta: JsonNumber = field(name="d", default=UNSET)
    theta: JsonNumber = field(name="t", default=UNSET)
    gamma: JsonNumber = field(name="g", default=UNSET)
    vega: JsonNumber = field(name="v", default=UNSET)
    mark_iv: JsonNumber = field(name="vo", default=UNSET)
    mark_price: JsonNumber = field(name="mp", default=UNSET)
    index_price: JsonNumber = field(name="i", default=UNSET)


class _OpenInterest(Struct, gc=False):
    symbol: str = field(name="s")
    amount: JsonNumber = field(name="o", default=UNSET)


class _OpenInterestMessage(Struct, gc=False):
    data: list[_OpenInterest]


class _Price(Struct, gc=False):
    """A price by name: of an index, or of an option's last trade."""

    symbol: str = field(name="s")
    index: JsonNumber = field(name="p", default=UNSET)
    last: JsonNumber = field(name="c", default=UNSET)


class _PriceMessage(Struct, gc=False):
    data: _Price


class _SummaryMessage(Struct, gc=False):
    data: _Summary


class _SummariesMessage(Struct, gc=False):
    data: list[_Summary]


class _LatestValues(BoundedDict[str, str | Number]):
    """The latest values from other channels, by option or index."""

    def keep(self, name: str, value: JsonNumber) -> None:
        number = number_if_not_empty(value)
        if number is None:
            self.pop(name, None)
        else:
            self[name] = number


def _iv(value: JsonNumber, price: str | Number | None) -> str | Number | None:
    """Return an implied volatility; None for -1 and for a side of the book without a price."""
    number = None if price is None else number_if_nonzero(value)
    return None if number is None or float(number) == -1 else number


class _Summaries:
    """Option summaries with the latest values from other channels."""

    def __init__(self, context: MapperContext) -> None:
        self._emit = context.emitter.option_summary
        self._options = Options("option_summary", _read_name)
        self._open_interest = _LatestValues()
        self._decode_interest = Decoder(_OpenInterestMessage).decode

    def open_interest(self, line: bytes) -> bool:
        for row in self._decode_interest(line).data:
            self._open_interest.keep(row.symbol, row.amount)
        return True

    def emit(
        self,
        row: _Summary,
        channel: str,
        last_price: JsonNumber,
        mark_iv: JsonNumber,
        index_price: JsonNumber,
    ) -> None:
        option = self._options[row.symbol]
        bid_price, ask_price = number_if_nonzero(row.bid_price), number_if_nonzero(row.ask_price)
        self._emit(
            option.symbol,
            time(row.timestamp, channel, "E"),
            option_type=option.type,
            strike_price=option.strike_price,
            expiration_date=option.expiration,
            best_bid_price=bid_price,
            best_bid_amount=number_if_nonzero(row.bid_amount),
            best_bid_iv=_iv(row.bid_iv, bid_price),
            best_ask_price=ask_price,
            best_ask_amount=number_if_nonzero(row.ask_amount),
            best_ask_iv=_iv(row.ask_iv, ask_price),
            last_price=number_if_nonzero(last_price),
            open_interest=self._open_interest.get(option.symbol),
            mark_price=number_if_nonzero(row.mark_price),
            mark_iv=number_if_nonzero(mark_iv),
            delta=number_if_nonzero(row.delta),
            gamma=number_if_nonzero(row.gamma),
            vega=number_if_nonzero(row.vega),
            theta=number_if_nonzero(row.theta),
            underlying_price=number_if_nonzero(index_price),
            underlying_index=option.symbol.partition("-")[0] + "USDT",
        )


def _old_option_summaries(context: MapperContext) -> ChannelHandlers:
    summaries = _Summaries(context)
    indexes = _LatestValues()
    decode = Decoder(_SummaryMessage).decode
    decode_index = Decoder(_PriceMessage).decode

    def index(line: bytes) -> bool:
        row = decode_index(line).data
        indexes.keep(row.symbol, row.index)
        return True

    def ticker(line: bytes) -> bool:
        row = decode(line).data
        underlying = row.symbol.partition("-")[0] + "USDT"
        summaries.emit(row, "ticker", row.last_price, None, indexes.get(underlying))
        return True

    def handler_of(stream: str) -> Handler | None:
        if stream.endswith("@index"):
            return index
        if stream.endswith("@ticker"):
            return ticker
        return summaries.open_interest if "@openInterest" in stream else None

    return handler_of


def _option_summaries(context: MapperContext) -> ChannelHandlers:
    summaries = _Summaries(context)
    last_prices = _LatestValues()
    decode = Decoder(_SummariesMessage).decode
    decode_ticker = Decoder(_PriceMessage).decode

    def ticker(line: bytes) -> bool:
        row = decode_ticker(line).data
        last_prices.keep(row.symbol, row.last)
        return True

    def mark_price(line: bytes) -> bool:
        for row in decode(line).data:
            last = last_prices.get(row.symbol)
            summaries.emit(row, "optionMarkPrice", last, row.mark_iv, row.index_price)
        return True

    def handler_of(stream: str) -> Handler | None:
        if stream.endswith("@optionMarkPrice"):
            return mark_price
        if stream.endswith("@optionTicker"):
            return ticker
        return summaries.open_interest if "@optionOpenInterest" in stream else None

    return handler_of


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    """Yield a subscribe message per channel; open interest is subscribed to by expiry."""
    options = [
        s for each in session.stream if each.channel == "optionTicker" for s in each.symbols or ()
    ]
    for number, each in enumerate(filters, 1):
        names = []
        for symbol in each.symbols or ():
            if each.channel == "optionOpenInterest":
                expiries = dict.fromkeys(
                    f"@{option.split('-')[1]}"
                    for option in options
                    if _underlying(option) == symbol
                )
                names += [f"{symbol}@{each.channel}{expiry}" for expiry in expiries or ("",)]
            else:
                names.append(f"{symbol}@{each.channel}{'@100ms' * (each.channel == 'depth20')}")
        yield {"method": "SUBSCRIBE", "params": names, "id": number}


def _underlying(symbol: str) -> str:
    return symbol.lower().partition("-")[0] + "usdt"


def _base(symbol: str) -> str:
    return symbol.upper().partition("-")[0]


_LIVE: Final = Dialect(
    endpoints=(
        Endpoint(
            name="public",
            url="wss://fstream.binance.com/public/stream",
            channels=frozenset(("optionTrade", "depth20", "bookTicker", "optionTicker")),
        ),
        Endpoint(name="market", url="wss://fstream.binance.com/market/stream"),
    ),
    subscribe=_subscribe,
    data=(b'{"stream":"',),
    acks=ACK,
    errors=either(present("error"), equals("data.e", "error")),
    quiet=frozenset(("optionTrade", "depth20", "bookTicker", "optionTicker")),
    max_streams=200,
    life_s=DAY_S,
    max_messages_per_s=10,
)

EXCHANGES: Final = (
    Exchange(
        name="binance-european-options",
        types={
            "trade": (
                Era((Channel("trade", str.upper),), _old_trades, until=_LOWER_CASE_SINCE),
                Era((Channel("optionTrade", str.lower),), _option_trades),
            ),
            "book_change": (
                Era((Channel("depth100", str.upper),), _old_book_changes, until=_LOWER_CASE_SINCE),
                Era((Channel("depth20", str.lower),), _book_changes),
            ),
            "option_summary": (
                Era(
                    (
                        Channel("ticker", str.upper),
                        Channel("index", lambda symbol: _base(symbol) + "USDT"),
                        Channel("openInterest", _base),
                    ),
                    _old_option_summaries,
                    until=_LOWER_CASE_SINCE,
                ),
                Era(
                    (
                        Channel("optionMarkPrice", _underlying),
                        Channel("optionTicker", str.lower),
                        Channel("optionOpenInterest", _underlying),
                    ),
                    _option_summaries,
                ),
            ),
            "book_ticker": (Era((Channel("bookTicker", str.lower),), _book_tickers),),
        },
        dispatch=STREAMS,
        live=_LIVE,
        subscriptions=NATIVE,
    ),
)
