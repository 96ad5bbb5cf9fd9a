"""OKEx options: summaries joined from several channels since version 5."""

from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, named
from tardis_machine.exchanges.base.exchange import (
    Channel,
    Era,
    Exchange,
    MapperContext,
    date,
    upper_channels,
)
from tardis_machine.exchanges.base.fields import JsonNumber, number_if_nonzero, time
from tardis_machine.exchanges.base.option_names import Option, Options, expiration
from tardis_machine.exchanges.okex import (
    LIVE,
    NATIVE,
    V3,
    V5,
    VERSION_5,
    Ticker5,
    Tickers5,
    book_change_eras,
    book_ticker_eras,
    decode_tickers_5,
    family_of,
    index_of,
    trade_eras,
)
from tardis_machine.messages.times import cut_ms

_NO_TICKER: Final = Ticker5()


def _option(name: str) -> Option:
    """Read a name such as BTC-USD-240329-50000-P."""
    _, _, expires, strike, kind = name.split("-")
    option_type: Literal["put", "call"] = "put" if kind == "P" else "call"
    return Option(name, option_type, strike, expiration(expires, "%y%m%d"))


# Version 3 ----------------------------------------------------------------------------------------


class _Summary3(Struct, gc=False):
    """An option's summary, or an index, which has only a name and a price."""

    symbol: str = field(name="instrument_id")
    timestamp: str | None = None
    underlying: str | None = None
    best_bid: JsonNumber = UNSET
    best_bid_size: JsonNumber = UNSET
    best_ask: JsonNumber = UNSET
    best_ask_size: JsonNumber = UNSET
    bid_iv: JsonNumber = field(name="bid_vol", default=UNSET)
    ask_iv: JsonNumber = field(name="ask_vol", default=UNSET)
    mark_iv: JsonNumber = field(name="mark_vol", default=UNSET)
    last: JsonNumber = UNSET
    open_interest: JsonNumber = UNSET
    mark_price: JsonNumber = UNSET
    delta: JsonNumber = UNSET
    gamma: JsonNumber = UNSET
    vega: JsonNumber = UNSET
    theta: JsonNumber = UNSET


class _Summaries3(Struct, gc=False):
    data: list[_Summary3]


def _option_summaries_3(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Summaries3).decode
    emit = context.emitter.option_summary
    options = Options("option/summary", _option)
    index_prices = BoundedDict[str | None, str | int | float]()

    def index_tickers(line: bytes) -> bool:
        for row in decode(line).data:
            price = number_if_nonzero(row.last)
            if price is not None:
                index_prices[row.symbol] = price
        return True

    def summaries(line: bytes) -> bool:
        for row in decode(line).data:
            option = options[row.symbol]
            emit(
                option.symbol,
                cut_ms(row.timestamp or ""),
                option_type=option.type,
                strike_price=option.strike_price,
                expiration_date=option.expiration,
                best_bid_price=number_if_nonzero(row.best_bid),
                best_bid_amount=number_if_nonzero(row.best_bid_size),
                best_bid_iv=number_if_nonzero(row.bid_iv),
                best_ask_price=number_if_nonzero(row.best_ask),
                best_ask_amount=number_if_nonzero(row.best_ask_size),
                best_ask_iv=number_if_nonzero(row.ask_iv),
                last_price=number_if_nonzero(row.last),
                open_interest=number_if_nonzero(row.open_interest),
                mark_price=number_if_nonzero(row.mark_price),
                mark_iv=number_if_nonzero(row.mark_iv),
                delta=number_if_nonzero(row.delta),
                gamma=number_if_nonzero(row.gamma),
                vega=number_if_nonzero(row.vega),
                theta=number_if_nonzero(row.theta),
                underlying_price=index_prices.get(row.underlying),
                underlying_index=row.underlying,
            )
        return True

    return named({"option/summary": summaries, "index/ticker": index_tickers})


# Version 5 ----------------------------------------------------------------------------------------


class _Summary5(Struct, gc=False):
    symbol: str = field(name="instId")
    timestamp: JsonNumber = field(name="ts", default=UNSET)
    underlying: str | None = field(name="uly", default=None)
    bid_iv: JsonNumber = field(name="bidVol", default=UNSET)
    ask_iv: JsonNumber = field(name="askVol", default=UNSET)
    mark_iv: JsonNumber = field(name="markVol", default=UNSET)
    delta: JsonNumber = UNSET
    gamma: JsonNumber = UNSET
    vega: JsonNumber = UNSET
    theta: JsonNumber = UNSET


class _Summaries5(Struct, gc=False):
    data: list[_Summary5] | UnsetType = UNSET


class _Memory(BoundedDict[str | None, str | int | float]):
    """The latest number by symbol; other values are dropped."""

    __slots__ = ()

    def learn(self, name: str | None, value: JsonNumber) -> None:
        number = number_if_nonzero(value)
        if number is not None:
            self[name] = number


def _option_summaries_5(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Summaries5).decode
    emit = context.emitter.option_summary
    options = Options("opt-summary", _option)
    index_prices, interests, mark_prices = _Memory(), _Memory(), _Memory()
    tickers = BoundedDict[str | None, Ticker5]()

    def learn(message: Tickers5) -> bool:
        for row in message.data or ():
            index_prices.learn(row.symbol, row.index_price)
            interests.learn(row.symbol, row.open_interest)
            mark_prices.learn(row.symbol, row.mark_price)
        return message.data is not UNSET

    def learn_tickers(message: Tickers5) -> bool:
        for row in message.data or ():
            tickers[row.symbol] = row
        return message.data is not UNSET

    def summaries(line: bytes) -> bool:
        rows = decode(line).data
        for row in rows or ():
            option = options[row.symbol]
            ticker = tickers.get(row.symbol, _NO_TICKER)
            emit(
                option.symbol,
                time(row.timestamp, "opt-summary", "ts"),
                option_type=option.type,
                strike_price=option.strike_price,
                expiration_date=option.expiration,
                best_bid_price=number_if_nonzero(ticker.bid_price),
                best_bid_amount=number_if_nonzero(ticker.bid_amount),
                best_bid_iv=number_if_nonzero(row.bid_iv),
                best_ask_price=number_if_nonzero(ticker.ask_price),
                best_ask_amount=number_if_nonzero(ticker.ask_amount),
                best_ask_iv=number_if_nonzero(row.ask_iv),
                last_price=number_if_nonzero(ticker.last),
                open_interest=interests.get(row.symbol),
                mark_price=mark_prices.get(row.symbol),
                mark_iv=number_if_nonzero(row.mark_iv),
                delta=number_if_nonzero(row.delta),
                gamma=number_if_nonzero(row.gamma),
                vega=number_if_nonzero(row.vega),
                theta=number_if_nonzero(row.theta),
                underlying_price=index_prices.get(row.underlying),
                underlying_index=row.underlying,
            )
        return rows is not UNSET

    learning = SharedDecoder(decode_tickers_5, learn)
    return named(
        {
            "opt-summary": summaries,
            "index-tickers": learning,
            "open-interest": learning,
            "mark-price": learning,
            "tickers": SharedDecoder(decode_tickers_5, learn_tickers),
        }
    )


EXCHANGES: Final = (
    Exchange(
        name="okex-options",
        types={
            "trade": trade_eras("option"),
            "book_change": book_change_eras("option", date("2020-02-08")),
            "option_summary": (
                Era(
                    (*upper_channels("option/summary"), Channel("index/ticker", family_of)),
                    _option_summaries_3,
                    VERSION_5,
                    V3,
                ),
                Era(
                    (
                        Channel("opt-summary", family_of, distinct=True),
                        Channel("index-tickers", index_of, distinct=True),
                        *upper_channels("tickers", "open-interest", "mark-price"),
                    ),
                    _option_summaries_5,
                    dispatch=V5,
                ),
            ),
            "book_ticker": book_ticker_eras("option"),
        },
        dispatch=V5,
        live=LIVE,
        subscriptions=NATIVE,
    ),
)
