"""Phemex: contracts in whole ticks, spot pairs that begin with s, and perpetuals in plain text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, decoded, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    equals,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import number_or_error, side, symbol
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, nanos_us

_Text = str | int | float | None
# Decoded as the reference does, and thus of a size that can be divided.
Number = float
_CONTRACT_TICKS: Final = (1e4, 1)  # of a price, of an amount
_SPOT_TICKS: Final = (1e8, 1e8)
_RATE_TICKS: Final = 1e8
# A pair whose name in upper case is another market's, whose messages it must not get mixed with.
_SHADOWED: Final = frozenset(("sOLUSDT",))
_PACK: Final = "perp_market24h_pack_p"


class _Sides(Struct, gc=False):
    bids: Raw
    asks: Raw


class _Market(Struct, gc=False):
    """The state of a contract, in ticks."""

    symbol: str | None = None
    close: Number | UnsetType | None = UNSET
    funding_rate: Number | UnsetType | None = field(name="fundingRate", default=UNSET)
    predicted_rate: Number | UnsetType | None = field(name="predFundingRate", default=UNSET)
    index_price: Number | UnsetType | None = field(name="indexPrice", default=UNSET)
    mark_price: Number | UnsetType | None = field(name="markPrice", default=UNSET)
    open_interest: Number | None = field(name="openInterest", default=None)


class _Message(Struct, gc=False):
    """Any message; its channel is known by the field that it has, which is decoded later."""

    symbol: str | None = None
    type: str | None = None
    timestamp: Number | None = None
    trades: Raw | UnsetType = UNSET
    trades_p: Raw | UnsetType = UNSET
    book: Raw | UnsetType = UNSET
    orderbook_p: Raw | UnsetType = UNSET
    market: Raw | UnsetType = field(name="market24h", default=UNSET)
    method: str | None = None
    data: Raw = Raw(b"[]")


_decode: Final = Decoder(_Message).decode


def _channel(message: _Message) -> str | None:
    if message.orderbook_p is not UNSET:
        return "orderbook_p"
    if message.book is not UNSET:
        return "book"
    if message.trades_p is not UNSET:
        return "trades_p"
    if message.trades is not UNSET:
        return "trades"
    if message.market is not UNSET:
        return "market24h"
    return _PACK if message.method == f"{_PACK}.update" else None


def _time(nanoseconds: Number | None) -> TimeValue:
    if not nanoseconds:
        raise MapperError("message", "no time")
    return nanos_us(nanoseconds)


def _ticks(name: str) -> tuple[float, float]:
    return _SPOT_TICKS if name.startswith("s") else _CONTRACT_TICKS


class _Trade(Struct, array_like=True, gc=False):
    timestamp: Number | None
    side: str | None
    price: _Text
    amount: _Text


class _ScaledTrade(Struct, array_like=True, gc=False):
    timestamp: Number | None
    side: str | None
    price: Number | None
    amount: Number | None


def _trades(context: MapperContext) -> ChannelHandlers:
    decode_scaled = Decoder(list[_ScaledTrade]).decode
    decode_plain = Decoder(list[_Trade]).decode
    emit = context.emitter.trade

    def trades(message: _Message) -> bool:
        if message.type != "incremental":  # a snapshot repeats trades of the past
            return False
        name = symbol(message.symbol, "trades")
        if message.trades is UNSET or name in _SHADOWED:
            return True
        price, amount = _ticks(name)
        for row in decode_scaled(message.trades):
            emit(
                name.upper(),
                None,
                (row.price or 0) / price,
                (row.amount or 0) / amount,
                side(row.side, "Buy"),
                _time(row.timestamp),
            )
        return True

    def plain_trades(message: _Message) -> bool:
        if message.type != "incremental":
            return False
        if message.trades_p is not UNSET:
            name = symbol(message.symbol, "trades_p").upper()
            for row in decode_plain(message.trades_p):
                emit(
                    name,
                    None,
                    row.price or 0,
                    row.amount or 0,
                    side(row.side, "Buy"),
                    _time(row.timestamp),
                )
        return True

    return named(
        {"trades": SharedDecoder(_decode, trades), "trades_p": SharedDecoder(_decode, plain_trades)}
    )


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Sides).decode
    decode_levels = Decoder(list[tuple[Number, Number]]).decode
    emit = context.emitter.book_change

    def scaled(levels: Raw, name: str) -> list[tuple[float, float]]:
        price, amount = _ticks(name)
        return [(level[0] / price, level[1] / amount) for level in decode_levels(levels)]

    def book_changes(message: _Message) -> bool:
        name = symbol(message.symbol, "book")
        if message.book is not UNSET and name not in _SHADOWED:
            book = decode(message.book)
            bids, asks = scaled(book.bids, name), scaled(book.asks, name)
            is_snapshot = message.type == "snapshot"
            emit(name.upper(), is_snapshot, bids, asks, _time(message.timestamp))
        return True

    def plain_book_changes(message: _Message) -> bool:
        if message.orderbook_p is not UNSET:
            book = decode(message.orderbook_p)
            name = symbol(message.symbol, "orderbook_p").upper()
            is_snapshot = message.type == "snapshot"
            emit(name, is_snapshot, book.bids, book.asks, _time(message.timestamp))
        return True

    return named(
        {
            "book": SharedDecoder(_decode, book_changes),
            "orderbook_p": SharedDecoder(_decode, plain_book_changes),
        }
    )


class _Row(Struct, array_like=True, gc=False):
    """A perpetual's row of a message with all perpetuals."""

    symbol: str
    open: Any
    high: Any
    low: Any
    last: _Text
    volume: Any
    turnover: Any
    open_interest: _Text
    index_price: _Text
    mark_price: _Text
    funding_rate: _Text
    predicted_rate: _Text


def _scaled(value: Number | UnsetType | None, ticks: float, name: str) -> float:
    return float(number_or_error(value, "market24h", name)) / ticks


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Market).decode
    decode_rows = Decoder(list[_Row]).decode
    emit = context.emitter.derivative_ticker
    price = _CONTRACT_TICKS[0]

    def market(message: _Message) -> bool:
        if message.market is not UNSET:
            row = decode(message.market)
            emit(
                symbol(row.symbol, "market24h"),
                _time(message.timestamp),
                last_price=_scaled(row.close, price, "close"),
                open_interest=row.open_interest,
                funding_rate=_scaled(row.funding_rate, _RATE_TICKS, "fundingRate"),
                predicted_funding_rate=_scaled(row.predicted_rate, _RATE_TICKS, "predFundingRate"),
                index_price=_scaled(row.index_price, price, "indexPrice"),
                mark_price=_scaled(row.mark_price, price, "markPrice"),
            )
        return True

    def pack(message: _Message) -> bool:
        for row in decode_rows(message.data):
            emit(
                row.symbol,
                _time(message.timestamp),
                last_price=row.last or 0,
                open_interest=row.open_interest or 0,
                funding_rate=row.funding_rate or 0,
                predicted_funding_rate=row.predicted_rate or 0,
                index_price=row.index_price or 0,
                mark_price=row.mark_price or 0,
            )
        return True

    return named({"market24h": SharedDecoder(_decode, market), _PACK: SharedDecoder(_decode, pack)})


_METHODS: Final = {"book": "orderbook", "trades": "trade", "trades_p": "trade_p"}
_CHANNELS: Final = {method: channel for channel, method in _METHODS.items()}
_OF_ALL: Final = frozenset(("market24h", "spot_market24h", _PACK))


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    number = 0
    for each in filters:
        of_all = each.channel in _OF_ALL or not each.symbols
        for params in [[]] if of_all else [[name] for name in each.symbols or ()]:
            method = _METHODS.get(each.channel, each.channel)
            yield {"id": number, "method": f"{method}.subscribe", "params": params}
            number += 1


def _native(message: Any) -> list[Filter] | None:
    """Read methods such as trade.subscribe, whose parameters begin with symbols."""
    method = message.get("method") if isinstance(message, dict) else None
    if not isinstance(method, str) or not method.endswith(".subscribe"):
        return None
    name = method.removesuffix(".subscribe")
    symbols = tuple(each for each in message.get("params") or () if isinstance(each, str))
    return [Filter(_CHANNELS.get(name, name), symbols)]


# Coins whose contracts must not be taken for spot pairs, which also begin with S in upper case.
_S_COINS: Final = frozenset(
    (
        *("SOL", "SUI", "SAND", "SUSHI", "SNX", "SHIB", "SEI", "STX", "STORJ", "SKL", "SXP", "SFP"),
        *("SPELL", "STG", "SSV", "STRK", "STEEM", "SUPER", "SCRT", "SAGA", "SYN", "SPX", "SC"),
    )
)


def _is_perpetual(name: str) -> bool:
    if not name.endswith("USDT"):
        return False
    return not name.startswith(("s", "S")) or name.removesuffix("USDT") in _S_COINS


def _spelled(name: str) -> str:
    """Return a pair or a contract as the exchange spells it: sETHUSDT, but SOLUSD."""
    is_pair = name.startswith("S") and name.removesuffix("USD") not in _S_COINS
    return f"s{name[1:]}" if is_pair else name


def _era(
    make: Callable[[MapperContext], ChannelHandlers], contracts: str, perpetuals: str
) -> tuple[Era]:
    def filters(symbols: Sequence[str] | None) -> Iterator[Filter]:
        if not symbols:  # an empty list means all as well
            yield Filter(contracts)
            yield Filter(perpetuals)
            return
        of_perpetuals = tuple(name for name in symbols if _is_perpetual(name))
        others = tuple(_spelled(name) for name in symbols if not _is_perpetual(name))
        if of_perpetuals:
            yield Filter(perpetuals, of_perpetuals)
        if others:
            yield Filter(contracts, others)

    return (Era((Channel(contracts), Channel(perpetuals)), make, make_filters=filters),)


EXCHANGES: Final = (
    Exchange(
        name="phemex",
        types={
            "trade": _era(_trades, "trades", "trades_p"),
            "book_change": _era(_book_changes, "book", "orderbook_p"),
            "derivative_ticker": _era(_derivative_tickers, "market24h", _PACK),
        },
        dispatch=decoded(_decode, _channel),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws.phemex.com/"),),
            subscribe=_subscribe,
            acks=equals("result.status", "success"),
            errors=present("error"),
            without_symbols=None,
            quiet=frozenset(("trades", "trades_p")),
            throttle_s=0.1,
        ),
        subscriptions=_native,
    ),
)
