"""Writers, one for each payload: they fill a Protobuf message from a wire message."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import UNSET

from lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.bronze.decimals import DECIMALS
from tardis_machine.bronze.levels import LevelList, tag, varint
from tardis_machine.bronze.times import BY_VALUE, parse

_SIDES: Final = {"buy": pb.SIDE_BUY, "sell": pb.SIDE_SELL, "unknown": pb.SIDE_UNSPECIFIED}
_OPTION_TYPES: Final = {"put": pb.OPTION_TYPE_PUT, "call": pb.OPTION_TYPE_CALL}
_BAR_KINDS: Final = {
    "time": pb.BAR_KIND_TIME,
    "tick": pb.BAR_KIND_TICK,
    "volume": pb.BAR_KIND_VOLUME,
}
_MAX_UINT32: Final = 2**32 - 1
_MAX_UINT64: Final = 2**64 - 1


class Writer:
    """Fills one event again and again; a field that is not assigned anew is cleared."""

    tail: bytes = b""
    """What follows the serialized event: the payload, where that is not part of it."""

    def __init__(self) -> None:
        self.event = pb.NormalizedEvent()
        # upb looks a method up among its fields first, which takes half as long as serializing
        self.serialize = self.event.SerializeToString
        self.local_ts = self.event.local_ts
        self.local_seconds = 0
        self.local_precision = BY_VALUE

    def fill(self, message: Any) -> bytes:
        """Take the message over; return its content if that belongs into the event's id.

        Raises KeyError or ValueError for what no envelope can hold.
        """
        raise NotImplementedError


class _TradeWriter(Writer):
    """The payload most published: what is as it was is not assigned again."""

    def __init__(self) -> None:
        super().__init__()
        self._payload = self.event.trade
        self._event_ts = self._payload.event_ts
        self._seconds = 0
        self._precision = BY_VALUE
        self._side = "unknown"
        self._has_text_id = True

    def fill(self, message: Any) -> bytes:
        payload, event_ts = self._payload, self._event_ts
        trade_id = message.id
        if trade_id.__class__ is str and self._has_text_id:
            payload.trade_id = trade_id
        else:
            self._put_id(trade_id)
        payload.price_str = DECIMALS[message.price]
        payload.qty_str = DECIMALS[message.amount]
        side = message.side
        if side != self._side:
            payload.side = _SIDES[side]
            self._side = side
        seconds, event_ts.nanos, precision = parse(message.timestamp)
        if seconds != self._seconds:
            event_ts.seconds = self._seconds = seconds
        if precision is not self._precision:
            payload.event_ts_precision = self._precision = precision
        return b""

    def _put_id(self, trade_id: Any) -> None:
        is_text = isinstance(trade_id, str)
        if trade_id is UNSET:
            self._payload.ClearField("trade_id")
        else:
            self._payload.trade_id = trade_id if is_text else DECIMALS[trade_id]
        self._payload.trade_id_is_number = not is_text and trade_id is not UNSET
        self._has_text_id = is_text


class _LiquidationWriter(Writer):
    def __init__(self) -> None:
        super().__init__()
        self._payload = self.event.liquidation
        self._event_ts = self._payload.event_ts

    def fill(self, message: Any) -> bytes:
        payload, event_ts = self._payload, self._event_ts
        order_id = message.id
        if order_id is UNSET:
            payload.ClearField("order_id")
            payload.order_id_is_number = False
        else:
            is_text = isinstance(order_id, str)
            payload.order_id = order_id if is_text else DECIMALS[order_id]
            payload.order_id_is_number = not is_text
        payload.price_str = DECIMALS[message.price]
        payload.qty_str = DECIMALS[message.amount]
        payload.side = _SIDES[message.side]
        event_ts.seconds, event_ts.nanos, payload.event_ts_precision = parse(message.timestamp)
        return b""


class _BookTickerWriter(Writer):
    def __init__(self) -> None:
        super().__init__()
        self._payload = self.event.book_ticker
        self._event_ts = self._payload.event_ts

    def fill(self, message: Any) -> bytes:
        payload, event_ts = self._payload, self._event_ts
        if message.bid_price is UNSET:
            payload.ClearField("best_bid_price_str")
        else:
            payload.best_bid_price_str = DECIMALS[message.bid_price]
        if message.bid_amount is UNSET:
            payload.ClearField("best_bid_qty_str")
        else:
            payload.best_bid_qty_str = DECIMALS[message.bid_amount]
        if message.ask_price is UNSET:
            payload.ClearField("best_ask_price_str")
        else:
            payload.best_ask_price_str = DECIMALS[message.ask_price]
        if message.ask_amount is UNSET:
            payload.ClearField("best_ask_qty_str")
        else:
            payload.best_ask_qty_str = DECIMALS[message.ask_amount]
        event_ts.seconds, event_ts.nanos, payload.event_ts_precision = parse(message.timestamp)
        return b""


class _DerivativeTickerWriter(Writer):
    def fill(self, message: Any) -> bytes:
        payload = self.event.derivative_ticker
        payload.Clear()
        if (number := message.mark_price) is not UNSET:
            payload.mark_price_str = DECIMALS[number]
        if (number := message.index_price) is not UNSET:
            payload.index_price_str = DECIMALS[number]
        if (number := message.funding_rate) is not UNSET:
            payload.funding_rate_str = DECIMALS[number]
        if (number := message.last_price) is not UNSET:
            payload.last_price_str = DECIMALS[number]
        if (number := message.open_interest) is not UNSET:
            payload.open_interest_str = DECIMALS[number]
        if (number := message.predicted_funding_rate) is not UNSET:
            payload.predicted_funding_rate_str = DECIMALS[number]
        if (time := message.funding_timestamp) is not UNSET:
            payload.funding_ts_precision = _put(payload.funding_ts, time)
        payload.event_ts_precision = _put(payload.event_ts, message.timestamp)
        return b""


class _OptionSummaryWriter(Writer):
    def fill(self, message: Any) -> bytes:
        payload = self.event.option_summary
        payload.Clear()
        payload.option_type = _OPTION_TYPES[message.option_type]
        payload.strike_price_str = DECIMALS[message.strike_price]
        payload.expiration_ts_precision = _put(payload.expiration_ts, message.expiration_date)
        if (number := message.best_bid_price) is not UNSET:
            payload.best_bid_price_str = DECIMALS[number]
        if (number := message.best_bid_amount) is not UNSET:
            payload.best_bid_qty_str = DECIMALS[number]
        if (number := message.best_bid_iv) is not UNSET:
            payload.best_bid_iv_str = DECIMALS[number]
        if (number := message.best_ask_price) is not UNSET:
            payload.best_ask_price_str = DECIMALS[number]
        if (number := message.best_ask_amount) is not UNSET:
            payload.best_ask_qty_str = DECIMALS[number]
        if (number := message.best_ask_iv) is not UNSET:
            payload.best_ask_iv_str = DECIMALS[number]
        if (number := message.last_price) is not UNSET:
            payload.last_price_str = DECIMALS[number]
        if (number := message.open_interest) is not UNSET:
            payload.oi_str = DECIMALS[number]
        if (number := message.mark_price) is not UNSET:
            payload.mark_price_str = DECIMALS[number]
        if (number := message.mark_iv) is not UNSET:
            payload.iv_str = DECIMALS[number]
        if (number := message.delta) is not UNSET:
            payload.delta_str = DECIMALS[number]
        if (number := message.gamma) is not UNSET:
            payload.gamma_str = DECIMALS[number]
        if (number := message.vega) is not UNSET:
            payload.vega_str = DECIMALS[number]
        if (number := message.theta) is not UNSET:
            payload.theta_str = DECIMALS[number]
        if (number := message.rho) is not UNSET:
            payload.rho_str = DECIMALS[number]
        if (number := message.underlying_price) is not UNSET:
            payload.underlying_price_str = DECIMALS[number]
        if (index := message.underlying_index) is not UNSET:
            payload.underlying_index = index
        payload.event_ts_precision = _put(payload.event_ts, message.timestamp)
        return b""


class _TradeBarWriter(Writer):
    def fill(self, message: Any) -> bytes:
        payload = self.event.trade_bar
        payload.Clear()
        interval = message.interval
        payload.kind = _BAR_KINDS[message.kind]
        payload.interval_str = DECIMALS[interval]
        payload.interval = _whole(interval, _MAX_UINT64)
        if message.kind == "time":
            payload.interval_ms = _whole(interval, _MAX_UINT32)
        payload.name = message.name
        values = (
            DECIMALS[message.open],
            DECIMALS[message.high],
            DECIMALS[message.low],
            DECIMALS[message.close],
            DECIMALS[message.volume],
            DECIMALS[message.buy_volume],
            DECIMALS[message.sell_volume],
            DECIMALS[message.vwap],
        )
        (
            payload.open_str,
            payload.high_str,
            payload.low_str,
            payload.close_str,
            payload.volume_str,
            payload.buy_volume_str,
            payload.sell_volume_str,
            payload.vwap_str,
        ) = values
        payload.trade_count = message.trades
        payload.event_ts_precision = _put(payload.event_ts, message.open_timestamp)
        payload.end_ts_precision = _put(payload.end_ts, message.close_timestamp)
        payload.bar_ts_precision = _put(payload.bar_ts, message.timestamp)
        times = (message.open_timestamp, message.close_timestamp, message.timestamp)
        return " ".join((*values, str(message.trades), *map(six_digits, times))).encode()


class _BookChangeWriter(Writer):
    def __init__(self) -> None:
        super().__init__()
        self._payload = pb.BookChange()
        self._event_ts = self._payload.event_ts
        self._serialize = self._payload.SerializeToString

    def fill(self, message: Any) -> bytes:
        payload, event_ts = self._payload, self._event_ts
        payload.is_snapshot = message.is_snapshot
        event_ts.seconds, event_ts.nanos, payload.event_ts_precision = parse(message.timestamp)
        body = (
            self._serialize() + _CHANGE_BIDS.write(message.bids) + _CHANGE_ASKS.write(message.asks)
        )
        self.tail = _CHANGE_TAG + varint(len(body)) + body
        return b""


class _SnapshotWriter(Writer):
    """Snapshots and grouped ones, which differ in nothing but the grouping."""

    _message: ClassVar[type[pb.BookSnapshot] | type[pb.GroupedBookSnapshot]]
    _tag: ClassVar[bytes]

    def __init__(self) -> None:
        super().__init__()
        self._payload: Any = self._message(remove_crossed_levels=True)
        self._event_ts: Timestamp = self._payload.event_ts
        self._serialize: Callable[[], bytes] = self._payload.SerializeToString

    def fill(self, message: Any) -> bytes:
        payload, event_ts = self._payload, self._event_ts
        payload.depth = message.depth
        payload.name = message.name
        payload.interval_str = DECIMALS[message.interval]
        payload.interval_ms = _whole(message.interval, _MAX_UINT32)
        event_ts.seconds, event_ts.nanos, payload.event_ts_precision = parse(message.timestamp)
        bids, asks = _SNAPSHOT_BIDS.write(message.bids), _SNAPSHOT_ASKS.write(message.asks)
        body = self._serialize() + bids + asks
        self.tail = self._tag + varint(len(body)) + body
        return six_digits(message.timestamp).encode() + bids + asks


class _BookSnapshotWriter(_SnapshotWriter):
    _message = pb.BookSnapshot
    _tag = tag(pb.NormalizedEvent.BOOK_SNAPSHOT_FIELD_NUMBER)


class _GroupedBookSnapshotWriter(_SnapshotWriter):
    _message = pb.GroupedBookSnapshot
    _tag = tag(pb.NormalizedEvent.GROUPED_BOOK_SNAPSHOT_FIELD_NUMBER)

    def fill(self, message: Any) -> bytes:
        self._payload.grouping = _whole(message.grouping, _MAX_UINT32)
        self._payload.grouping_str = DECIMALS[message.grouping]
        return super().fill(message)


class _QuoteWriter(Writer):
    def fill(self, message: Any) -> bytes:
        payload = self.event.quote
        payload.Clear()
        payload.depth = message.depth
        payload.name = message.name
        payload.interval_str = DECIMALS[message.interval]
        if message.grouping is not UNSET:
            payload.grouping_str = DECIMALS[message.grouping]
        payload.event_ts_precision = _put(payload.event_ts, message.timestamp)
        bids, asks = message.bids, message.asks
        if len(bids) == len(asks) == 1:
            (bid,), (ask,) = bids, asks
            if bid.price is not UNSET:
                payload.bid_price_str = DECIMALS[bid.price]
            if bid.amount is not UNSET:
                payload.bid_qty_str = DECIMALS[bid.amount]
            if ask.price is not UNSET:
                payload.ask_price_str = DECIMALS[ask.price]
            if ask.amount is not UNSET:
                payload.ask_qty_str = DECIMALS[ask.amount]
        else:
            payload.has_levels = True
            payload.MergeFromString(_QUOTE_BIDS.write(bids) + _QUOTE_ASKS.write(asks))
        content = _SNAPSHOT_BIDS.write(bids) + _SNAPSHOT_ASKS.write(asks)
        return six_digits(message.timestamp).encode() + content


class _ErrorWriter(Writer):
    def fill(self, message: Any) -> bytes:
        payload = self.event.error
        payload.SetInParent()
        payload.details = message.details
        payload.subsequent_errors = message.sub_sequent_errors_count
        return b""


class _DisconnectWriter(Writer):
    def fill(self, message: Any) -> bytes:
        payload = self.event.disconnect
        payload.Clear()
        payload.SetInParent()
        if message.symbols is not UNSET:
            payload.symbols.SetInParent()
            payload.symbols.symbols.extend(message.symbols)
        return b""


WRITERS: Final[dict[str, type[Writer]]] = {
    "trade": _TradeWriter,
    "bookChange": _BookChangeWriter,
    "bookSnapshot": _BookSnapshotWriter,
    "quote": _QuoteWriter,
    "derivativeTicker": _DerivativeTickerWriter,
    "liquidation": _LiquidationWriter,
    "optionSummary": _OptionSummaryWriter,
    "bookTicker": _BookTickerWriter,
    "groupedBookSnapshot": _GroupedBookSnapshotWriter,
    "tradeBar": _TradeBarWriter,
    "error": _ErrorWriter,
    "disconnect": _DisconnectWriter,
}

_CHANGE_TAG: Final = tag(pb.NormalizedEvent.BOOK_CHANGE_FIELD_NUMBER)
_CHANGE_BIDS: Final = LevelList(pb.BookChange.BIDS_FIELD_NUMBER)
_CHANGE_ASKS: Final = LevelList(pb.BookChange.ASKS_FIELD_NUMBER)
_SNAPSHOT_BIDS: Final = LevelList(pb.BookSnapshot.BIDS_FIELD_NUMBER)
_SNAPSHOT_ASKS: Final = LevelList(pb.BookSnapshot.ASKS_FIELD_NUMBER)
_QUOTE_BIDS: Final = LevelList(pb.Quote.BIDS_FIELD_NUMBER)
_QUOTE_ASKS: Final = LevelList(pb.Quote.ASKS_FIELD_NUMBER)


def six_digits(time: str) -> str:
    """Write a valid time with six fractional digits, so that equal times are equal texts."""
    return time if len(time) == 27 else f"{time[:-1]}000Z"


def _put(timestamp: Timestamp, text: str) -> pb.TimePrecision:
    timestamp.seconds, timestamp.nanos, precision = parse(text)
    return precision


def _whole(number: float, most: int) -> int:
    """Give a number for the public schema's integer field, or 0 where it has no room for it."""
    return int(number) if number.is_integer() and 0 <= number <= most else 0
