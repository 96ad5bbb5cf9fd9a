"""Crypto.com: results of a channel, spot and derivatives over one connection."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    absent,
    at,
    both,
    either,
    equals,
    negated,
    pairs,
    present,
    reads_as_unknown_symbol,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_not_null,
    number_or_error,
    side,
    symbol,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions, symbol_first
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter

_HOUR_MS: Final = 3_600_000
_OPTION_PARTS: Final = 3
_NO_LEVELS: Final = Raw(b"[]")


class _Trade(Struct, gc=False):
    id: int | str = field(name="d")
    price: JsonNumber = field(name="p")
    amount: JsonNumber = field(name="q")
    timestamp: JsonNumber = field(name="t")
    side: str | None = field(name="s", default=None)


class _Trades(Struct, gc=False):
    data: list[_Trade]
    symbol: str | None = field(name="instrument_name", default=None)


class _TradesMessage(Struct, gc=False):
    result: _Trades


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TradesMessage).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        result = decode(line).result
        for row in reversed(result.data):  # rows are sent latest first
            emit(
                symbol(result.symbol, "trade"),
                row.id,
                number_or_error(row.price, "trade", "p"),
                number_or_error(row.amount, "trade", "q"),
                side(row.side, "BUY"),
                time(row.timestamp, "trade", "t"),
            )
        return True

    return named({"trade": trades})


class _Levels(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _Book(Struct, gc=False):
    """A book: a snapshot has its levels here, an update in `update`."""

    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    update: _Levels | UnsetType = UNSET
    timestamp: JsonNumber = field(name="t", default=UNSET)
    last_id: int | None = field(name="u", default=None)
    previous_id: int | None = field(name="pu", default=None)


class _Books(Struct, gc=False):
    channel: str
    symbol: str | None = field(name="instrument_name", default=None)
    data: list[_Book] | UnsetType = UNSET


class _BooksMessage(Struct, gc=False):
    result: _Books | UnsetType = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BooksMessage).decode
    emit = context.emitter.book_change
    ids = UpdateIds("book", checks_ids=context.checks_ids)

    def book_changes(line: bytes) -> bool:
        result = decode(line).result
        if result is UNSET:  # the answer to a subscription, which also names its channel
            return False
        if not result.data:
            return True
        row = result.data[0]
        name = symbol(result.symbol, "book")
        timestamp = time(row.timestamp, "book", "t")
        if result.channel == "book":
            ids.start(name, row.last_id)
            emit(name, True, row.bids, row.asks, timestamp)
        elif row.update is UNSET:
            raise MapperError("book", "no update")
        elif ids.follow(name, row.previous_id, row.last_id):
            emit(name, False, row.update.bids, row.update.asks, timestamp)
        return True

    return lambda channel: book_changes if channel.startswith("book") else None


class _Ticker(Struct, gc=False):
    """A ticker, or a mark price, an index price or a rate in `value`."""

    timestamp: JsonNumber = field(name="t", default=UNSET)
    value: JsonNumber = field(name="v", default=UNSET)
    last: JsonNumber = field(name="a", default=UNSET)
    open_interest: JsonNumber = field(name="oi", default=UNSET)
    bid: JsonNumber = field(name="b", default=UNSET)
    bid_size: JsonNumber = field(name="bs", default=UNSET)
    ask: JsonNumber = field(name="k", default=UNSET)
    ask_size: JsonNumber = field(name="ks", default=UNSET)


class _Tickers(Struct, gc=False):
    channel: str
    data: list[_Ticker]
    symbol: str | None = field(name="instrument_name", default=None)


class _TickersMessage(Struct, gc=False):
    result: _Tickers


_decode_tickers: Final = Decoder(_TickersMessage).decode


def _is_derivative(name: str) -> bool:
    """Return whether a name is a contract: spot pairs have an underscore, options three parts."""
    return "_" not in name and len(name.split("-")) != _OPTION_PARTS


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker
    index_prices = BoundedDict[str, str | int | float]()

    def derivative_tickers(message: _TickersMessage) -> bool:
        result = message.result
        name, channel = result.symbol, result.channel
        if name is None or not _is_derivative(name):
            return False
        if not result.data:
            raise MapperError(channel, "no data")
        row = result.data[0]
        underlying = name.partition("-")[0]
        value = number_if_not_null(row.value)
        if channel == "index":
            index_prices[underlying] = number_or_error(row.value, "index", "v")
            return True
        funding = None
        if channel == "funding" and value is not None:
            funding = (time(row.timestamp, "funding", "t") // _HOUR_MS + 1) * _HOUR_MS
        is_ticker = channel == "ticker"
        emit(
            name,
            ticker_time(row.timestamp),
            last_price=number_if_not_null(row.last) if is_ticker else None,
            open_interest=number_if_not_null(row.open_interest) if is_ticker else None,
            funding_rate=value if channel == "funding" else None,
            funding_timestamp=funding,
            index_price=index_prices.get(underlying),
            mark_price=value if channel == "mark" else None,
        )
        return True

    # Estimated rates are requested as well; the Node server does not emit them.
    handler = SharedDecoder(_decode_tickers, derivative_tickers)
    return named(dict.fromkeys(("ticker", "index", "mark", "funding"), handler))


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker

    def book_tickers(message: _TickersMessage) -> bool:
        result = message.result
        for row in result.data:
            emit(
                symbol(result.symbol, "ticker"),
                number_if_not_null(row.ask_size),
                number_if_not_null(row.ask),
                number_if_not_null(row.bid),
                number_if_not_null(row.bid_size),
                time(row.timestamp, "ticker", "t"),
            )
        return True

    return named({"ticker": SharedDecoder(_decode_tickers, book_tickers)})


# In the order of subscriptions: prices before the channels that use them.
_CHANNELS: Final = ("trade", "book", "ticker", "index", "mark", "funding", "estimatedfunding")


def _request(
    method: str, filters: Sequence[Filter], session: ConnectionContext
) -> Iterator[Outgoing]:
    ordered = sorted(filters, key=lambda each: _CHANNELS.index(each.channel))
    channels = [
        f"{channel}.{name}.50" if channel == "book" else f"{channel}.{name}"
        for channel, name in pairs(ordered)
    ]
    yield {
        "id": session.number(),
        "method": method,
        "nonce": session.now_ms,
        "params": {"channels": channels, "book_subscription_type": "SNAPSHOT_AND_UPDATE"},
    }


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    return _request("subscribe", filters, session)


def _unsubscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    return _request("unsubscribe", filters, session)


def _reply(message: Any) -> Outgoing | None:
    if not _IS_HEARTBEAT(message):
        return None
    return {"id": at(message, "id"), "method": "public/respond-heartbeat"}


_IS_HEARTBEAT: Final = equals("method", "public/heartbeat")
_LIVE: Final = Dialect(
    endpoints=(Endpoint(url="wss://stream.crypto.com/exchange/v1/market"),),
    subscribe=_subscribe,
    unsubscribe=_unsubscribe,
    heartbeats=_IS_HEARTBEAT,
    reply=_reply,
    acks=both(equals("method", "subscribe", "unsubscribe"), equals("code", 0), absent("result")),
    errors=both(present("code"), negated(equals("code", 0))),
    refusals=either(equals("code", 40003), reads_as_unknown_symbol),  # no such channel
    quiet=frozenset(("trade", "funding", "estimatedfunding")),
    max_streams=400,
)


def _index(name: str) -> str:
    return f"{name.upper().partition('-')[0]}-INDEX"


EXCHANGES: Final = (
    Exchange(
        name="crypto-com",
        types={
            "trade": one_era(_trades, "trade"),
            "book_change": one_era(_book_changes, "book"),
            "derivative_ticker": (
                Era(
                    (
                        Channel("ticker", str.upper),
                        Channel("index", _index, default_symbols=(), distinct=True),
                        Channel("mark", str.upper),
                        Channel("funding", str.upper),
                        Channel("estimatedfunding", str.upper),
                    ),
                    _derivative_tickers,
                ),
            ),
            "book_ticker": one_era(_book_tickers, "ticker"),
        },
        dispatch=keyed("result", "channel"),
        live=_LIVE,
        # The Node server reads trade.BTC_USDT as a channel of that pair.
        subscriptions=subscriptions({"method": "subscribe"}, "params.channels", symbol_first(".")),
    ),
)
