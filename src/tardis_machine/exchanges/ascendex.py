"""AscendEX: messages that name their kind first; one of them has all contracts' prices."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, named, prefixed
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import (
    Channel,
    Era,
    Exchange,
    MapperContext,
    upper_channels,
)
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_or_error,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.history.filters import Filter

_Quote = list[str | int | float | None] | UnsetType


class _Trade(Struct, gc=False):
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="q", default=UNSET)
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    buyer_is_maker: Any = field(name="bm", default=None)


class _Trades(Struct, gc=False):
    data: list[_Trade]
    symbol: str | None = None


_decode_trades: Final = Decoder(_Trades).decode


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trades(message: _Trades) -> bool:
        for row in message.data:
            emit(
                symbol(message.symbol, "trades"),
                None,
                number_or_error(row.price, "trades", "p"),
                number_or_error(row.amount, "trades", "q"),
                "sell" if row.buyer_is_maker is True else "buy",
                time(row.timestamp, "trades", "ts"),
            )
        return True

    return named({"trades": SharedDecoder(_decode_trades, trades)})


_NONE: Final = (Raw(b"null"), Raw())


class _Book(Struct, gc=False):
    bids: Raw = Raw()
    asks: Raw = Raw()
    timestamp: int | float | None = field(name="ts", default=None)


class _BookMessage(Struct, gc=False):
    data: _Book
    symbol: str | None = None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change

    def send(line: bytes, is_snapshot: bool) -> bool:
        message = decode(line)
        book = message.data
        if not message.symbol or book.bids in _NONE or book.asks in _NONE:  # half a book is none
            return True
        timestamp = int(book.timestamp or 0) or None  # a snapshot has no time
        emit(message.symbol, is_snapshot, book.bids, book.asks, timestamp)
        return True

    return named(
        {
            "depth-realtime": lambda line: send(line, False),
            "depth-snapshot-realtime": lambda line: send(line, True),
        }
    )


class _Contract(Struct, gc=False):
    symbol: str | None = field(name="s", default=None)
    timestamp: JsonNumber = field(name="t", default=UNSET)
    mark_price: JsonNumber = field(name="mp", default=UNSET)
    index_price: JsonNumber = field(name="ip", default=UNSET)
    open_interest: JsonNumber = field(name="oi", default=UNSET)
    funding_rate: JsonNumber = field(name="r", default=UNSET)
    funding_time: JsonNumber = field(name="f", default=UNSET)


class _Pricing(Struct, gc=False):
    contracts: list[_Contract] = field(name="con")


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Pricing).decode
    emit = context.emitter.derivative_ticker
    last_prices = BoundedDict[str, str | int | float]()

    def trades(message: _Trades) -> bool:
        if not message.data:
            raise MapperError("trades", "no trades")
        latest = number_or_error(message.data[-1].price, "trades", "p")
        last_prices[symbol(message.symbol, "trades")] = latest
        return True

    def pricing(line: bytes) -> bool:
        for row in decode(line).contracts:
            name = symbol(row.symbol, "futures-pricing-data")
            emit(
                name,
                ticker_time(row.timestamp),
                last_price=last_prices.get(name),
                open_interest=number_or_error(row.open_interest, "futures-pricing-data", "oi"),
                funding_rate=number_or_error(row.funding_rate, "futures-pricing-data", "r"),
                funding_timestamp=time(row.funding_time, "futures-pricing-data", "f"),
                index_price=number_or_error(row.index_price, "futures-pricing-data", "ip"),
                mark_price=number_or_error(row.mark_price, "futures-pricing-data", "mp"),
            )
        return True

    return named({"trades": SharedDecoder(_decode_trades, trades), "futures-pricing-data": pricing})


class _Best(Struct, gc=False):
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    bid: _Quote = UNSET
    ask: _Quote = UNSET


class _BestMessage(Struct, gc=False):
    data: _Best
    symbol: str | None = None


def _at(quote: _Quote, position: int) -> str | int | float | None:
    """Return a price or an amount, with 0 for null and empty; None for an empty side."""
    if quote is UNSET or len(quote) <= position:
        return None
    return quote[position] or 0


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BestMessage).decode
    emit = context.emitter.book_ticker

    def book_tickers(line: bytes) -> bool:
        message = decode(line)
        best = message.data
        emit(
            symbol(message.symbol, "bbo"),
            _at(best.ask, 1),
            _at(best.ask, 0),
            _at(best.bid, 0),
            _at(best.bid, 1),
            time(best.timestamp, "bbo", "ts"),
        )
        return True

    return named({"bbo": book_tickers})


def _asked(topic: str) -> Iterable[Filter]:
    """Read topics such as trades:BTC/USDT,ETH/USDT."""
    channel, found, symbols = topic.partition(":")
    return (Filter(channel, tuple(symbols.split(",")) if found else ()),)


EXCHANGES: Final = (
    Exchange(
        name="ascendex",
        types={
            "trade": (Era(upper_channels("trades"), _trades),),
            "book_change": (
                Era(upper_channels("depth-realtime", "depth-snapshot-realtime"), _book_changes),
            ),
            "derivative_ticker": (
                Era(
                    (
                        Channel("futures-pricing-data", has_symbols=False, default_symbols=()),
                        *upper_channels("trades"),
                    ),
                    _derivative_tickers,
                ),
            ),
            "book_ticker": (Era(upper_channels("bbo"), _book_tickers),),
        },
        dispatch=prefixed(b'{"m":"', "m"),
        subscriptions=subscriptions({"op": "sub"}, "ch", _asked),
    ),
)
