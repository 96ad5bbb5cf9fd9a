"""Deribit: JSON-RPC notifications, one channel per kind of data and instrument."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.engine import LATEST_KNOWN, Positions, Side
from tardis_machine.engine.shapes import (
    Amount,
    Asks,
    Bids,
    KernelShape,
    Milliseconds,
    Nonzero,
    Object,
    Price,
    Rows,
    Symbol,
    TakerSide,
    TextId,
    Unless,
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
    at,
    both,
    chunks,
    equals,
    pairs,
    present,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import number_if_nonzero
from tardis_machine.exchanges.base.option_names import Option, Options, expiration
from tardis_machine.exchanges.base.subscriptions import channel_first, first_of, subscriptions
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter

Number = int | float


class _Trade(Struct, gc=False):
    symbol: str = field(name="instrument_name")
    price: Number
    amount: Number
    side: Literal["buy", "sell"] = field(name="direction")
    timestamp: Number
    id: str | None = field(name="trade_id", default=None)
    liquidation: str | None = None


class _TradesParams(Struct, gc=False):
    data: list[_Trade]


class _Trades(Struct, gc=False):
    params: _TradesParams


_decode_trades: Final = Decoder(_Trades).decode


_TRADES: Final = KernelShape(
    emits="trade",
    fields={
        "params": Object(
            {
                "data": Rows(
                    {
                        "trade_id": TextId(optional=True),
                        "timestamp": Milliseconds(),
                        "price": Price(),
                        "instrument_name": Symbol(upper=True),
                        "direction": TakerSide("buy", "sell"),
                        "amount": Amount(),
                        "liquidation": Unless(()),
                    }
                )
            }
        )
    },
)


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def trades(message: _Trades) -> bool:
        for row in message.params.data:
            emit(row.symbol.upper(), row.id, row.price, row.amount, row.side, int(row.timestamp))
        return True

    return named({"trades": KernelHandler(SharedDecoder(_decode_trades, trades), _TRADES)}, ".")


def _liquidations(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.liquidation

    def liquidations(message: _Trades) -> bool:
        for row in message.params.data:
            liquidated = row.liquidation
            if liquidated is None:
                continue
            side: Side = row.side  # the taker's; M: the maker was liquidated, MT: both were
            if liquidated != "T":
                side = "sell" if side == "buy" else "buy"
            emit(row.symbol.upper(), row.id, row.price, row.amount, side, int(row.timestamp))
        return True

    return named({"trades": SharedDecoder(_decode_trades, liquidations)}, ".")


_LEVELS: Final = Positions(price=1, amount=2, action=0, removed="delete")


class _Book(Struct, gc=False):
    symbol: str = field(name="instrument_name")
    bids: Raw
    asks: Raw
    timestamp: Number
    type: str | None = None
    id: Raw = field(name="change_id", default=Raw())  # not needed in history
    previous: Number | None = field(name="prev_change_id", default=None)


class _BookParams(Struct, gc=False):
    data: _Book


class _BookMessage(Struct, gc=False):
    params: _BookParams


_CHANGES: Final = KernelShape(
    emits="book_change",
    fields={
        "params": Object(
            {
                "data": Object(
                    {
                        "type": Unless(("snapshot",)),
                        "timestamp": Milliseconds(),
                        "prev_change_id": Nonzero(),
                        "instrument_name": Symbol(upper=True),
                        "bids": Bids(_LEVELS),
                        "asks": Asks(_LEVELS),
                    }
                )
            }
        )
    },
)


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookMessage).decode
    emit = context.emitter.book_change
    ids = UpdateIds("book", checks_ids=context.checks_ids)

    def book_changes(line: bytes) -> bool:
        book = decode(line).params.data
        symbol = book.symbol.upper()
        is_snapshot = not book.previous or book.type == "snapshot"
        if context.checks_ids:
            last_id = bytes(book.id).decode() or None
            if is_snapshot:
                ids.start(symbol, last_id)
            elif not ids.follow(symbol, str(book.previous), last_id):
                return True
        emit(symbol, is_snapshot, book.bids, book.asks, int(book.timestamp), _LEVELS)
        return True

    return named({"book": context.unchecked(book_changes, _CHANGES)}, ".")


class _Greeks(Struct, gc=False):
    delta: Number | None = None
    gamma: Number | None = None
    vega: Number | None = None
    theta: Number | None = None
    rho: Number | None = None


class _Ticker(Struct, gc=False):
    symbol: str = field(name="instrument_name")
    timestamp: Number | None = None
    open_interest: Number | None = None
    mark_price: Number | None = None
    mark_iv: Number | None = None
    last_price: Number | None = None
    index_price: Number | None = None
    funding_rate: Number | None = field(name="current_funding", default=None)
    best_bid_price: Number | None = None
    best_bid_amount: Number | None = None
    bid_iv: Number | None = None
    best_ask_price: Number | None = None
    best_ask_amount: Number | None = None
    ask_iv: Number | None = None
    underlying_price: Number | None = None
    underlying_index: str | None = None
    greeks: _Greeks | UnsetType | None = UNSET
    combo_state: str | UnsetType | None = UNSET


class _TickerParams(Struct, gc=False):
    data: _Ticker


class _TickerMessage(Struct, gc=False):
    params: _TickerParams


_decode_ticker: Final = Decoder(_TickerMessage).decode


def _time(ticker: _Ticker) -> int:
    if not ticker.timestamp:
        raise MapperError("ticker", f"no timestamp for {ticker.symbol}")
    return int(ticker.timestamp)


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker

    def derivative_tickers(message: _TickerMessage) -> bool:
        row = message.params.data
        if row.greeks is not UNSET and row.combo_state != "active":
            return False  # an option
        emit(
            row.symbol,
            int(row.timestamp or LATEST_KNOWN),
            last_price=row.last_price,
            open_interest=row.open_interest,
            funding_rate=row.funding_rate,
            index_price=row.index_price,
            mark_price=row.mark_price,
        )
        return True

    return named({"ticker": SharedDecoder(_decode_ticker, derivative_tickers)}, ".")


def _option(name: str) -> Option:
    """Read a name such as BTC-8JUN20-8750-P or, with a strike of 1.02, MATIC_USDC-9MAR24-1d02-C."""
    symbol = name.upper()
    _, expiry, strike, *kind = symbol.split("-")
    return Option(
        symbol,
        "put" if kind[:1] == ["P"] else "call",
        strike.replace("D", "."),
        expiration(expiry, "%d%b%y"),
    )


def _option_summaries(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.option_summary
    options = Options("ticker", _option)

    def option_summaries(message: _TickerMessage) -> bool:
        row = message.params.data
        greeks = row.greeks
        if greeks is UNSET or row.combo_state is not UNSET:
            return False
        if greeks is None:
            raise MapperError("ticker", f"no greeks of {row.symbol}")
        option = options[row.symbol]
        emit(
            option.symbol,
            _time(row),
            option_type=option.type,
            strike_price=option.strike_price,
            expiration_date=option.expiration,
            best_bid_price=number_if_nonzero(row.best_bid_price),
            best_bid_amount=number_if_nonzero(row.best_bid_amount),
            best_bid_iv=number_if_nonzero(row.bid_iv),
            best_ask_price=number_if_nonzero(row.best_ask_price),
            best_ask_amount=number_if_nonzero(row.best_ask_amount),
            best_ask_iv=number_if_nonzero(row.ask_iv),
            last_price=number_if_nonzero(row.last_price),
            open_interest=row.open_interest,
            mark_price=row.mark_price,
            mark_iv=row.mark_iv,
            delta=greeks.delta,
            gamma=greeks.gamma,
            vega=greeks.vega,
            theta=greeks.theta,
            rho=greeks.rho,
            underlying_price=row.underlying_price,
            underlying_index=row.underlying_index,
        )
        return True

    return named({"ticker": SharedDecoder(_decode_ticker, option_summaries)}, ".")


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.book_ticker

    def book_tickers(message: _TickerMessage) -> bool:
        row = message.params.data
        emit(
            row.symbol.upper(),
            number_if_nonzero(row.best_ask_amount),
            number_if_nonzero(row.best_ask_price),
            number_if_nonzero(row.best_bid_price),
            number_if_nonzero(row.best_bid_amount),
            _time(row),
        )
        return True

    return named({"ticker": SharedDecoder(_decode_ticker, book_tickers)}, ".")


_LOGIN_ID: Final = 1
_PACED: Final = frozenset(("book", "perpetual", "trades", "ticker"))
_MOST_CHANNELS: Final = 250
"""Symbols in one request: a chain of options is too large for one."""
_POINT: Final = re.compile(r"(?<=[0-9])D(?=[0-9])")
"""The point of a strike price, XRP_USDC-28JUN24-0d52-C: the one letter that is not upper case."""


def _request(number: int, method: str, **params: object) -> Outgoing:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _greet(_: ConnectionContext) -> Iterator[Outgoing]:
    yield _request(0, "public/set_heartbeat", interval=10)


def _login(session: ConnectionContext) -> Outgoing:
    client, secret = session.secrets
    return _request(
        _LOGIN_ID,
        "public/auth",
        grant_type="client_credentials",
        client_id=client,
        client_secret=secret,
    )


def _call(action: str, filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    scope, pace = ("private", ".raw") if session.secrets else ("public", ".100ms")
    channels = [
        f"{channel}.{_POINT.sub('d', symbol)}{pace if channel in _PACED else ''}"
        for channel, symbol in pairs(filters)
    ]
    for some in chunks(channels, _MOST_CHANNELS):
        yield _request(3, f"{scope}/{action}", channels=list(some))


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    return _call("subscribe", filters, session)


def _unsubscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    return _call("unsubscribe", filters, session)


def _reply(message: Any) -> Outgoing | None:
    return _request(0, "public/test") if at(message, "params.type") == "test_request" else None


_LIVE: Final = Dialect(
    endpoints=(
        Endpoint(
            url="wss://streams.deribit.com/ws/api/v2",
            with_secrets="wss://www.deribit.com/ws/api/v2",
        ),
    ),
    secrets=Secrets(names=("DERIBIT_API_CLIENT_ID", "DERIBIT_API_CLIENT_SECRET")),
    greet=_greet,
    login=_login,
    logged_in=both(equals("id", _LOGIN_ID), present("result")),
    subscribe=_subscribe,
    unsubscribe=_unsubscribe,
    data=(b'{"jsonrpc":"2.0","method":"subscription"',),
    heartbeats=equals("method", "heartbeat"),
    reply=_reply,
    acks=present("result"),
    errors=present("error"),
    quiet=frozenset(("trades",)),
    max_messages_per_s=3,
)


EXCHANGES: Final = (
    Exchange(
        name="deribit",
        types={
            "trade": one_era(_trades, "trades"),
            "book_change": one_era(_book_changes, "book"),
            "derivative_ticker": one_era(_derivative_tickers, "ticker"),
            "option_summary": one_era(_option_summaries, "ticker"),
            "liquidation": one_era(_liquidations, "trades"),
            "book_ticker": one_era(_book_tickers, "ticker"),
        },
        dispatch=prefixed(
            b'{"jsonrpc":"2.0","method":"subscription","params":{"channel":"', "params", "channel"
        ),
        live=_LIVE,
        subscriptions=first_of(
            subscriptions({"method": "public/subscribe"}, "params.channels", channel_first(".")),
            subscriptions({"method": "private/subscribe"}, "params.channels", channel_first(".")),
        ),
    ),
)
