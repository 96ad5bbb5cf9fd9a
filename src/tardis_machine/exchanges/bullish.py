"""Bullish: messages named by their dataType; tickers of options and futures add their index."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import BID_FIRST, FLAT, LATEST_KNOWN, Side
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    both,
    either,
    equals,
    negated,
    pairs,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_nonzero,
    number_if_not_empty,
    number_or_error,
)
from tardis_machine.exchanges.base.option_names import Option, Options, expiration
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import parse_ms

_TRADES: Final = "V1TAAnonymousTradeUpdate"
_BOOK: Final = "V1TALevel2"
_BEST: Final = "V1TALevel1"
_TICKER: Final = "V1TATickerResponse"
_INDEX: Final = "V1TAIndexPrice"
_NO_LEVELS: Final = Raw(b"[]")
_FOUNDED_MS: Final = parse_ms("2020-01-01T00:00:00.000Z")
_FUTURE_PARTS: Final = 3
_OPTION_PARTS: Final = 5


def _sent_at(timestamp: JsonTime) -> int | None:
    """Return milliseconds; None if missing, or truncated as they were for some time in 2026."""
    if timestamp is UNSET or timestamp is None or timestamp == "":
        return None
    try:
        ms = float(timestamp)
    except OverflowError:
        ms = inf
    if not isfinite(ms):
        raise MapperError("message", "no time in timestamp")
    return int(ms) if ms >= _FOUNDED_MS else None


def _created_at(iso: str | None, channel: str) -> int:
    if not iso:
        raise MapperError(channel, "no time in createdAtDatetime")
    return parse_ms(iso)


class _Trade(Struct, gc=False):
    symbol: str
    id: str | int | None = field(name="tradeId", default=None)
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    side: str | None = None
    is_taker: bool | None = field(name="isTaker", default=None)
    created: str | None = field(name="createdAtDatetime", default=None)

    def takers_side(self) -> Side:
        return "buy" if (self.side == "BUY") == bool(self.is_taker) else "sell"


class _Trades(Struct, gc=False):
    trades: list[_Trade] | None = None


class _TradesMessage(Struct, gc=False):
    type: str | None = None
    data: _Trades | None = None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TradesMessage).decode
    emit = context.emitter.trade

    def trades(line: bytes) -> bool:
        message = decode(line)
        if message.type != "update" or message.data is None:
            return False  # a snapshot has trades of the past
        for row in message.data.trades or ():
            emit(
                row.symbol,
                row.id,
                number_or_error(row.price, _TRADES, "price"),
                number_or_error(row.quantity, _TRADES, "quantity"),
                row.takers_side(),
                _created_at(row.created, _TRADES),
            )
        return True

    return named({_TRADES: trades})


class _Book(Struct, gc=False):
    symbol: str
    timestamp: JsonTime = UNSET
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _BookMessage(Struct, gc=False):
    type: str | None = None
    data: _Book | None = None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change

    def book(line: bytes) -> bool:
        message = decode(line)
        row = message.data
        if row is None:
            return False
        is_snapshot = message.type == "snapshot"
        emit(row.symbol, is_snapshot, row.bids, row.asks, _sent_at(row.timestamp), FLAT)
        return True

    return named({_BOOK: book})


class _Quote(Struct, gc=False):
    symbol: str
    timestamp: JsonTime = UNSET
    bid: list[str | int | float | None] | str | None = None
    ask: list[str | int | float | None] | str | None = None


class _QuoteMessage(Struct, gc=False):
    data: _Quote | None = None


def _best(level: list[str | int | float | None] | str | None) -> tuple[JsonNumber, JsonNumber]:
    """Return price and amount; None for an empty side of the book."""
    if not isinstance(level, list):
        return None, None
    price, amount, *_ = *level, None, None
    return price, amount


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_QuoteMessage).decode
    emit = context.emitter.book_ticker
    context.emitter.order_book_ticker(BID_FIRST)

    def quote(line: bytes) -> bool:
        row = decode(line).data
        if row is None:
            return False
        bid_price, bid_amount = _best(row.bid)
        ask_price, ask_amount = _best(row.ask)
        emit(
            row.symbol,
            number_if_nonzero(ask_amount),
            number_if_nonzero(ask_price),
            number_if_nonzero(bid_price),
            number_if_nonzero(bid_amount),
            _sent_at(row.timestamp),
        )
        return True

    return named({_BEST: quote})


class _IndexPrice(Struct, gc=False):
    asset: str = field(name="assetSymbol")
    price: JsonNumber = UNSET


class _IndexMessage(Struct, gc=False):
    data: _IndexPrice | None = None


_decode_index: Final = Decoder(_IndexMessage).decode


class _Ticker(Struct, gc=False):
    symbol: str
    created: str | None = field(name="createdAtDatetime", default=None)
    last_price: JsonNumber = field(name="last", default=UNSET)
    mark_price: JsonNumber = field(name="markPrice", default=UNSET)
    funding_rate: JsonNumber = field(name="fundingRate", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)
    bid_price: JsonNumber = field(name="bestBid", default=UNSET)
    bid_amount: JsonNumber = field(name="bidVolume", default=UNSET)
    ask_price: JsonNumber = field(name="bestAsk", default=UNSET)
    ask_amount: JsonNumber = field(name="askVolume", default=UNSET)
    delta: JsonNumber = UNSET
    gamma: JsonNumber = UNSET
    theta: JsonNumber = UNSET
    vega: JsonNumber = UNSET
    volatility: JsonNumber = field(name="impliedVolatility", default=UNSET)


class _TickerMessage(Struct, gc=False):
    data: _Ticker | None = None


_decode_ticker: Final = Decoder(_TickerMessage).decode


def _asset(symbol: str) -> str:
    return symbol.partition("-")[0]


class _Indexes(BoundedDict[str, JsonNumber]):
    """Index prices by asset, which a ticker adds to its next message."""

    __slots__ = ()

    def learn(self, message: _IndexMessage) -> bool:
        row = message.data
        if row is None:
            return False
        self[row.asset] = row.price
        return True

    def of(self, symbol: str) -> str | int | float | None:
        return number_if_not_empty(self.get(_asset(symbol)))

    def beside(self, ticker: Callable[[_TickerMessage], bool]) -> ChannelHandlers:
        """Return the handlers of a type of ticker: one for tickers, one for index prices."""
        index = SharedDecoder(_decode_index, self.learn)
        return named({_TICKER: SharedDecoder(_decode_ticker, ticker), _INDEX: index})


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker
    indexes = _Indexes()

    def ticker(message: _TickerMessage) -> bool:
        row = message.data
        if row is None or row.symbol.count("-") + 1 != _FUTURE_PARTS:
            return False
        emit(
            row.symbol,
            parse_ms(row.created) if row.created else LATEST_KNOWN,
            last_price=number_if_not_empty(row.last_price),
            open_interest=number_if_not_empty(row.open_interest),
            funding_rate=number_if_not_empty(row.funding_rate),
            index_price=indexes.of(row.symbol),
            mark_price=number_if_not_empty(row.mark_price),
        )
        return True

    return indexes.beside(ticker)


def _option(name: str) -> Option:
    """Read names such as BTC-USDC-20260425-70000-C."""
    _, _, expires, strike, kind = name.split("-")
    if kind not in {"C", "P"}:
        raise ValueError(kind)
    return Option(name, "call" if kind == "C" else "put", strike, expiration(expires, "%Y%m%d"))


def _option_summaries(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.option_summary
    indexes = _Indexes()
    options = Options(_TICKER, _option)

    def ticker(message: _TickerMessage) -> bool:
        row = message.data
        if row is None or row.symbol.count("-") + 1 != _OPTION_PARTS:
            return False
        option = options[row.symbol]
        emit(
            row.symbol,
            _created_at(row.created, _TICKER),
            option_type=option.type,
            strike_price=option.strike_price,
            expiration_date=option.expiration,
            best_bid_price=number_if_not_empty(row.bid_price),
            best_bid_amount=number_if_not_empty(row.bid_amount),
            best_ask_price=number_if_not_empty(row.ask_price),
            best_ask_amount=number_if_not_empty(row.ask_amount),
            last_price=number_if_not_empty(row.last_price),
            open_interest=number_if_not_empty(row.open_interest),
            mark_price=number_if_not_empty(row.mark_price),
            mark_iv=number_if_not_empty(row.volatility),
            delta=number_if_not_empty(row.delta),
            gamma=number_if_not_empty(row.gamma),
            vega=number_if_not_empty(row.vega),
            theta=number_if_not_empty(row.theta),
            underlying_price=indexes.of(row.symbol),
            underlying_index=_asset(row.symbol),
        )
        return True

    return indexes.beside(ticker)


_TOPICS: Final = {
    _BOOK: "l2Orderbook",
    _BEST: "l1Orderbook",
    _TRADES: "anonymousTrades",
    _TICKER: "tick",
    _INDEX: "indexPrice",
}
_CHANNELS: Final = {topic: channel for channel, topic in _TOPICS.items()}


def _command(method: str, session: ConnectionContext) -> dict[str, Any]:
    number = str(session.number())
    return {"jsonrpc": "2.0", "type": "command", "method": method, "id": number}


def _symbol_field(channel: str) -> str:
    return "assetSymbol" if channel == _INDEX else "symbol"


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    for channel, symbol in pairs(filters):
        params = {"topic": _TOPICS[channel], _symbol_field(channel): symbol}
        yield _command("subscribe", session) | {"params": params}


def _subscriptions(message: Any) -> list[Filter] | None:
    wanted = at(message, "params")
    if at(message, "method") != "subscribe" or not isinstance(wanted, Mapping):
        return None
    topic = str(wanted.get("topic"))
    channel = _CHANNELS.get(topic, topic)
    symbol = wanted.get(_symbol_field(channel))
    return [Filter(channel, () if symbol is None else (symbol,))]


def _endpoint(name: str, path: str, *channels: str) -> Endpoint:
    url = f"wss://api.exchange.bullish.com/trading-api/v1/{path}"
    return Endpoint(url=url, name=name, channels=frozenset(channels))


def _era(make: Callable[[MapperContext], ChannelHandlers], *channels: Channel) -> tuple[Era]:
    return (Era(channels, make),)


_IS_PONG: Final = equals("result.message", "Keep alive pong")
_ASKED_OF_CONTRACTS: Final = (Channel(_TICKER), Channel(_INDEX, _asset, distinct=True))

EXCHANGES: Final = (
    Exchange(
        name="bullish",
        types={
            "trade": _era(_trades, Channel(_TRADES)),
            "book_change": _era(_book_changes, Channel(_BOOK)),
            "derivative_ticker": _era(_derivative_tickers, *_ASKED_OF_CONTRACTS),
            "option_summary": _era(_option_summaries, *_ASKED_OF_CONTRACTS),
            "book_ticker": _era(_book_tickers, Channel(_BEST)),
        },
        dispatch=keyed("dataType"),
        live=Dialect(
            endpoints=(
                _endpoint("orderbook", "market-data/orderbook", _BOOK, _BEST),
                _endpoint("trades", "market-data/trades", _TRADES),
                _endpoint("tick", "market-data/tick", _TICKER),
                _endpoint("index", "index-data", _INDEX),
            ),
            subscribe=_subscribe,
            acks=both(present("result"), negated(_IS_PONG)),
            heartbeats=either(equals("dataType", "V1TAHeartbeat"), _IS_PONG),
            errors=present("error"),
            ping=lambda session: _command("keepalivePing", session),
            quiet=frozenset((_TRADES,)),
        ),
        subscriptions=_subscriptions,
    ),
)
