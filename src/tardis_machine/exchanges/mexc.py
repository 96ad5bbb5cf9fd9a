"""MEXC: spot streams, sent as Protobuf, and futures; books start with a REST snapshot."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDefaultDict, BoundedDict
from tardis_machine.engine import AMOUNTS_FIRST, Objects
from tardis_machine.exchanges.base.book_joins import JoinedBook, apply_numeric_updates
from tardis_machine.exchanges.base.channels import ChannelHandlers, Handler, keyed, named, prefixed
from tardis_machine.exchanges.base.dialect import (
    DAY_S,
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    SnapshotRequest,
    at,
    both,
    either,
    equals,
    generated,
    negated,
    pairs,
    present,
    reads_as_unknown_symbol,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_not_empty,
    number_or_error,
    side,
    time,
)
from tardis_machine.exchanges.base.subscriptions import subscriptions, symbol_last
from tardis_machine.history.filters import Filter

Number = int | float
_DEALS: Final = "spot@public.aggre.deals.v3.api.pb@10ms"
_DEPTH: Final = "spot@public.aggre.depth.v3.api.pb@10ms"
_DEPTH_SNAPSHOT: Final = "spot@public.aggre.depth.snapshot.v3.api.pb@10ms"
_BOOK_TICKER: Final = "spot@public.aggre.bookTicker.v3.api.pb@10ms"
_NO_LEVELS: Final = Raw(b"[]")
_LEVELS: Final = Objects("price", "quantity")


class _Deal(Struct, gc=False):
    price: JsonNumber = UNSET
    quantity: JsonNumber = UNSET
    time: JsonTime = UNSET
    type: Any = field(name="tradeType", default=None)
    id: str | None = field(name="tradeId", default=None)


class _Deals(Struct, gc=False):
    deals: list[_Deal]


class _DealsMessage(Struct, gc=False):
    symbol: str
    content: _Deals | None = field(name="publicAggreDeals", default=None)


def _streams(handlers: dict[str, Handler]) -> ChannelHandlers:
    """Return handlers by a stream's name without its symbol, which comes last."""
    return lambda stream: handlers.get(stream.rpartition("@")[0])


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_DealsMessage).decode
    emit = context.emitter.trade

    def deals(line: bytes) -> bool:
        message = decode(line)
        if message.content is None:  # a stream's first sign of life
            return False
        for row in message.content.deals:
            emit(
                message.symbol,
                row.id,
                number_or_error(row.price, "deals", "price"),
                number_or_error(row.quantity, "deals", "quantity"),
                side(row.type, 1),
                time(row.time, "deals", "time"),
            )
        return True

    return _streams({_DEALS: deals})


class _Depth(Struct, gc=False):
    first_id: int | None = field(name="fromVersion", default=None)
    last_id: int | None = field(name="toVersion", default=None)
    asks: Raw = _NO_LEVELS
    bids: Raw = _NO_LEVELS
    previous_id: None = None


class _DepthMessage(Struct, gc=False):
    symbol: str
    content: _Depth | None = field(name="publicAggreDepths", default=None)
    timestamp: JsonTime = field(name="sendTime", default=UNSET)


class _DepthSnapshot(Struct, gc=False):
    last_id: int | None = field(name="lastUpdateId", default=None)
    asks: list[list[str | Number | None]] | None = None
    bids: list[list[str | Number | None]] | None = None
    timestamp: JsonTime = UNSET


class _DepthSnapshotMessage(Struct, gc=False):
    symbol: str
    content: _DepthSnapshot | None = field(name="publicAggreDepthsSnapshot", default=None)


class _Level(Struct, gc=False):
    price: str | Number
    quantity: str | Number


_decode_levels: Final = Decoder(list[_Level]).decode
_decode_rows: Final = Decoder(list[list[str | int | float]]).decode


def _pairs(levels: Raw) -> list[tuple[str | Number, str | Number]]:
    return [(level.price, level.quantity) for level in _decode_levels(levels)]


class _SpotBook(JoinedBook[_Depth]):
    """A book whose versions increase by 1 with each update."""

    advances = True

    def previous_id(self, update: _Depth) -> int | None:
        return None if update.first_id is None else update.first_id - 1


def _book_changes(context: MapperContext) -> ChannelHandlers:
    # Versions are numbers in texts; times may be, too.
    decode = Decoder(_DepthMessage, strict=False).decode
    decode_snapshot = Decoder(_DepthSnapshotMessage, strict=False).decode
    emit = context.emitter.book_change
    books = BoundedDefaultDict[str, _SpotBook](lambda symbol: _SpotBook(symbol, _DEPTH, context))

    def depth(line: bytes) -> bool:
        message = decode(line)
        update = message.content
        if update is None:
            return False
        if books[message.symbol].accept(update):
            timestamp = time(message.timestamp, "depth", "sendTime")
            emit(message.symbol, False, update.bids, update.asks, timestamp, _LEVELS)
        return True

    def snapshot(line: bytes) -> bool:
        message = decode_snapshot(line)
        content = message.content
        if content is None:
            return False
        book = books[message.symbol]
        if book.has_snapshot or content.bids is None or content.asks is None:
            return True
        snapshot_id = content.last_id or 0
        newer = book.updates_after(snapshot_id)
        emit(
            message.symbol,
            True,
            apply_numeric_updates(content.bids, [_pairs(update.bids) for update in newer]),
            apply_numeric_updates(content.asks, [_pairs(update.asks) for update in newer]),
            time(content.timestamp, "depth.snapshot", "timestamp"),
        )
        book.start(snapshot_id, newer)
        return True

    return _streams({_DEPTH: depth, _DEPTH_SNAPSHOT: snapshot})


class _BookTicker(Struct, gc=False):
    bid_price: JsonNumber = field(name="bidPrice", default=UNSET)
    bid_amount: JsonNumber = field(name="bidQuantity", default=UNSET)
    ask_price: JsonNumber = field(name="askPrice", default=UNSET)
    ask_amount: JsonNumber = field(name="askQuantity", default=UNSET)


class _BookTickerMessage(Struct, gc=False):
    symbol: str
    content: _BookTicker | None = field(name="publicAggreBookTicker", default=None)
    timestamp: JsonTime = field(name="sendTime", default=UNSET)


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BookTickerMessage).decode
    emit = context.emitter.book_ticker
    context.emitter.order_book_ticker(AMOUNTS_FIRST)

    def book_ticker(line: bytes) -> bool:
        message = decode(line)
        row = message.content
        if row is None:
            return False
        emit(
            message.symbol,
            number_if_not_empty(row.ask_amount),
            number_if_not_empty(row.ask_price),
            number_if_not_empty(row.bid_price),
            number_if_not_empty(row.bid_amount),
            time(message.timestamp, "bookTicker", "sendTime"),
        )
        return True

    return _streams({_BOOK_TICKER: book_ticker})


class _FuturesDeal(Struct, gc=False):
    price: JsonNumber = field(name="p", default=UNSET)
    amount: JsonNumber = field(name="v", default=UNSET)
    timestamp: JsonTime = field(name="t", default=UNSET)
    side: Any = field(name="T", default=None)
    id: str | int | None = field(name="i", default=None)


class _FuturesDeals(Struct, gc=False):
    symbol: str
    data: list[_FuturesDeal]


def _futures_trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_FuturesDeals).decode
    emit = context.emitter.trade

    def deals(line: bytes) -> bool:
        message = decode(line)
        for row in message.data:
            emit(
                message.symbol,
                row.id,
                number_or_error(row.price, "push.deal", "p"),
                number_or_error(row.amount, "push.deal", "v"),
                side(row.side, 1),
                time(row.timestamp, "push.deal", "t"),
            )
        return True

    return named({"push.deal": deals})


class _FuturesDepth(Struct, gc=False):
    version: int | None = None
    begin: int | None = None
    end: int | None = None
    asks: Raw = _NO_LEVELS
    bids: Raw = _NO_LEVELS
    previous_id: None = None

    @property
    def first_id(self) -> int | None:
        return self.begin or self.version

    @property
    def last_id(self) -> int | None:
        return self.end or self.version


class _FuturesDepthMessage(Struct, gc=False):
    symbol: str
    data: _FuturesDepth
    timestamp: JsonTime = field(name="ts", default=UNSET)


class _FuturesSnapshot(Struct, gc=False):
    version: int | None = None
    asks: list[list[str | Number | None]] | None = None
    bids: list[list[str | Number | None]] | None = None
    timestamp: JsonTime = UNSET


class _FuturesSnapshotMessage(Struct, gc=False):
    symbol: str
    data: _FuturesSnapshot


class _FuturesBook(JoinedBook[_FuturesDepth]):
    """A book whose versions increase by 1 with each update."""

    advances = True

    def previous_id(self, update: _FuturesDepth) -> int | None:
        return None if update.first_id is None else update.first_id - 1


def _futures_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_FuturesDepthMessage).decode
    decode_snapshot = Decoder(_FuturesSnapshotMessage).decode
    emit = context.emitter.book_change
    books = BoundedDefaultDict[str, _FuturesBook](
        lambda symbol: _FuturesBook(symbol, "push.depth", context)
    )

    def depth(line: bytes) -> bool:
        message = decode(line)
        update = message.data
        if books[message.symbol].accept(update):
            timestamp = time(message.timestamp, "push.depth", "ts")
            emit(message.symbol, False, update.bids, update.asks, timestamp)
        return True

    def snapshot(line: bytes) -> bool:
        message = decode_snapshot(line)
        book = books[message.symbol]
        content = message.data
        if book.has_snapshot or content.bids is None or content.asks is None:
            return True
        snapshot_id = content.version or 0
        newer = book.updates_after(snapshot_id)
        emit(
            message.symbol,
            True,
            apply_numeric_updates(content.bids, [_decode_rows(update.bids) for update in newer]),
            apply_numeric_updates(content.asks, [_decode_rows(update.asks) for update in newer]),
            time(content.timestamp, "push.depth.snapshot", "timestamp"),
        )
        book.start(snapshot_id, newer)
        return True

    return named({"push.depth": depth, "push.depth.snapshot": snapshot})


class _Ticker(Struct, gc=False):
    symbol: str
    last_price: JsonNumber = field(name="lastPrice", default=UNSET)
    open_interest: JsonNumber = field(name="holdVol", default=UNSET)
    index_price: JsonNumber = field(name="indexPrice", default=UNSET)
    mark_price: JsonNumber = field(name="fairPrice", default=UNSET)
    timestamp: JsonTime = UNSET


class _TickerMessage(Struct, gc=False):
    data: _Ticker


class _Funding(Struct, gc=False):
    symbol: str
    rate: JsonNumber = UNSET
    settles_at: JsonTime = field(name="nextSettleTime", default=UNSET)


class _FundingMessage(Struct, gc=False):
    data: _Funding


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_TickerMessage).decode
    decode_funding = Decoder(_FundingMessage).decode
    emit = context.emitter.derivative_ticker
    fundings = BoundedDict[str, tuple[str | Number | None, int]]()

    def funding(line: bytes) -> bool:
        row = decode_funding(line).data
        settles_at = time(row.settles_at, "push.funding.rate", "nextSettleTime")
        fundings[row.symbol] = number_if_not_empty(row.rate), settles_at
        return True

    def ticker(line: bytes) -> bool:
        row = decode(line).data
        rate, settles_at = fundings.get(row.symbol, (None, None))
        emit(
            row.symbol,
            time(row.timestamp, "push.ticker", "timestamp"),
            last_price=number_if_not_empty(row.last_price),
            open_interest=number_if_not_empty(row.open_interest),
            funding_rate=rate,
            funding_timestamp=settles_at,
            index_price=number_if_not_empty(row.index_price),
            mark_price=number_if_not_empty(row.mark_price),
        )
        return True

    return named({"push.ticker": ticker, "push.funding.rate": funding})


_INT64, _INT32, _TEXT = 3, 5, 9
_WIRE: Final[dict[str, tuple[tuple[int, str, int | str, bool], ...]]] = {
    "Level": ((1, "price", _TEXT, False), (2, "quantity", _TEXT, False)),
    "Depths": (
        (1, "asks", "Level", True),
        (2, "bids", "Level", True),
        (3, "eventType", _TEXT, False),
        (4, "fromVersion", _TEXT, False),
        (5, "toVersion", _TEXT, False),
        (6, "lastOrderCreateTime", _INT64, False),
    ),
    "Deal": (
        (1, "price", _TEXT, False),
        (2, "quantity", _TEXT, False),
        (3, "tradeType", _INT32, False),
        (4, "time", _INT64, False),
        (5, "tradeId", _TEXT, False),
    ),
    "Deals": ((1, "deals", "Deal", True), (2, "eventType", _TEXT, False)),
    "BookTicker": (
        (1, "bidPrice", _TEXT, False),
        (2, "bidQuantity", _TEXT, False),
        (3, "askPrice", _TEXT, False),
        (4, "askQuantity", _TEXT, False),
        (5, "version", _TEXT, False),
        (6, "lastOrderCreateTime", _INT64, False),
    ),
    "Push": (
        (1, "channel", _TEXT, False),
        (3, "symbol", _TEXT, False),
        (4, "symbolId", _TEXT, False),
        (5, "createTime", _INT64, False),
        (6, "sendTime", _INT64, False),
        (313, "publicAggreDepths", "Depths", False),
        (314, "publicAggreDeals", "Deals", False),
        (315, "publicAggreBookTicker", "BookTicker", False),
    ),
}
"""The messages on the wire: number, name, type and whether it is repeated, for each field."""


@cache
def _wire_decoder() -> Callable[[bytes], dict[str, Any]]:
    """Return the frame parser, built at the first frame: importing Protobuf is slow."""
    from google.protobuf import (  # noqa: PLC0415
        descriptor_pb2,
        descriptor_pool,
        json_format,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(name="mexc.proto", package="mexc", syntax="proto2")
    for name, described in _WIRE.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind, repeated in described:
            label = 3 if repeated else 1
            added = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                added.type = 11  # type: ignore[assignment]
                added.type_name = f".mexc.{kind}"
            else:
                added.type = kind  # type: ignore[assignment]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    push = message_factory.GetMessageClass(pool.FindMessageTypeByName("mexc.Push"))
    return lambda frame: json_format.MessageToDict(
        push.FromString(frame),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _decode_frame(frame: bytes) -> bytes:
    """Write a Protobuf frame as the JSON that history has: 64-bit integers are texts there."""
    if frame[:1] == b"{":
        return frame
    return msgspec.json.encode(_wire_decoder()(frame))


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    streams = [f"{channel}@{symbol}" for channel, symbol in pairs(filters)]
    yield {"method": "SUBSCRIPTION", "params": streams}


_FUTURES_ORDER: Final = (
    *("push.deal", "push.depth", "push.ticker", "push.index.price", "push.fair.price"),
    "push.funding.rate",
)


def _futures_subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, symbol in sorted(pairs(filters), key=lambda pair: _FUTURES_ORDER.index(pair[0])):
        method = channel.replace("push.", "sub.", 1)
        yield {"method": method, "param": {"symbol": symbol}, "gzip": False}


def _futures_subscriptions(message: Any) -> list[Filter] | None:
    """Read {"method": "sub.deal", "param": {"symbol": …}}."""
    method = at(message, "method")
    if not isinstance(method, str) or not method.startswith("sub."):
        return None
    symbol = at(message, "param.symbol")
    return [Filter(method.replace("sub.", "push.", 1), () if symbol is None else (symbol,))]


def _is_futures_ack(message: Any) -> bool:
    channel = at(message, "channel")
    return isinstance(channel, str) and channel.startswith("rs.sub.")


def _upper(make: Callable[[MapperContext], ChannelHandlers], *channels: str) -> tuple[Era]:
    return (Era(tuple(Channel(name, str.upper) for name in channels), make),)


def _is_blocked(message: Any) -> bool:
    """Return whether a message refuses single streams, which it does with a code of success."""
    said = at(message, "msg")
    return isinstance(said, str) and "Not Subscribed successfully" in said


_DEPTH_ANSWER: Final = (
    '{"lastUpdateId":<answer.lastUpdateId>,"asks":<answer.asks>,"bids":<answer.bids>,'
    '"timestamp":<answer.timestamp>}'
)

EXCHANGES: Final = (
    Exchange(
        name="mexc",
        types={
            "trade": _upper(_trades, _DEALS),
            "book_change": _upper(_book_changes, _DEPTH, _DEPTH_SNAPSHOT),
            "book_ticker": _upper(_book_tickers, _BOOK_TICKER),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://wbs-api.mexc.com/ws"),),
            subscribe=_subscribe,
            decode=_decode_frame,
            data=(b'{"channel":"spot@',),
            acks=both(equals("code", 0), negated(either(equals("msg", "PONG"), _is_blocked))),
            heartbeats=equals("msg", "PONG"),
            errors=either(_is_blocked, both(present("code"), negated(equals("code", 0)))),
            refusals=either(_is_blocked, reads_as_unknown_symbol),
            ping=lambda _: {"method": "PING"},
            snapshots=(
                SnapshotRequest(
                    channel=_DEPTH_SNAPSHOT,
                    deltas=_DEPTH,
                    url="https://api.mexc.com/api/v3/depth?symbol={SYMBOL}&limit=5000",
                    render=generated(
                        '{"channel":"' + _DEPTH_SNAPSHOT + '@{SYMBOL}","symbol":"{SYMBOL}",'
                        '"generated":true,"publicAggreDepthsSnapshot":' + _DEPTH_ANSWER + "}"
                    ),
                ),
            ),
            quiet=frozenset((_DEALS, _BOOK_TICKER)),
            max_streams=30,
            life_s=DAY_S,
        ),
        subscriptions=subscriptions({"method": "SUBSCRIPTION"}, "params", symbol_last("@")),
    ),
    Exchange(
        name="mexc-futures",
        types={
            "trade": _upper(_futures_trades, "push.deal"),
            "book_change": _upper(_futures_book_changes, "push.depth", "push.depth.snapshot"),
            "derivative_ticker": _upper(_derivative_tickers, "push.ticker", "push.funding.rate"),
        },
        dispatch=keyed("channel"),
        live=Dialect(
            endpoints=(Endpoint(url="wss://contract.mexc.com/edge"),),
            subscribe=_futures_subscribe,
            acks=_is_futures_ack,
            heartbeats=equals("channel", "pong"),
            errors=either(
                equals("channel", "rs.error"), equals("success", False), present("error")
            ),
            ping=lambda _: {"method": "ping"},
            snapshots=(
                SnapshotRequest(
                    channel="push.depth.snapshot",
                    deltas="push.depth",
                    url="https://contract.mexc.com/api/v1/contract/depth/{SYMBOL}?limit=5000",
                    render=generated(
                        '{"channel":"push.depth.snapshot","symbol":"{SYMBOL}","generated":true,'
                        '"data":<answer.data>}',
                        both(equals("success", True), equals("code", 0)),
                    ),
                ),
            ),
            quiet=frozenset(("push.deal",)),
        ),
        subscriptions=_futures_subscriptions,
    ),
)
