"""Huobi: spot, and derivative markets (dm), whose funding and liquidations are notifications."""

import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.json import Decoder, decode

from tardis_machine.bounded import BoundedDefaultDict, BoundedDict
from tardis_machine.engine import PAIRS, Emitter
from tardis_machine.engine.shapes import (
    Absent,
    Amount,
    AnyId,
    AskAmount,
    AskPrice,
    Asks,
    BidAmount,
    BidPrice,
    Bids,
    Field,
    Is,
    Items,
    KernelShape,
    Milliseconds,
    NumberId,
    Object,
    Plain,
    Price,
    Rows,
    Symbol,
    TakerSide,
)
from tardis_machine.exchanges.base.book_joins import overwrite_levels
from tardis_machine.exchanges.base.channels import (
    AllHandlers,
    ChannelHandlers,
    Handler,
    KernelHandler,
    find,
    keyed,
    prefixed,
)
from tardis_machine.exchanges.base.dialect import (
    AnswerError,
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Poller,
    SnapshotRequest,
    Template,
    at,
    both,
    either,
    equals,
    generated,
    negated,
    pairs,
    present,
)
from tardis_machine.exchanges.base.errors import BookGapError
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext, date
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    JsonTime,
    number_if_nonzero,
    number_if_not_empty,
    number_or_error,
    side_or_unknown,
    text,
    ticker_time,
    time,
)
from tardis_machine.exchanges.base.fields import symbol as required_symbol
from tardis_machine.exchanges.base.option_names import Option, Options, expiration
from tardis_machine.exchanges.base.update_ids import UpdateIds
from tardis_machine.history.filters import Filter

Number = int | float
_MAX_FRAME: Final = 64 << 20
_NO_LEVELS: Final = Raw(b"[]")
_EMPTY: Final = (_NO_LEVELS, Raw(b"null"))


def _handlers_of(
    scope: str, maps: Mapping[str, Callable[[str, bytes], bool]], shape: KernelShape | None = None
) -> ChannelHandlers:
    """Return handlers of names such as market.btcusdt.mbp.150, called with symbol and line."""

    def handler_of(name: str) -> Handler | KernelHandler | None:
        its_scope, _, rest = name.partition(".")
        symbol, _, channel = rest.partition(".")
        for kind, make in maps.items():
            if its_scope == scope and channel.startswith(kind):
                handler = partial(make, symbol.upper())
                return handler if shape is None else KernelHandler(handler, shape)
        return None

    return handler_of


_SYMBOL: Final = Symbol(upper=True, after=".", until=".")
_MARKET: Final = b'{"ch":"'


def _dispatch(handlers: AllHandlers, emitter: Emitter | None = None) -> Handler:
    """Dispatch by the name in ch, in topic of notifications, or in rep of answers."""
    market = prefixed(_MARKET, "ch")(handlers, emitter)
    notified = keyed("topic")(handlers)
    answered = keyed("rep")(handlers)

    def handle(line: bytes) -> bool:
        if line.startswith(_MARKET):
            return market(line)
        head = line[:256]
        if b'"topic":"' in head:
            return notified(line)
        if b'"rep":"' in head:
            return answered(line)
        # The key may come after the data, or have blanks around it.
        if find(line, ("topic",)) is not None:
            return notified(line)
        return market(line) if find(line, ("rep",)) is None else answered(line)

    return handle


class _Trade(Struct, gc=False):
    price: JsonNumber = UNSET
    amount: JsonNumber = UNSET
    timestamp: JsonTime = field(name="ts", default=UNSET)
    id: str | int | float | UnsetType | None = UNSET
    trade_id: str | int | float | UnsetType | None = field(name="tradeId", default=UNSET)
    direction: str | None = None


class _TradesTick(Struct, gc=False):
    data: list[_Trade]


class _Trades(Struct, gc=False):
    tick: _TradesTick


def _trades(shape: KernelShape) -> Callable[[MapperContext], ChannelHandlers]:
    def make(context: MapperContext) -> ChannelHandlers:
        decode = Decoder(_Trades).decode
        emit = context.emitter.trade

        def trades(symbol: str, line: bytes) -> bool:
            for row in decode(line).tick.data:
                emit(
                    symbol,
                    text(row.id if row.trade_id is UNSET else row.trade_id),
                    number_or_error(row.price, "trade", "price"),
                    number_or_error(row.amount, "trade", "amount"),
                    side_or_unknown(row.direction, "buy", "sell"),
                    time(row.timestamp, "trade", "ts"),
                )
            return True

        return _handlers_of("market", {"trade.detail": trades}, shape)

    return make


def _trades_shape(ids: Mapping[str, Field]) -> KernelShape:
    row: dict[str, Field] = {
        **ids,
        "ts": Milliseconds(),
        "amount": Amount(),
        "price": Price(),
        "direction": TakerSide(buy="buy", sell="sell"),
    }
    return KernelShape(emits="trade", fields={"ch": _SYMBOL, "tick": Object({"data": Rows(row)})})


_TRADES: Final = _trades_shape({"id": Plain(), "tradeId": NumberId()})
_DM_TRADES: Final = _trades_shape({"id": AnyId(), "tradeId": Absent()})


class _Depth(Struct, gc=False):
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    event: str | UnsetType | None = UNSET


class _DepthMessage(Struct, gc=False):
    tick: _Depth
    timestamp: JsonTime = field(name="ts", default=UNSET)
    update: Any = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_DepthMessage).decode
    emit = context.emitter.book_change

    def depth(symbol: str, line: bytes) -> bool:
        message = decode(line)
        book = message.tick
        if book.bids in _EMPTY and book.asks in _EMPTY:
            return True
        is_snapshot = message.update is UNSET if book.event is UNSET else book.event == "snapshot"
        timestamp = time(message.timestamp, "depth", "ts")
        emit(symbol, is_snapshot, book.bids, book.asks, timestamp)
        return True

    return _handlers_of("market", {"depth.": depth}, _UPDATES)


_UPDATES: Final = KernelShape(
    emits="book_change",
    fields={
        "ch": _SYMBOL,
        "tick": Object({"asks": Asks(PAIRS), "bids": Bids(PAIRS), "event": Is(("update",))}),
        "ts": Milliseconds(),
    },
    filled=True,
)


class _Update(Struct, gc=False):
    last_id: int = field(name="seqNum")
    previous_id: int = field(name="prevSeqNum")
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS


class _UpdateMessage(Struct, gc=False):
    tick: _Update
    timestamp: JsonTime = field(name="ts", default=UNSET)


_Levels = list[list[str | Number | None]]


class _Snapshot(Struct, gc=False):
    last_id: int = field(name="seqNum")
    bids: _Levels
    asks: _Levels


class _SnapshotMessage(Struct, gc=False):
    data: _Snapshot | None = None
    timestamp: JsonTime = field(name="ts", default=UNSET)


class _RequestedBook:
    """One book whose snapshots are answers to requests, and the updates that may follow them."""

    __slots__ = ("kept", "snapshot_id")

    def __init__(self) -> None:
        self.snapshot_id: int | None = None
        self.kept: deque[_Update] = deque(maxlen=20)


def _requested_book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_UpdateMessage).decode
    decode_snapshot = Decoder(_SnapshotMessage).decode
    emit = context.emitter.book_change
    books = BoundedDefaultDict[str, _RequestedBook](lambda _: _RequestedBook())
    update_ids = UpdateIds("mbp", checks_ids=context.checks_ids)

    def update(symbol: str, line: bytes) -> bool:
        if not line.startswith(_MARKET) and find(line, ("rep",)) is not None:
            return snapshot(symbol, line)
        message = decode(line)
        tick = message.tick
        book = books[symbol]
        if book.snapshot_id is None:
            book.kept.append(tick)
            return True
        if context.checks_ids and tick.last_id <= book.snapshot_id:
            return True
        if not update_ids.follow(symbol, tick.previous_id, tick.last_id):
            return True
        if tick.bids not in _EMPTY or tick.asks not in _EMPTY:
            emit(symbol, False, tick.bids, tick.asks, time(message.timestamp, "mbp", "ts"))
        book.kept.append(tick)
        return True

    def snapshot(symbol: str, line: bytes) -> bool:
        message = decode_snapshot(line)
        content = message.data
        if content is None:
            return True
        book = books[symbol]
        newer = [each for each in book.kept if each.previous_id >= content.last_id]
        if newer and context.checks_ids and newer[0].previous_id != content.last_id:
            ids = f"{newer[0].previous_id} to {newer[0].last_id}"
            raise BookGapError("mbp", symbol, content.last_id, ids)
        emit(
            symbol,
            True,
            overwrite_levels(
                content.bids, [each.bids for each in newer if each.bids not in _EMPTY]
            ),
            overwrite_levels(
                content.asks, [each.asks for each in newer if each.asks not in _EMPTY]
            ),
            time(message.timestamp, "mbp", "ts"),
        )
        book.snapshot_id = content.last_id
        update_ids.start(symbol, newer[-1].last_id if newer else content.last_id)
        return True

    return _handlers_of("market", {"mbp": update})


class _Best(Struct, gc=False):
    bid: JsonNumber = UNSET
    bid_size: JsonNumber = field(name="bidSize", default=UNSET)
    ask: JsonNumber = UNSET
    ask_size: JsonNumber = field(name="askSize", default=UNSET)
    timestamp: JsonTime = field(name="quoteTime", default=UNSET)


class _BestMessage(Struct, gc=False):
    tick: _Best


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_BestMessage).decode
    emit = context.emitter.book_ticker

    def bbo(symbol: str, line: bytes) -> bool:
        row = decode(line).tick
        emit(
            symbol,
            number_if_nonzero(row.ask_size),
            number_if_nonzero(row.ask),
            number_if_nonzero(row.bid),
            number_if_nonzero(row.bid_size),
            time(row.timestamp, "bbo", "quoteTime"),
        )
        return True

    return _handlers_of("market", {"bbo": bbo}, _BEST)


_BEST: Final = KernelShape(
    emits="book_ticker",
    fields={
        "ch": _SYMBOL,
        "tick": Object(
            {
                "ask": AskPrice(nonzero=True),
                "askSize": AskAmount(nonzero=True),
                "bid": BidPrice(nonzero=True),
                "bidSize": BidAmount(nonzero=True),
                "quoteTime": Milliseconds(),
            }
        ),
    },
)


class _DmBest(Struct, gc=False):
    bid: list[str | Number | None] | None = None
    ask: list[str | Number | None] | None = None
    timestamp: JsonTime = field(name="ts", default=UNSET)


class _DmBestMessage(Struct, gc=False):
    tick: _DmBest


def _dm_book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_DmBestMessage).decode
    emit = context.emitter.book_ticker

    def bbo(symbol: str, line: bytes) -> bool:
        row = decode(line).tick
        bid, bid_amount, *_ = row.bid or (None, None)
        ask, ask_amount, *_ = row.ask or (None, None)
        emit(
            symbol,
            number_if_nonzero(ask_amount),
            number_if_nonzero(ask),
            number_if_nonzero(bid),
            number_if_nonzero(bid_amount),
            time(row.timestamp, "bbo", "ts"),
        )
        return True

    return _handlers_of("market", {"bbo": bbo}, _DM_BEST)


_DM_BEST: Final = KernelShape(
    emits="book_ticker",
    fields={
        "ch": _SYMBOL,
        "tick": Object(
            {
                "bid": Items((BidPrice(nonzero=True), BidAmount(nonzero=True))),
                "ask": Items((AskPrice(nonzero=True), AskAmount(nonzero=True))),
                "ts": Milliseconds(),
            }
        ),
    },
)


class _Basis(Struct, gc=False):
    index_price: JsonNumber = UNSET
    contract_price: JsonNumber = UNSET


class _BasisMessage(Struct, gc=False):
    tick: _Basis
    timestamp: JsonTime = field(name="ts", default=UNSET)


class _OpenInterest(Struct, gc=False):
    volume: JsonNumber = UNSET
    contract_code: str | None = None


class _OpenInterestMessage(Struct, gc=False):
    data: list[_OpenInterest]
    timestamp: JsonTime = field(name="ts", default=UNSET)


class _Funding(Struct, gc=False):
    symbol: str | None = field(name="contract_code", default=None)
    funding_rate: JsonNumber = UNSET
    estimated_rate: JsonNumber = UNSET
    settlement_time: JsonTime = UNSET


class _FundingMessage(Struct, gc=False):
    data: list[_Funding] = []
    op: str | None = None
    timestamp: JsonTime = field(name="ts", default=UNSET)


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    decode_basis = Decoder(_BasisMessage).decode
    decode_interest = Decoder(_OpenInterestMessage).decode
    decode_funding = Decoder(_FundingMessage).decode
    emit = context.emitter.derivative_ticker

    def basis(symbol: str, line: bytes) -> bool:
        message = decode_basis(line)
        emit(
            symbol,
            ticker_time(message.timestamp),
            last_price=number_or_error(message.tick.contract_price, "basis", "contract_price"),
            index_price=number_or_error(message.tick.index_price, "basis", "index_price"),
        )
        return True

    def open_interest(symbol: str, line: bytes) -> bool:
        message = decode_interest(line)
        row = message.data[0] if message.data else _OpenInterest()
        emit(
            symbol,
            ticker_time(message.timestamp),
            open_interest=number_or_error(row.volume, "open_interest", "volume"),
        )
        return True

    def funding(_: str, line: bytes) -> bool:
        message = decode_funding(line)
        if message.op != "notify":
            return False
        row = message.data[0] if message.data else _Funding()
        emit(
            required_symbol(row.symbol, "funding_rate"),
            ticker_time(message.timestamp),
            funding_rate=number_or_error(row.funding_rate, "funding_rate", "funding_rate"),
            funding_timestamp=time(row.settlement_time, "funding_rate", "settlement_time"),
            predicted_funding_rate=number_or_error(
                row.estimated_rate, "funding_rate", "estimated_rate"
            ),
        )
        return True

    market = _handlers_of("market", {"basis.": basis, "open_interest": open_interest})
    public = _handlers_of("public", {"funding_rate": funding})
    return lambda name: market(name) or public(name)


class _Liquidation(Struct, gc=False):
    contract_code: str
    direction: str | None = None
    price: JsonNumber = UNSET
    volume: JsonNumber = UNSET
    timestamp: JsonTime = field(name="created_at", default=UNSET)


class _Liquidations(Struct, gc=False):
    op: str | None = None
    data: list[_Liquidation] = []


class _Contract(Struct, gc=False):
    symbol: str
    contract_code: str
    contract_type: str | None = None


class _Contracts(Struct, gc=False):
    data: list[_Contract] = []


def _emit_liquidations(
    line: bytes, context: MapperContext, symbol_of: Callable[[str], str | None]
) -> bool:
    message = _decode_liquidations(line)
    if message.op != "notify":
        return False
    for row in message.data:
        symbol = symbol_of(row.contract_code)
        if symbol is not None:
            context.emitter.liquidation(
                symbol,
                None,
                number_or_error(row.price, "liquidation_orders", "price"),
                number_or_error(row.volume, "liquidation_orders", "volume"),
                side_or_unknown(row.direction, "buy", "sell"),
                time(row.timestamp, "liquidation_orders", "created_at"),
            )
    return True


_decode_liquidations: Final = Decoder(_Liquidations).decode


def _liquidations(context: MapperContext) -> ChannelHandlers:
    def liquidations(_: str, line: bytes) -> bool:
        return _emit_liquidations(line, context, str)

    return _handlers_of("public", {"liquidation_orders": liquidations})


_SUFFIXES: Final = {
    "this_week": "CW",
    "next_week": "NW",
    "quarter": "CQ",
    "next_quarter": "NQ",
}
_TYPES: Final = {suffix: contract_type for contract_type, suffix in _SUFFIXES.items()}


def _futures_liquidations(context: MapperContext) -> ChannelHandlers:
    """Map liquidations of contracts (BTC200703) to the aliases of contract_info (BTC_CW)."""
    decode = Decoder(_Contracts).decode
    symbols = BoundedDict[str, str]()

    def contracts(_: str, line: bytes) -> bool:
        for row in decode(line).data:
            suffix = _SUFFIXES.get(row.contract_type or "", "undefined")
            symbols[row.contract_code] = f"{row.symbol}_{suffix}"
        return False

    def liquidations(_: str, line: bytes) -> bool:
        return _emit_liquidations(line, context, symbols.get)

    return _handlers_of("public", {"liquidation_orders": liquidations, "contract_info": contracts})


class _Index(Struct, gc=False):
    symbol: str
    index_price: JsonNumber = UNSET


class _IndexMessage(Struct, gc=False):
    data: _Index


class _MarketIndex(Struct, gc=False):
    symbol: str = field(name="contract_code")
    option_right_type: str | None = None
    iv_ask_one: JsonNumber = UNSET
    iv_bid_one: JsonNumber = UNSET
    iv_mark_price: JsonNumber = UNSET
    delta: JsonNumber = UNSET
    gamma: JsonNumber = UNSET
    theta: JsonNumber = UNSET
    vega: JsonNumber = UNSET
    ask_one: JsonNumber = UNSET
    bid_one: JsonNumber = UNSET
    last_price: JsonNumber = UNSET
    mark_price: JsonNumber = UNSET


class _MarketIndexMessage(Struct, gc=False):
    data: _MarketIndex
    timestamp: JsonTime = field(name="ts", default=UNSET)


def _underlying(symbol: str) -> str:
    return "-".join(symbol.split("-")[:2])


def _option(name: str) -> Option:
    """Read a name such as BTC-USDT-210521-P-42000."""
    _, _, expiry, kind, strike, *_ = name.split("-")
    return Option(name, "put" if kind == "P" else "call", strike, expiration(expiry, "%y%m%d"))


def _positive(value: JsonNumber) -> str | Number | None:
    number = number_if_nonzero(value)
    return None if number is None or float(number) < 0 else number


def _option_summaries(context: MapperContext) -> ChannelHandlers:
    decode_interest = Decoder(_OpenInterestMessage).decode
    decode_index = Decoder(_IndexMessage).decode
    decode = Decoder(_MarketIndexMessage).decode
    emit = context.emitter.option_summary
    options = Options("option_market_index", _option)
    interests = BoundedDict[str | None, str | Number | None]()
    indexes = BoundedDict[str, str | Number | None]()

    def open_interest(_: str, line: bytes) -> bool:
        for row in decode_interest(line).data:
            interests[row.contract_code] = number_if_not_empty(row.volume)
        return True

    def option_index(_: str, line: bytes) -> bool:
        row = decode_index(line).data
        indexes[row.symbol] = number_if_not_empty(row.index_price)
        return True

    def market_index(_: str, line: bytes) -> bool:
        message = decode(line)
        row = message.data
        option = options[row.symbol]
        underlying = _underlying(row.symbol)
        option_type: Literal["put", "call"] = "put" if row.option_right_type == "P" else "call"
        emit(
            row.symbol,
            time(message.timestamp, "option_market_index", "ts"),
            option_type=option_type,
            strike_price=option.strike_price,
            expiration_date=option.expiration,
            best_bid_price=number_if_nonzero(row.bid_one),
            best_bid_iv=number_if_nonzero(row.iv_bid_one),
            best_ask_price=number_if_nonzero(row.ask_one),
            best_ask_iv=number_if_nonzero(row.iv_ask_one),
            last_price=number_if_nonzero(row.last_price),
            open_interest=interests.get(row.symbol),
            mark_price=_positive(row.mark_price),
            mark_iv=number_if_nonzero(row.iv_mark_price),
            delta=number_if_nonzero(row.delta),
            gamma=number_if_nonzero(row.gamma),
            vega=number_if_nonzero(row.vega),
            theta=number_if_nonzero(row.theta),
            underlying_price=indexes.get(underlying),
            underlying_index=underlying,
        )
        return True

    return _handlers_of(
        "market",
        {
            "open_interest": open_interest,
            "option_index": option_index,
            "option_market_index": market_index,
        },
    )


_NUMERIC_IDS: Final = re.compile(rb'"id":\s*(\d+)')


def _inflated(frame: bytes) -> bytes:
    """Decompress a frame, gzip or zlib."""
    if frame[:1] == b"{":
        return frame
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    message = inflater.decompress(frame, _MAX_FRAME)
    if inflater.unconsumed_tail:
        raise ValueError(f"a frame of more than {_MAX_FRAME} bytes")
    if not inflater.eof:
        raise ValueError("a frame that is cut short")
    return message


def _dm_message(frame: bytes) -> bytes:
    """Decompress a frame; trades' ids become texts, as history has them: they exceed 64 bits."""
    message = _inflated(frame)
    if message.find(b".trade.detail", 0, 256) < 0:
        return message
    return _NUMERIC_IDS.sub(rb'"id":"\1"', message)


_NOTIFIED: Final = frozenset(("funding_rate", "liquidation_orders", "contract_info"))
_DM_SUFFIXES: Final = {
    "trade": ".detail",
    "depth": ".size_150.high_freq",
    "basis": ".1min.close",
}
_SPOT_SUFFIXES: Final = {"trade": ".detail", "depth": ".step0", "mbp": ".400"}


def _subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, symbol in pairs(filters):
        yield {"id": "1", "sub": f"market.{symbol}.{channel}{_SPOT_SUFFIXES.get(channel, '')}"}


def _dm_subscribe(filters: Sequence[Filter], _: ConnectionContext) -> Iterator[Outgoing]:
    for channel, symbol in pairs(filters):
        if channel in _NOTIFIED:
            yield {"op": "sub", "cid": "1", "topic": f"public.{symbol}.{channel}"}
            continue
        topic = f"market.{symbol}.{channel}{_DM_SUFFIXES.get(channel, '')}"
        asked = {"id": "1", "sub": topic}
        yield asked | {"data_type": "incremental"} if channel == "depth" else asked


def _request_book(symbol: str) -> Outgoing:
    return {"id": "1", "req": f"market.{symbol}.mbp.400"}


def _reply(message: Any) -> Outgoing | None:
    number = at(message, "ping")
    if number is not None:
        return {"pong": number}
    if at(message, "op") == "ping":
        return {"op": "pong", "ts": at(message, "ts")}
    return None


_REFUSED: Final = ("invalid symbol", "invalid topic market.", "trade not open now")
"""Error texts for a symbol that does not exist, or is suspended."""


def _is_unknown_symbol(message: Any) -> bool:
    said = str(at(message, "err-msg")).lower()
    return any(each in said for each in _REFUSED)


def _subscriptions(message: Any) -> list[Filter] | None:
    """Read {"sub": "market.btcusdt.trade.detail"}."""
    topic = at(message, "sub")
    if not isinstance(topic, str):
        return None
    _, symbol, channel, *_ = topic.split(".")
    return [Filter(channel, (symbol,))]


def _first_entry(channel: str) -> Callable[[str, Sequence[bytes]], list[bytes]]:
    """Return a renderer of the first entry of an answer as a message of a channel."""

    def render(symbol: str, answers: Sequence[bytes]) -> list[bytes]:
        try:
            answer = decode(answers[0], type=_Answer)
        except ValueError:
            shown = answers[0][:200].decode(errors="replace")
            raise AnswerError(f"no data in the answer: {shown}") from None
        return [
            b'{"ch":"market.%b.%b","generated":true,"data":%b,"ts":%d}'
            % (symbol.encode(), channel.encode(), bytes(answer.data[0]), answer.ts)
        ]

    return render


class _Answer(Struct, gc=False):
    data: tuple[Raw]
    ts: int
    status: Literal["ok"]


def _open_interest(url: Template) -> Poller:
    return Poller(
        channel="open_interest",
        urls=(url,),
        render=generated(
            '{"ch":"market.{symbol}.open_interest","generated":true,"data":<answer.data>,'
            '"ts":<answer.ts>}',
            equals("status", "ok"),
        ),
        every_s=4,
    )


def _futures_url(symbol: str) -> str:
    coin, _, suffix = symbol.partition("_")
    return (
        "https://api.hbdm.com/api/v1/contract_open_interest"
        f"?symbol={coin}&contract_type={_TYPES.get(suffix, suffix)}"
    )


def _option_poller(channel: str, parameter: str) -> Poller:
    return Poller(
        channel=channel,
        urls=(f"https://api.hbdm.com/option-api/v1/{channel}?{parameter}={{symbol}}",),
        render=_first_entry(channel),
        every_s=4,
    )


_is_error: Final = either(
    equals("status", "error"),
    equals("op", "error", "close"),
    both(present("err-code"), negated(equals("err-code", 0))),
)
_is_ack: Final = either(
    both(equals("status", "ok"), present("subbed")),
    both(equals("op", "sub"), equals("err-code", 0)),
)
_is_heartbeat: Final = either(present("ping"), equals("op", "ping"))
_QUIET: Final = frozenset(("trade", "liquidation_orders", "contract_info", "funding_rate"))


def _dm(market: str, *pollers: Poller) -> Dialect:
    """Return the dialect of a derivative market, whose addresses begin with its name."""
    host = "wss://api.hbdm.com/"
    return Dialect(
        endpoints=(
            Endpoint(name="INDEX", url=f"{host}ws_index", channels=frozenset(("basis",))),
            Endpoint(name="NOTIFICATION", url=f"{host}{market}notification", channels=_NOTIFIED),
            Endpoint(name="MARKET", url=f"{host}{market}ws"),
        ),
        subscribe=_dm_subscribe,
        decode=_dm_message,
        data=(_MARKET,),
        reply=_reply,
        acks=_is_ack,
        heartbeats=_is_heartbeat,
        errors=_is_error,
        refusals=_is_unknown_symbol,
        pollers=pollers,
        quiet=_QUIET,
    )


def _spelled(symbol: str) -> str:
    """Spot symbols are lower case; those of futures, which were recorded with them, are not."""
    return symbol.upper() if "_" in symbol or "-" in symbol else symbol.lower()


def _coin(symbol: str) -> str:
    return symbol.partition("_")[0].upper()


def _era(
    make: Callable[[MapperContext], ChannelHandlers],
    *channels: str,
    spell: Callable[[str], str] = str.upper,
) -> tuple[Era]:
    return (Era(tuple(Channel(name, spell) for name in channels), make),)


_COMMON: Final = {
    "trade": _era(_trades(_DM_TRADES), "trade"),
    "book_change": _era(_book_changes, "depth"),
}
_SWAP_TYPES: Final = {
    **_COMMON,
    "derivative_ticker": _era(_derivative_tickers, "basis", "open_interest", "funding_rate"),
    "liquidation": _era(_liquidations, "liquidation_orders"),
    "book_ticker": _era(_dm_book_tickers, "bbo"),
}

EXCHANGES: Final = (
    Exchange(
        name="huobi",
        types={
            "trade": _era(_trades(_TRADES), "trade", spell=_spelled),
            "book_change": (
                Era((Channel("depth", _spelled),), _book_changes, until=date("2020-07-03")),
                Era((Channel("mbp", _spelled),), _requested_book_changes),
            ),
            "book_ticker": _era(_book_tickers, "bbo", spell=_spelled),
        },
        dispatch=_dispatch,
        live=Dialect(
            endpoints=(
                Endpoint(
                    name="FEED",
                    url="wss://api-aws.huobi.pro/feed",
                    channels=frozenset(("mbp",)),
                ),
                Endpoint(name="MARKET", url="wss://api-aws.huobi.pro/ws"),
            ),
            subscribe=_subscribe,
            decode=_inflated,
            data=(_MARKET,),
            reply=_reply,
            acks=_is_ack,
            heartbeats=_is_heartbeat,
            errors=_is_error,
            refusals=_is_unknown_symbol,
            snapshots=(SnapshotRequest(deltas="mbp", request=_request_book),),
            quiet=frozenset(("trade",)),
        ),
        subscriptions=_subscriptions,
    ),
    Exchange(
        name="huobi-dm",
        types={
            **_COMMON,
            "derivative_ticker": _era(_derivative_tickers, "basis", "open_interest"),
            "liquidation": _era(
                _futures_liquidations, "liquidation_orders", "contract_info", spell=_coin
            ),
            "book_ticker": _SWAP_TYPES["book_ticker"],
        },
        dispatch=_dispatch,
        live=_dm("", _open_interest(_futures_url)),
        subscriptions=_subscriptions,
    ),
    Exchange(
        name="huobi-dm-swap",
        types=_SWAP_TYPES,
        dispatch=_dispatch,
        live=_dm(
            "swap-",
            _open_interest(
                "https://api.hbdm.com/swap-api/v1/swap_open_interest?contract_code={symbol}"
            ),
        ),
        subscriptions=_subscriptions,
    ),
    Exchange(
        name="huobi-dm-linear-swap",
        types=_SWAP_TYPES,
        dispatch=_dispatch,
        live=_dm(
            "linear-swap-",
            _open_interest(
                "https://api.hbdm.com/linear-swap-api/v1/swap_open_interest?contract_code={symbol}"
            ),
        ),
        subscriptions=_subscriptions,
    ),
    Exchange(
        name="huobi-dm-options",
        types={
            **_COMMON,
            "option_summary": (
                Era(
                    (
                        Channel("open_interest"),
                        Channel("option_index", _underlying),
                        Channel("option_market_index"),
                    ),
                    _option_summaries,
                ),
            ),
        },
        dispatch=_dispatch,
        live=_dm(
            "option-",
            _open_interest(
                "https://api.hbdm.com/option-api/v1/option_open_interest?contract_code={symbol}"
            ),
            _option_poller("option_market_index", "contract_code"),
            _option_poller("option_index", "symbol"),
        ),
        subscriptions=_subscriptions,
        closed="its options market has closed",
    ),
)
