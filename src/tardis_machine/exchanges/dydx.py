"""dYdX, v3 (closed) and v4: channels of markets, each with a snapshot at its subscription."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict, BoundedDict
from tardis_machine.engine import LOCAL_TIME, PAIRS, Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    either,
    equals,
    reads_as_unknown_symbol,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    side_unless_sell,
)
from tardis_machine.exchanges.base.fields import symbol as required_symbol
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, cut_ms, parse_ms

Number = int | float
_MAX_PRICES: Final = 100_000
_NO_LEVELS: Final = Raw(b"[]")
_EMPTY: Final = (_NO_LEVELS, Raw(b"null"))
_SNAPSHOT: Final = Objects(price="price", amount="size")


class _Trade(Struct, gc=False):
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    side: str | None = None
    created_at: str | None = field(name="createdAt", default=None)
    id: str | int | None = None
    type: str | None = None


class _TradesContents(Struct, gc=False):
    trades: list[_Trade] = []


class _Trades(Struct, gc=False):
    type: str | None = None
    symbol: str | None = field(name="id", default=None)
    contents: _TradesContents | None = None


_decode_trades: Final = Decoder(_Trades).decode


def _new_trades(message: _Trades) -> list[_Trade] | None:
    """Return the trades of an update; None for a subscription's answer, whose trades are old."""
    if message.type != "channel_data":
        return None
    if message.contents is None:
        raise MapperError("trades", "no contents")
    return message.contents.trades


def _time(row: _Trade) -> TimeValue | None:
    return cut_ms(row.created_at) if row.created_at else None


def _trades(channel: str) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.trade

        def trades(message: _Trades) -> bool:
            rows = _new_trades(message)
            if rows is None:
                return False
            symbol = required_symbol(message.symbol, "trades")
            for row in rows:
                emit(
                    symbol,
                    row.id,
                    number_or_error(row.price, "trades", "price"),
                    number_or_error(row.size, "trades", "size"),
                    side_unless_sell(row.side, "SELL"),
                    _time(row),
                )
            return True

        return named({channel: SharedDecoder(_decode_trades, trades)})

    return make


def _liquidations(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.liquidation

    def trades(message: _Trades) -> bool:
        rows = _new_trades(message)
        if rows is None:
            return False
        symbol = required_symbol(message.symbol, "trades")
        for row in rows:
            if row.type == "LIQUIDATED":
                emit(
                    symbol,
                    row.id,
                    number_or_error(row.price, "trades", "price"),
                    number_or_error(row.size, "trades", "size"),
                    side_unless_sell(row.side, "SELL"),
                    _time(row),
                )
        return True

    return named({"v4_trades": SharedDecoder(_decode_trades, trades)})


class _Book(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    offset: str | int | UnsetType = UNSET


class _BookMessage(Struct, gc=False):
    type: str | None = None
    symbol: str | None = field(name="id", default=None)
    contents: _Book | None = None


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change

    def orderbook(line: bytes) -> bool:
        message = decode(line)
        book = message.contents
        symbol = required_symbol(message.symbol, "v4_orderbook")
        if book is None:
            return True
        if message.type == "subscribed":
            emit(symbol, True, book.bids, book.asks, None, _SNAPSHOT)
        elif book.bids not in _EMPTY or book.asks not in _EMPTY:
            emit(symbol, False, book.bids, book.asks, None, PAIRS)
        return True

    return named({"v4_orderbook": orderbook})


class _Level(Struct, gc=False):
    price: str
    size: str | Number
    offset: str | int | None = None


_Pair = tuple[str | Number, str | Number]
_decode_levels: Final = Decoder(list[_Level]).decode
_decode_pairs: Final = Decoder(list[_Pair]).decode


def _pairs(levels: Sequence[_Level]) -> list[_Pair]:
    return [(level.price, level.size) for level in levels]


class _Offsets(dict[str | Number, int]):
    """The latest offset of each price of one side, by which late updates are dropped."""

    __slots__ = ()

    def start(self, levels: Sequence[_Level]) -> None:
        self.clear()
        self.update((level.price, int(level.offset or 0)) for level in levels)

    def newer(self, levels: Sequence[_Pair], offset: int) -> list[_Pair]:
        """Return the levels that no later update has changed."""
        get = self.get
        return [level for level in levels if get(level[0], -1) < offset]

    def follow(self, levels: Sequence[_Pair], offset: int) -> None:
        """Set the offset of all levels, late ones included, as the official client does."""
        if len(self) >= _MAX_PRICES:  # a broken feed; checked once for all levels
            self.clear()
        for price, _ in levels:
            self[price] = offset


def _offset_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change
    offsets = BoundedDefaultDict[str, tuple[_Offsets, _Offsets]](lambda _: (_Offsets(), _Offsets()))

    def orderbook(line: bytes) -> bool:
        message = decode(line)
        book = message.contents
        symbol = required_symbol(message.symbol, "v3_orderbook")
        if book is None:
            return True
        bid_offsets, ask_offsets = offsets[symbol]
        if message.type == "subscribed":
            bid_levels, ask_levels = _decode_levels(book.bids), _decode_levels(book.asks)
            emit(symbol, True, _pairs(bid_levels), _pairs(ask_levels), None)
            bid_offsets.start(bid_levels)
            ask_offsets.start(ask_levels)
            return True
        if book.offset is UNSET:
            raise MapperError("v3_orderbook", f"no offset of {symbol}")
        offset = int(book.offset)
        all_bids, all_asks = _decode_pairs(book.bids), _decode_pairs(book.asks)
        bids = bid_offsets.newer(all_bids, offset)
        asks = ask_offsets.newer(all_asks, offset)
        if bids or asks:
            emit(symbol, False, bids, asks, None)
        bid_offsets.follow(all_bids, offset)
        ask_offsets.follow(all_asks, offset)
        return True

    return named({"v3_orderbook": orderbook})


class _Market(Struct, gc=False):
    index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    mark_price: JsonNumber = field(name="oraclePrice", default=UNSET)
    funding_rate: JsonNumber = field(name="nextFundingRate", default=UNSET)
    funded_at: str | UnsetType | None = field(name="nextFundingAt", default=UNSET)
    open_interest: JsonNumber = field(name="openInterest", default=UNSET)


class _Listed(Struct, gc=False):
    markets: dict[str, _Market] = {}
    trading: dict[str, _Market] = {}
    oracle_prices: dict[str, _Market] = field(name="oraclePrices", default_factory=dict)


class _MarketsMessage(Struct, gc=False):
    type: str | None = None
    contents: Raw = Raw(b"{}")


_decode_message: Final = Decoder(_MarketsMessage).decode
_decode_listed: Final = Decoder(_Listed).decode
_decode_markets: Final = Decoder(dict[str, _Market]).decode


def _markets_v3(message: _MarketsMessage) -> Iterator[tuple[str, _Market]]:
    if message.type == "subscribed":
        yield from _decode_listed(message.contents).markets.items()
    else:
        yield from _decode_markets(message.contents).items()


def _markets_v4(message: _MarketsMessage) -> Iterator[tuple[str, _Market]]:
    listed = _decode_listed(message.contents)
    if message.type == "subscribed":
        yield from listed.markets.items()
    else:
        yield from listed.trading.items()
        yield from listed.oracle_prices.items()


def _funding_time(market: _Market) -> int | None:
    if market.funded_at is UNSET:
        return None
    if not market.funded_at:
        raise MapperError("markets", "no time in nextFundingAt")
    return parse_ms(market.funded_at)


def _derivative_tickers(
    version: str, read: Callable[[_MarketsMessage], Iterator[tuple[str, _Market]]]
) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        emit = context.emitter.derivative_ticker
        last_prices = BoundedDict[str, str | Number]()

        def trades(message: _Trades) -> bool:
            rows = _new_trades(message)
            if rows is None:
                return False
            if rows:
                symbol = required_symbol(message.symbol, "trades")
                last_prices[symbol] = number_or_error(rows[-1].price, "trades", "price")
            return True

        def markets(message: _MarketsMessage) -> bool:
            for symbol, market in read(message):
                emit(
                    symbol,
                    LOCAL_TIME,
                    last_price=last_prices.get(symbol),
                    open_interest=number_if_sent(market.open_interest),
                    funding_rate=number_if_sent(market.funding_rate),
                    funding_timestamp=_funding_time(market),
                    index_price=number_if_sent(market.index_price),
                    mark_price=number_if_sent(market.mark_price),
                )
            return True

        return named(
            {
                f"{version}_trades": SharedDecoder(_decode_trades, trades),
                f"{version}_markets": SharedDecoder(_decode_message, markets),
            }
        )

    return make


def _subscriber(extra: Mapping[str, Mapping[str, Any]]) -> Callable[..., Iterator[Outgoing]]:
    """Yield a message per symbol, or one for a channel of all markets; `extra` adds fields."""

    def subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
        for each in filters:
            asked = {"type": "subscribe", "channel": each.channel}
            added = extra.get(each.channel, {})
            if each.channel.endswith("_markets"):
                yield asked
            else:
                for symbol in each.symbols or ():
                    yield {**asked, "id": symbol, **added}

    return subscribe


def _is_unknown_id(message: Any) -> bool:
    return str(at(message, "message")).startswith("Invalid subscription id for channel")


def _dialect(version: str, url: str, extra: Mapping[str, Mapping[str, Any]]) -> Dialect:
    return Dialect(
        endpoints=(Endpoint(url=url),),
        subscribe=_subscriber(extra),
        data=(b'{"type":"channel_data"', b'{"type":"subscribed"'),
        acks=equals("type", "connected", "unsubscribed"),
        errors=equals("type", "error"),
        refusals=either(_is_unknown_id, reads_as_unknown_symbol),
        without_symbols=frozenset((f"{version}_markets",)),
        quiet=frozenset((f"{version}_trades",)),
    )


def _ticker_era(version: str, make: Callable[[MapperContext], ChannelHandlers]) -> tuple[Era]:
    markets = Channel(f"{version}_markets", has_symbols=False, default_symbols=())
    return (Era((markets, Channel(f"{version}_trades", str.upper)), make),)


_NATIVE: Final = subscriptions({"type": "subscribe"}, "", fields("channel", "id"))

EXCHANGES: Final = (
    Exchange(
        name="dydx",
        types={
            "trade": one_era(_trades("v3_trades"), "v3_trades"),
            "book_change": one_era(_offset_book_changes, "v3_orderbook"),
            "derivative_ticker": _ticker_era("v3", _derivative_tickers("v3", _markets_v3)),
        },
        dispatch=keyed("channel"),
        live=_dialect(
            "v3",
            "wss://api.dydx.exchange/v3/ws",
            {"v3_orderbook": {"includeOffsets": True}},
        ),
        subscriptions=_NATIVE,
        closed="dYdX v3 has closed",
    ),
    Exchange(
        name="dydx-v4",
        types={
            "trade": one_era(_trades("v4_trades"), "v4_trades"),
            "book_change": one_era(_book_changes, "v4_orderbook"),
            "derivative_ticker": _ticker_era("v4", _derivative_tickers("v4", _markets_v4)),
            "liquidation": one_era(_liquidations, "v4_trades"),
        },
        dispatch=keyed("channel"),
        # The indexer allows 32 markets of a channel on one connection.
        live=replace(_dialect("v4", "wss://indexer.dydx.trade/v4/ws", {}), max_streams=32),
        subscriptions=_NATIVE,
    ),
)
