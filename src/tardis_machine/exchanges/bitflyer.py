"""bitFlyer: notifications over JSON-RPC; book snapshots have a channel of their own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedSet
from tardis_machine.engine import Objects
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler, prefixed
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    at,
    equals,
    negated,
    pairs,
)
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_not_empty,
    number_or_error,
    side_or_unknown,
    time_text,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import parse_us

_EXECUTIONS: Final = "lightning_executions"
_SNAPSHOT: Final = "lightning_board_snapshot"
_BOARD: Final = "lightning_board"
_TICKER: Final = "lightning_ticker"
# _SNAPSHOT begins with _BOARD, so it comes first.
_CHANNELS: Final = (_EXECUTIONS, _SNAPSHOT, _BOARD, _TICKER)
_PREFIX: Final = b'{"jsonrpc":"2.0","method":"channelMessage","params":{"channel":"'
_LEVELS: Final = Objects("price", "size")


def _split_name(name: str) -> tuple[str, str]:
    """Split a channel's full name into channel and product: lightning_board_BTC_JPY."""
    for channel in _CHANNELS:
        if name.startswith(f"{channel}_"):
            return channel, name[len(channel) + 1 :]
    return name, ""


def _channels(makers: dict[str, Callable[[str], Handler]]) -> ChannelHandlers:
    """Return handlers by channel, one for each product."""

    def handler_of(name: str) -> Handler | None:
        channel, product = _split_name(name)
        make = makers.get(channel)
        return None if make is None or not product else make(product)

    return handler_of


class _Execution(Struct, gc=False):
    id: int | str | None = None
    side: str | None = None
    price: JsonNumber = UNSET
    size: JsonNumber = UNSET
    exec_date: str | None = None


class _ExecutionsParams(Struct, gc=False):
    message: list[_Execution]


class _Executions(Struct, gc=False):
    params: _ExecutionsParams


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Executions).decode
    emit = context.emitter.trade

    def make(product: str) -> Handler:
        def executions(line: bytes) -> bool:
            for row in decode(line).params.message:
                emit(
                    product,
                    row.id,
                    number_or_error(row.price, _EXECUTIONS, "price"),
                    number_or_error(row.size, _EXECUTIONS, "size"),
                    side_or_unknown(row.side, "BUY", "SELL"),
                    parse_us(time_text(row.exec_date, _EXECUTIONS, "exec_date")),
                )
            return True

        return executions

    return _channels({_EXECUTIONS: make})


class _Board(Struct, gc=False):
    bids: Raw
    asks: Raw


class _BoardParams(Struct, gc=False):
    message: _Board


class _BoardMessage(Struct, gc=False):
    params: _BoardParams


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BoardMessage).decode
    emit = context.emitter.book_change
    known = BoundedSet[str]()

    def snapshot(product: str) -> Handler:
        def board(line: bytes) -> bool:
            book = decode(line).params.message
            emit(product, True, book.bids, book.asks, None, _LEVELS)
            known.add(product)
            return True

        return board

    def update(product: str) -> Handler:
        def board(line: bytes) -> bool:
            book = decode(line).params.message
            if product in known:
                emit(product, False, book.bids, book.asks, None, _LEVELS)
            return True

        return board

    return _channels({_SNAPSHOT: snapshot, _BOARD: update})


class _Ticker(Struct, gc=False):
    product_code: str | None = None
    timestamp: str | None = None
    best_bid: JsonNumber = UNSET
    best_ask: JsonNumber = UNSET
    best_bid_size: JsonNumber = UNSET
    best_ask_size: JsonNumber = UNSET


class _TickerParams(Struct, gc=False):
    message: _Ticker


class _TickerMessage(Struct, gc=False):
    params: _TickerParams


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    emit = context.emitter.book_ticker

    def make(product: str) -> Handler:
        def ticker(line: bytes) -> bool:
            row = decode(line).params.message
            emit(
                row.product_code or product,
                number_if_not_empty(row.best_ask_size),
                number_if_not_empty(row.best_ask),
                number_if_not_empty(row.best_bid),
                number_if_not_empty(row.best_bid_size),
                parse_us(time_text(row.timestamp, _TICKER, "timestamp")),
            )
            return True

        return ticker

    return _channels({_TICKER: make})


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    wanted = sorted(pairs(filters), key=lambda each: each[0] == _BOARD)
    for channel, product in wanted:  # snapshots are subscribed to before updates
        yield {"method": "subscribe", "params": {"channel": f"{channel}_{product}"}}


def _reply(message: Any) -> Outgoing | None:
    """Return the unsubscribe message that answers a snapshot, since the exchange repeats them."""
    name = at(message, "params.channel")
    if not isinstance(name, str) or not name.startswith(f"{_SNAPSHOT}_"):
        return None
    return {"method": "unsubscribe", "params": {"channel": name}}


def _asked(params: Any) -> Iterable[Filter]:
    channel, product = _split_name(params["channel"])
    return (Filter(channel, (product,) if product else ()),)


EXCHANGES: Final = (
    Exchange(
        name="bitflyer",
        types={
            "trade": one_era(_trades, _EXECUTIONS),
            "book_change": one_era(_book_changes, _SNAPSHOT, _BOARD),
            "book_ticker": one_era(_book_tickers, _TICKER),
        },
        dispatch=prefixed(_PREFIX, "params", "channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws.lightstream.bitflyer.com/json-rpc"),),
            subscribe=_subscribe,
            data=tuple(_PREFIX + each.encode() for each in (_EXECUTIONS, _TICKER)),
            reply=_reply,
            errors=negated(equals("method", "channelMessage")),
            quiet=frozenset((_EXECUTIONS, _SNAPSHOT)),
        ),
        subscriptions=subscriptions({"method": "subscribe"}, "params", _asked),
    ),
)
