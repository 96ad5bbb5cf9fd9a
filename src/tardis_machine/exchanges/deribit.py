"""Deribit: JSON-RPC notifications, one channel per kind of data and instrument."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder

from tardis_machine.emit import Emitter, Positions, Side
from tardis_machine.exchanges.dialect import (
    Dialect,
    Endpoint,
    Outgoing,
    Secrets,
    Session,
    at,
    both,
    equals,
    pairs,
    present,
)
from tardis_machine.exchanges.dispatch import dispatcher
from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Handler, Making
from tardis_machine.exchanges.numbers import nonzero
from tardis_machine.exchanges.subscriptions import channel_first, first_of, subscriptions
from tardis_machine.filters import Filter

Number = int | float
_EXPIRY_HOUR: Final = 8
_PREFIX: Final = b'{"jsonrpc":"2.0","method":"subscription","params":{"channel":"'


class _EnvelopeParams(Struct, gc=False):
    channel: str | None = None


class _Envelope(Struct, gc=False):
    params: _EnvelopeParams | None = None


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


def _trades(emitter: Emitter) -> Callable[[list[_Trade]], bool]:
    emit = emitter.trade

    def trades(rows: list[_Trade]) -> bool:
        for row in rows:
            emit(row.symbol.upper(), row.id, row.price, row.amount, row.side, int(row.timestamp))
        return True

    return trades


def _liquidations(emitter: Emitter) -> Callable[[list[_Trade]], bool]:
    emit = emitter.liquidation

    def liquidations(rows: list[_Trade]) -> bool:
        for row in rows:
            liquidated = row.liquidation
            if liquidated is None:
                continue
            side: Side = row.side  # the taker's; M: the maker was liquidated, MT: both were
            if liquidated != "T":
                side = "sell" if side == "buy" else "buy"
            emit(row.symbol.upper(), row.id, row.price, row.amount, side, int(row.timestamp))
        return True

    return liquidations


_LEVELS: Final = Positions(price=1, amount=2, action=0, removed="delete")


class _Book(Struct, gc=False):
    symbol: str = field(name="instrument_name")
    bids: Raw
    asks: Raw
    timestamp: Number
    type: str | None = None
    previous: Number | None = field(name="prev_change_id", default=None)


class _BookParams(Struct, gc=False):
    data: _Book


class _BookMessage(Struct, gc=False):
    params: _BookParams


def _book_changes(emitter: Emitter) -> Callable[[_Book], bool]:
    emit = emitter.book_change

    def book_changes(book: _Book) -> bool:
        emit(
            book.symbol.upper(),
            not book.previous or book.type == "snapshot",
            book.bids,
            book.asks,
            int(book.timestamp),
            _LEVELS,
        )
        return True

    return book_changes


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


def _time(ticker: _Ticker) -> int:
    if not ticker.timestamp:
        raise MapperError("ticker", f"no timestamp for {ticker.symbol}")
    return int(ticker.timestamp)


def _derivative_tickers(emitter: Emitter) -> Callable[[_Ticker], bool]:
    emit = emitter.derivative_ticker

    def derivative_tickers(row: _Ticker) -> bool:
        if row.greeks is not UNSET and row.combo_state != "active":
            return False  # an option
        emit(
            row.symbol,
            int(row.timestamp or 0),
            last_price=row.last_price,
            open_interest=row.open_interest,
            funding_rate=row.funding_rate,
            index_price=row.index_price,
            mark_price=row.mark_price,
        )
        return True

    return derivative_tickers


class _Option(NamedTuple):
    symbol: str
    type: Literal["put", "call"]
    strike_price: str
    expiration_date: int


def _option(name: str) -> _Option:
    """Read a name such as BTC-8JUN20-8750-P or, with a strike of 1.02, MATIC_USDC-9MAR24-1d02-C."""
    symbol = name.upper()
    try:
        _, expiry, strike, *kind = symbol.split("-")
        expires = datetime.strptime(expiry, "%d%b%y").replace(hour=_EXPIRY_HOUR, tzinfo=UTC)
    except ValueError:
        raise MapperError("ticker", f"not an option's name: {name}") from None
    return _Option(
        symbol,
        "put" if kind[:1] == ["P"] else "call",
        strike.replace("D", "."),
        int(expires.timestamp()) * 1000,
    )


class _Options(dict[str, _Option]):
    """What names of options say, each read once."""

    def __missing__(self, name: str) -> _Option:
        option = self[name] = _option(name)
        return option


def _option_summaries(emitter: Emitter) -> Callable[[_Ticker], bool]:
    emit = emitter.option_summary
    options = _Options()

    def option_summaries(row: _Ticker) -> bool:
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
            expiration_date=option.expiration_date,
            best_bid_price=nonzero(row.best_bid_price),
            best_bid_amount=nonzero(row.best_bid_amount),
            best_bid_iv=nonzero(row.bid_iv),
            best_ask_price=nonzero(row.best_ask_price),
            best_ask_amount=nonzero(row.best_ask_amount),
            best_ask_iv=nonzero(row.ask_iv),
            last_price=nonzero(row.last_price),
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

    return option_summaries


def _book_tickers(emitter: Emitter) -> Callable[[_Ticker], bool]:
    emit = emitter.book_ticker

    def book_tickers(row: _Ticker) -> bool:
        emit(
            row.symbol.upper(),
            nonzero(row.best_ask_amount),
            nonzero(row.best_ask_price),
            nonzero(row.best_bid_price),
            nonzero(row.best_bid_amount),
            _time(row),
        )
        return True

    return book_tickers


_TYPES: Final[dict[str, tuple[str, Callable[[Emitter], Callable[[Any], bool]]]]] = {
    "trade": ("trades", _trades),
    "book_change": ("book", _book_changes),
    "derivative_ticker": ("ticker", _derivative_tickers),
    "option_summary": ("ticker", _option_summaries),
    "liquidation": ("trades", _liquidations),
    "book_ticker": ("ticker", _book_tickers),
}
_MESSAGES: Final[dict[str, Any]] = {
    "trades": _Trades,
    "book": _BookMessage,
    "ticker": _TickerMessage,
}


def _handler(channel: str, parts: Sequence[Callable[[Any], bool]]) -> Handler:
    """Decode a message once for all the types that are made from it."""
    decode = Decoder(_MESSAGES[channel]).decode
    if len(parts) == 1:
        (part,) = parts
        return lambda line: part(decode(line).params.data)

    def handler(line: bytes) -> bool:
        data = decode(line).params.data
        handled = False
        for part in parts:
            handled |= part(data)
        return handled

    return handler


def _mapper(making: Making) -> Handler:
    parts: dict[str, list[Callable[[Any], bool]]] = {}
    for each in making.forms:
        channel, make = _TYPES[each]
        parts.setdefault(channel, []).append(make(making.emitter))
    handlers = {channel: _handler(channel, its_parts) for channel, its_parts in parts.items()}
    envelope = Decoder(_Envelope).decode

    def channel_of(line: bytes) -> str | None:
        params = envelope(line).params
        return None if params is None else params.channel

    return dispatcher(_PREFIX, channel_of, lambda name: handlers.get(name.partition(".")[0]))


_LOGIN_ID: Final = 1
_PACED: Final = frozenset(("book", "perpetual", "trades", "ticker"))


def _request(number: int, method: str, **params: object) -> Outgoing:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _greet(_: Session) -> Iterator[Outgoing]:
    yield _request(0, "public/set_heartbeat", interval=10)


def _login(session: Session) -> Outgoing:
    client, secret = session.secrets
    return _request(
        _LOGIN_ID,
        "public/auth",
        grant_type="client_credentials",
        client_id=client,
        client_secret=secret,
    )


def _call(action: str, filters: Sequence[Filter], session: Session) -> Iterator[Outgoing]:
    scope, pace = ("private", ".raw") if session.secrets else ("public", ".100ms")
    channels = [f"{c}.{symbol}{pace if c in _PACED else ''}" for c, symbol in pairs(filters)]
    yield _request(3, f"{scope}/{action}", channels=channels)


def _subscribe(filters: Sequence[Filter], session: Session) -> Iterator[Outgoing]:
    return _call("subscribe", filters, session)


def _unsubscribe(filters: Sequence[Filter], session: Session) -> Iterator[Outgoing]:
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
)


EXCHANGES: Final = (
    Exchange(
        name="deribit",
        types={each: (Era((Channel(name, str.upper),)),) for each, (name, _) in _TYPES.items()},
        make=_mapper,
        live=_LIVE,
        subscriptions=first_of(
            subscriptions({"method": "public/subscribe"}, "params.channels", channel_first(".")),
            subscriptions({"method": "private/subscribe"}, "params.channels", channel_first(".")),
        ),
    ),
)
