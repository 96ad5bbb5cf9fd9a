"""Bronze envelopes back to normalized messages."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, get_args

import msgspec
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.timestamp_pb2 import Timestamp

from tardis_machine import messages
from tardis_machine.bronze.context import REQUEST_META, Context, Origin
from tardis_machine.bronze.errors import DecodeError
from tardis_machine.bronze.times import YEAR_10000, time_of
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import Message, Side, Time


class Envelope(msgspec.Struct, kw_only=True):
    """What an envelope says besides the message."""

    context: Context
    event_id: str
    position: int | None
    payload_case: str


class Decoded(NamedTuple):
    """A message and the envelope it came in."""

    message: Message
    envelope: Envelope


def decode(value: bytes) -> Decoded:
    """Decode one envelope; DecodeError for bytes that are none, or that lack part of a message."""
    event = pb.NormalizedEvent()
    try:
        event.ParseFromString(value)
    except (ProtobufError, TypeError) as error:
        raise DecodeError(str(error)) from error
    field = event.WhichOneof("payload")
    if field is None:
        raise DecodeError("it carries no payload that this version knows")
    case, read = _READERS[field]
    try:
        message = read(event, getattr(event, field))
        context = _context(event)
    except _FieldError as error:
        raise DecodeError(error.reason, field=error.field, case=case) from None
    position = event.position if event.HasField("position") else None
    return Decoded(
        message,
        Envelope(context=context, event_id=event.event_id, position=position, payload_case=case),
    )


def _context(event: pb.NormalizedEvent) -> Context:
    meta = dict(event.meta)
    named = {key: meta.pop(key, "") for key in REQUEST_META}
    try:
        origin = Origin(event.origin)
    except ValueError:
        origin = Origin.UNSPECIFIED
    return Context(
        source=event.source,
        producer_id=event.producer_id,
        origin=origin,
        ingest_us=_time(event, "ingest_ts", 0) if event.HasField("ingest_ts") else None,
        meta=meta,
        **named,
    )


class _FieldError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(field, reason)


_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_CACHED: Final = 16_384
_LARGEST: Final = 1.7976931348623157e308


class _Numbers(dict[str, float]):
    """The numbers of texts seen lately."""

    def __missing__(self, text: str) -> float:
        if not _DECIMAL.fullmatch(text):
            raise ValueError(
                f"{text[:40]!r} is not plain decimal notation" if text else "it is missing"
            )
        number = float(text)
        if not -_LARGEST <= number <= _LARGEST:
            raise ValueError("it is too large for a double")
        if len(self) >= _CACHED:
            self.clear()
        self[text] = number
        return number


_NUMBERS: Final = _Numbers()


def _number(text: str, field: str) -> float:
    try:
        return _NUMBERS[text]
    except ValueError as error:
        raise _FieldError(field, str(error)) from None


def _optional(payload: ProtobufMessage, field: str) -> float | None:
    return _number(getattr(payload, field), field) if payload.HasField(field) else None


def _time(message: ProtobufMessage, field: str, precision: int) -> Time:
    if not message.HasField(field):
        raise _FieldError(field, "it is missing")
    timestamp: Timestamp = getattr(message, field)
    if not (0 <= timestamp.seconds < YEAR_10000 and 0 <= timestamp.nanos < 1_000_000_000):
        raise _FieldError(field, "it is not a time from 1970 to 9999")
    return time_of(timestamp, precision)


def _times(event: pb.NormalizedEvent, payload: Any) -> dict[str, Time]:
    return {
        "timestamp": _time(payload, "event_ts", payload.event_ts_precision),
        "local_timestamp": _local(event),
    }


def _local(event: pb.NormalizedEvent) -> Time:
    return _time(event, "local_ts", event.local_ts_precision)


_SIDES: Final[dict[int, Side]] = {
    pb.SIDE_UNSPECIFIED: "unknown",
    pb.SIDE_BUY: "buy",
    pb.SIDE_SELL: "sell",
}
_OPTION_TYPES: Final = {pb.OPTION_TYPE_PUT: "put", pb.OPTION_TYPE_CALL: "call"}
_BAR_KINDS: Final = {
    pb.BAR_KIND_TIME: "time",
    pb.BAR_KIND_TICK: "tick",
    pb.BAR_KIND_VOLUME: "volume",
}


def _one_of(names: dict[Any, Any], payload: ProtobufMessage, field: str) -> Any:
    number = getattr(payload, field)
    if number not in names:
        raise _FieldError(field, f"{number} is not among the known {sorted(names)}")
    return names[number]


def _id(payload: ProtobufMessage, field: str, *, is_number: bool) -> str | float | None:
    if not payload.HasField(field):
        return None
    text: str = getattr(payload, field)
    return _number(text, field) if is_number else text


def _trade(event: pb.NormalizedEvent, payload: pb.Trade) -> Message:
    return messages.Trade(
        symbol=event.symbol,
        exchange=event.exchange,
        id=_id(payload, "trade_id", is_number=payload.trade_id_is_number),
        price=_number(payload.price_str, "price_str"),
        amount=_number(payload.qty_str, "qty_str"),
        side=_one_of(_SIDES, payload, "side"),
        **_times(event, payload),
    )


def _liquidation(event: pb.NormalizedEvent, payload: pb.Liquidation) -> Message:
    return messages.Liquidation(
        symbol=event.symbol,
        exchange=event.exchange,
        id=_id(payload, "order_id", is_number=payload.order_id_is_number),
        price=_number(payload.price_str, "price_str"),
        amount=_number(payload.qty_str, "qty_str"),
        side=_one_of(_SIDES, payload, "side"),
        **_times(event, payload),
    )


def _book_change(event: pb.NormalizedEvent, payload: pb.BookChange) -> Message:
    bids, asks = _change_levels(payload.bids), _change_levels(payload.asks)
    if payload.price_str:
        level = _single_level(payload)
        (bids if _one_of(_SIDES, payload, "side") == "buy" else asks).append(level)
    return messages.BookChange(
        symbol=event.symbol,
        exchange=event.exchange,
        is_snapshot=payload.is_snapshot,
        bids=bids,
        asks=asks,
        **_times(event, payload),
    )


def _single_level(payload: pb.BookChange) -> messages.BookLevel:
    """Read the one level of a producer that publishes an event for each."""
    deleted = payload.action == pb.ACTION_DELETE
    return messages.BookLevel(
        price=_number(payload.price_str, "price_str"),
        amount=0.0 if deleted else _number(payload.qty_str, "qty_str"),
    )


def _change_levels(levels: Iterable[pb.Level]) -> list[messages.BookLevel]:
    return [
        messages.BookLevel(
            price=_number(level.price_str, "price_str"), amount=_number(level.qty_str, "qty_str")
        )
        for level in levels
    ]


def _snapshot_levels(levels: Iterable[pb.Level]) -> list[messages.BookSnapshotLevel]:
    return [
        messages.BookSnapshotLevel(
            price=_optional(level, "price_str"), amount=_optional(level, "qty_str")
        )
        for level in levels
    ]


def _book_snapshot(event: pb.NormalizedEvent, payload: pb.BookSnapshot) -> Message:
    name, interval = payload.name, payload.interval_str
    if not interval:  # of a producer of the public schema, which has no name either
        interval = str(payload.interval_ms)
        name = f"book_snapshot_{payload.depth}_{interval}ms"
    return messages.BookSnapshot(
        symbol=event.symbol,
        exchange=event.exchange,
        name=name,
        depth=payload.depth,
        interval=_number(interval, "interval_str"),
        bids=_snapshot_levels(payload.bids),
        asks=_snapshot_levels(payload.asks),
        **_times(event, payload),
    )


def _grouped_book_snapshot(event: pb.NormalizedEvent, payload: pb.GroupedBookSnapshot) -> Message:
    name, interval, grouping = payload.name, payload.interval_str, payload.grouping_str
    if not interval:  # of a producer of the public schema, which has no name either
        interval, grouping = str(payload.interval_ms), str(payload.grouping)
        name = f"book_snapshot_{payload.depth}_grouped{grouping}_{interval}ms"
    return messages.BookSnapshot(
        symbol=event.symbol,
        exchange=event.exchange,
        name=name,
        depth=payload.depth,
        interval=_number(interval, "interval_str"),
        grouping=_number(grouping, "grouping_str"),
        bids=_snapshot_levels(payload.bids),
        asks=_snapshot_levels(payload.asks),
        **_times(event, payload),
    )


def _quote(event: pb.NormalizedEvent, payload: pb.Quote) -> Message:
    if payload.has_levels:
        bids, asks = _snapshot_levels(payload.bids), _snapshot_levels(payload.asks)
    else:
        bid = messages.BookSnapshotLevel(
            price=_optional(payload, "bid_price_str"), amount=_optional(payload, "bid_qty_str")
        )
        ask = messages.BookSnapshotLevel(
            price=_optional(payload, "ask_price_str"), amount=_optional(payload, "ask_qty_str")
        )
        bids, asks = [bid], [ask]
    # a producer of the public schema knows neither name, depth nor interval
    public = not payload.interval_str
    return messages.BookSnapshot(
        symbol=event.symbol,
        exchange=event.exchange,
        name="quote" if public else payload.name,
        depth=1 if public else payload.depth,
        interval=0.0 if public else _number(payload.interval_str, "interval_str"),
        grouping=_optional(payload, "grouping_str"),
        bids=bids,
        asks=asks,
        **_times(event, payload),
    )


def _derivative_ticker(event: pb.NormalizedEvent, payload: pb.DerivativeTicker) -> Message:
    funding = None
    if payload.HasField("funding_ts"):
        funding = _time(payload, "funding_ts", payload.funding_ts_precision)
    return messages.DerivativeTicker(
        symbol=event.symbol,
        exchange=event.exchange,
        last_price=_optional(payload, "last_price_str"),
        open_interest=_optional(payload, "open_interest_str"),
        funding_rate=_optional(payload, "funding_rate_str"),
        funding_timestamp=funding,
        predicted_funding_rate=_optional(payload, "predicted_funding_rate_str"),
        index_price=_optional(payload, "index_price_str"),
        mark_price=_optional(payload, "mark_price_str"),
        **_times(event, payload),
    )


def _book_ticker(event: pb.NormalizedEvent, payload: pb.BookTicker) -> Message:
    """Read a book ticker; printed, its keys have the order that most exchanges use."""
    return messages.BookTicker(
        symbol=event.symbol,
        exchange=event.exchange,
        ask_amount=_optional(payload, "best_ask_qty_str"),
        ask_price=_optional(payload, "best_ask_price_str"),
        bid_price=_optional(payload, "best_bid_price_str"),
        bid_amount=_optional(payload, "best_bid_qty_str"),
        **_times(event, payload),
    )


def _option_summary(event: pb.NormalizedEvent, payload: pb.OptionSummary) -> Message:
    index = payload.underlying_index if payload.HasField("underlying_index") else None
    return messages.OptionSummary(
        symbol=event.symbol,
        exchange=event.exchange,
        option_type=_one_of(_OPTION_TYPES, payload, "option_type"),
        strike_price=_number(payload.strike_price_str, "strike_price_str"),
        expiration_date=_time(payload, "expiration_ts", payload.expiration_ts_precision),
        best_bid_price=_optional(payload, "best_bid_price_str"),
        best_bid_amount=_optional(payload, "best_bid_qty_str"),
        best_bid_iv=_optional(payload, "best_bid_iv_str"),
        best_ask_price=_optional(payload, "best_ask_price_str"),
        best_ask_amount=_optional(payload, "best_ask_qty_str"),
        best_ask_iv=_optional(payload, "best_ask_iv_str"),
        last_price=_optional(payload, "last_price_str"),
        open_interest=_optional(payload, "oi_str"),
        mark_price=_optional(payload, "mark_price_str"),
        mark_iv=_optional(payload, "iv_str"),
        delta=_optional(payload, "delta_str"),
        gamma=_optional(payload, "gamma_str"),
        vega=_optional(payload, "vega_str"),
        theta=_optional(payload, "theta_str"),
        rho=_optional(payload, "rho_str"),
        underlying_price=_optional(payload, "underlying_price_str"),
        underlying_index=index,
        **_times(event, payload),
    )


def _trade_bar(event: pb.NormalizedEvent, payload: pb.TradeBar) -> Message:
    return messages.TradeBar(
        symbol=event.symbol,
        exchange=event.exchange,
        name=payload.name,
        interval=_number(payload.interval_str, "interval_str"),
        kind=_one_of(_BAR_KINDS, payload, "kind"),
        open=_number(payload.open_str, "open_str"),
        high=_number(payload.high_str, "high_str"),
        low=_number(payload.low_str, "low_str"),
        close=_number(payload.close_str, "close_str"),
        volume=_number(payload.volume_str, "volume_str"),
        buy_volume=_number(payload.buy_volume_str, "buy_volume_str"),
        sell_volume=_number(payload.sell_volume_str, "sell_volume_str"),
        trades=payload.trade_count,
        vwap=_number(payload.vwap_str, "vwap_str") if payload.vwap_str else None,
        open_timestamp=_time(payload, "event_ts", payload.event_ts_precision),
        close_timestamp=_time(payload, "end_ts", payload.end_ts_precision),
        local_timestamp=_local(event),
        timestamp=_time(payload, "bar_ts", payload.bar_ts_precision),
    )


def _error(event: pb.NormalizedEvent, payload: pb.ControlError) -> Message:
    return messages.ErrorMessage(
        exchange=event.exchange,
        local_timestamp=_local(event),
        details=payload.details,
        sub_sequent_errors_count=payload.subsequent_errors,
        code=_error_code(payload.code),
    )


def _error_code(number: int) -> messages.ErrorCode | None:
    """Name a code; those that are not known here are newer than this."""
    value = pb.ErrorCode.DESCRIPTOR.values_by_number.get(number)
    name = "" if value is None else value.name.removeprefix("ERROR_CODE_")
    return name if name in get_args(messages.ErrorCode) else None  # type: ignore[return-value]


def _disconnect(event: pb.NormalizedEvent, payload: pb.ControlDisconnect) -> Message:
    symbols = list(payload.symbols.symbols) if payload.HasField("symbols") else None
    return messages.Disconnect(
        exchange=event.exchange,
        local_timestamp=_local(event),
        symbols=symbols,
        reason=payload.reason or None,
        close_code=payload.close_code or None,
    )


_READERS: Final[dict[str, tuple[str, Callable[[pb.NormalizedEvent, Any], Message]]]] = {
    "trade": ("trade", _trade),
    "book_change": ("bookChange", _book_change),
    "book_snapshot": ("bookSnapshot", _book_snapshot),
    "quote": ("quote", _quote),
    "derivative_ticker": ("derivativeTicker", _derivative_ticker),
    "liquidation": ("liquidation", _liquidation),
    "option_summary": ("optionSummary", _option_summary),
    "book_ticker": ("bookTicker", _book_ticker),
    "grouped_book_snapshot": ("groupedBookSnapshot", _grouped_book_snapshot),
    "trade_bar": ("tradeBar", _trade_bar),
    "error": ("error", _error),
    "disconnect": ("disconnect", _disconnect),
}
"""By the schema's name of the payload: its name in configuration, and what reads it."""
