"""Payloads: for each, what writes it from a wire message."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_args

from msgspec import UNSET

from tardis_machine.bronze.fields import (
    DecimalField,
    Heads,
    LevelsField,
    TextField,
    choices,
    count,
)
from tardis_machine.bronze.times import MILLIS_END, SECONDS, TimeField
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import ErrorCode
from tardis_machine.messages.numbers import decimals

_Written = tuple[bytes, bytes]
"""A payload, and its content as far as that belongs into the event's id: of computed messages."""

_Write = Callable[[Any], _Written]

_MAX_UINT32: Final = 2**32 - 1
_MAX_UINT64: Final = 2**64 - 1
_SIDES: Final = {"buy": pb.SIDE_BUY, "sell": pb.SIDE_SELL, "unknown": pb.SIDE_UNSPECIFIED}


def _trade() -> _Write:
    return _execution(
        id_field=TextField(pb.Trade.TRADE_ID_FIELD_NUMBER),
        id_is_number=count(pb.Trade.TRADE_ID_IS_NUMBER_FIELD_NUMBER, 1),
        price_field=DecimalField(pb.Trade.PRICE_STR_FIELD_NUMBER),
        amount_field=DecimalField(pb.Trade.QTY_STR_FIELD_NUMBER),
        side_field=choices(pb.Trade.SIDE_FIELD_NUMBER, _SIDES),
        time_field=TimeField(
            pb.Trade.EVENT_TS_FIELD_NUMBER, pb.Trade.EVENT_TS_PRECISION_FIELD_NUMBER
        ),
    )


def _liquidation() -> _Write:
    return _execution(
        id_field=TextField(pb.Liquidation.ORDER_ID_FIELD_NUMBER),
        id_is_number=count(pb.Liquidation.ORDER_ID_IS_NUMBER_FIELD_NUMBER, 1),
        price_field=DecimalField(pb.Liquidation.PRICE_STR_FIELD_NUMBER),
        amount_field=DecimalField(pb.Liquidation.QTY_STR_FIELD_NUMBER),
        side_field=choices(pb.Liquidation.SIDE_FIELD_NUMBER, _SIDES),
        time_field=TimeField(
            pb.Liquidation.EVENT_TS_FIELD_NUMBER, pb.Liquidation.EVENT_TS_PRECISION_FIELD_NUMBER
        ),
    )


def _execution(
    *,
    id_field: TextField,
    id_is_number: bytes,
    price_field: DecimalField,
    amount_field: DecimalField,
    side_field: dict[str, bytes],
    time_field: TimeField,
) -> _Write:
    """Trades and liquidations differ in nothing but the numbers of their fields."""
    id_heads, time_heads, join = id_field.heads, time_field.heads, b"".join

    def write(message: Any) -> _Written:
        # trades are what most publish, so that the calls that others make are written out here
        trade_id = message.id
        if trade_id.__class__ is str:
            written_id = trade_id.encode()
            id_head = id_heads[len(written_id)]
        elif trade_id is UNSET:
            written_id = id_head = b""
        else:
            written_id, id_head = id_field.write(decimals[trade_id]), id_is_number
        time = message.timestamp
        if len(time) == 24:
            timestamp = SECONDS[time[:20]][1] + MILLIS_END[time[20:]][1]
            time_head = time_heads[len(timestamp)]
        else:
            timestamp, time_head = time_field.write(time), b""
        parts = (
            id_head,
            written_id,
            price_field[message.price],
            amount_field[message.amount],
            side_field[message.side],
            time_head,
            timestamp,
        )
        return join(parts), b""

    return write


def _book_change() -> _Write:
    is_snapshot = count(pb.BookChange.IS_SNAPSHOT_FIELD_NUMBER, 1)
    bids_field = LevelsField(pb.BookChange.BIDS_FIELD_NUMBER)
    asks_field = LevelsField(pb.BookChange.ASKS_FIELD_NUMBER)
    time_field = TimeField(
        pb.BookChange.EVENT_TS_FIELD_NUMBER, pb.BookChange.EVENT_TS_PRECISION_FIELD_NUMBER
    )

    def write(message: Any) -> _Written:
        body = (
            time_field.write(message.timestamp)
            + (is_snapshot if message.is_snapshot else b"")
            + bids_field.write(message.bids)
            + asks_field.write(message.asks)
        )
        return body, b""

    return write


def _book_ticker() -> _Write:
    bid_price_field = DecimalField(pb.BookTicker.BEST_BID_PRICE_STR_FIELD_NUMBER)
    bid_amount_field = DecimalField(pb.BookTicker.BEST_BID_QTY_STR_FIELD_NUMBER)
    ask_price_field = DecimalField(pb.BookTicker.BEST_ASK_PRICE_STR_FIELD_NUMBER)
    ask_amount_field = DecimalField(pb.BookTicker.BEST_ASK_QTY_STR_FIELD_NUMBER)
    time_field = TimeField(
        pb.BookTicker.EVENT_TS_FIELD_NUMBER, pb.BookTicker.EVENT_TS_PRECISION_FIELD_NUMBER
    )

    def write(message: Any) -> _Written:
        body = (
            bid_price_field[message.bid_price]
            + bid_amount_field[message.bid_amount]
            + ask_price_field[message.ask_price]
            + ask_amount_field[message.ask_amount]
            + time_field.write(message.timestamp)
        )
        return body, b""

    return write


def _derivative_ticker() -> _Write:
    mark_price_field = DecimalField(pb.DerivativeTicker.MARK_PRICE_STR_FIELD_NUMBER)
    index_price_field = DecimalField(pb.DerivativeTicker.INDEX_PRICE_STR_FIELD_NUMBER)
    funding_rate_field = DecimalField(pb.DerivativeTicker.FUNDING_RATE_STR_FIELD_NUMBER)
    last_price_field = DecimalField(pb.DerivativeTicker.LAST_PRICE_STR_FIELD_NUMBER)
    open_interest_field = DecimalField(pb.DerivativeTicker.OPEN_INTEREST_STR_FIELD_NUMBER)
    predicted_funding_rate_field = DecimalField(
        pb.DerivativeTicker.PREDICTED_FUNDING_RATE_STR_FIELD_NUMBER
    )
    funding_time_field = TimeField(
        pb.DerivativeTicker.FUNDING_TS_FIELD_NUMBER,
        pb.DerivativeTicker.FUNDING_TS_PRECISION_FIELD_NUMBER,
    )
    time_field = TimeField(
        pb.DerivativeTicker.EVENT_TS_FIELD_NUMBER,
        pb.DerivativeTicker.EVENT_TS_PRECISION_FIELD_NUMBER,
    )

    def write(message: Any) -> _Written:
        funding = message.funding_timestamp
        body = (
            mark_price_field[message.mark_price]
            + index_price_field[message.index_price]
            + funding_rate_field[message.funding_rate]
            + time_field.write(message.timestamp)
            + last_price_field[message.last_price]
            + open_interest_field[message.open_interest]
            + (b"" if funding is UNSET else funding_time_field.write(funding))
            + predicted_funding_rate_field[message.predicted_funding_rate]
        )
        return body, b""

    return write


def _option_summary() -> _Write:
    mark_iv_field = DecimalField(pb.OptionSummary.IV_STR_FIELD_NUMBER)
    delta_field = DecimalField(pb.OptionSummary.DELTA_STR_FIELD_NUMBER)
    gamma_field = DecimalField(pb.OptionSummary.GAMMA_STR_FIELD_NUMBER)
    theta_field = DecimalField(pb.OptionSummary.THETA_STR_FIELD_NUMBER)
    vega_field = DecimalField(pb.OptionSummary.VEGA_STR_FIELD_NUMBER)
    rho_field = DecimalField(pb.OptionSummary.RHO_STR_FIELD_NUMBER)
    open_interest_field = DecimalField(pb.OptionSummary.OI_STR_FIELD_NUMBER)
    option_type_field = choices(
        pb.OptionSummary.OPTION_TYPE_FIELD_NUMBER,
        {"put": pb.OPTION_TYPE_PUT, "call": pb.OPTION_TYPE_CALL},
    )
    strike_price_field = DecimalField(pb.OptionSummary.STRIKE_PRICE_STR_FIELD_NUMBER)
    bid_price_field = DecimalField(pb.OptionSummary.BEST_BID_PRICE_STR_FIELD_NUMBER)
    bid_amount_field = DecimalField(pb.OptionSummary.BEST_BID_QTY_STR_FIELD_NUMBER)
    bid_iv_field = DecimalField(pb.OptionSummary.BEST_BID_IV_STR_FIELD_NUMBER)
    ask_price_field = DecimalField(pb.OptionSummary.BEST_ASK_PRICE_STR_FIELD_NUMBER)
    ask_amount_field = DecimalField(pb.OptionSummary.BEST_ASK_QTY_STR_FIELD_NUMBER)
    ask_iv_field = DecimalField(pb.OptionSummary.BEST_ASK_IV_STR_FIELD_NUMBER)
    last_price_field = DecimalField(pb.OptionSummary.LAST_PRICE_STR_FIELD_NUMBER)
    mark_price_field = DecimalField(pb.OptionSummary.MARK_PRICE_STR_FIELD_NUMBER)
    underlying_price_field = DecimalField(pb.OptionSummary.UNDERLYING_PRICE_STR_FIELD_NUMBER)
    underlying_index_field = TextField(pb.OptionSummary.UNDERLYING_INDEX_FIELD_NUMBER)
    expiration_field = TimeField(
        pb.OptionSummary.EXPIRATION_TS_FIELD_NUMBER,
        pb.OptionSummary.EXPIRATION_TS_PRECISION_FIELD_NUMBER,
    )
    time_field = TimeField(
        pb.OptionSummary.EVENT_TS_FIELD_NUMBER, pb.OptionSummary.EVENT_TS_PRECISION_FIELD_NUMBER
    )

    def write(message: Any) -> _Written:
        parts = (
            mark_iv_field[message.mark_iv],
            delta_field[message.delta],
            gamma_field[message.gamma],
            theta_field[message.theta],
            vega_field[message.vega],
            open_interest_field[message.open_interest],
            time_field.write(message.timestamp),
            option_type_field[message.option_type],
            strike_price_field[message.strike_price],
            expiration_field.write(message.expiration_date),
            bid_price_field[message.best_bid_price],
            bid_amount_field[message.best_bid_amount],
            bid_iv_field[message.best_bid_iv],
            ask_price_field[message.best_ask_price],
            ask_amount_field[message.best_ask_amount],
            ask_iv_field[message.best_ask_iv],
            last_price_field[message.last_price],
            mark_price_field[message.mark_price],
            rho_field[message.rho],
            underlying_price_field[message.underlying_price],
            underlying_index_field.write(message.underlying_index),
        )
        return b"".join(parts), b""

    return write


def _trade_bar() -> _Write:
    kind_field = choices(
        pb.TradeBar.KIND_FIELD_NUMBER,
        {"time": pb.BAR_KIND_TIME, "tick": pb.BAR_KIND_TICK, "volume": pb.BAR_KIND_VOLUME},
    )
    name_field = TextField(pb.TradeBar.NAME_FIELD_NUMBER, optional=False)
    interval_field = DecimalField(pb.TradeBar.INTERVAL_STR_FIELD_NUMBER)
    open_field = DecimalField(pb.TradeBar.OPEN_STR_FIELD_NUMBER)
    high_field = DecimalField(pb.TradeBar.HIGH_STR_FIELD_NUMBER)
    low_field = DecimalField(pb.TradeBar.LOW_STR_FIELD_NUMBER)
    close_field = DecimalField(pb.TradeBar.CLOSE_STR_FIELD_NUMBER)
    volume_field = DecimalField(pb.TradeBar.VOLUME_STR_FIELD_NUMBER)
    buy_volume_field = DecimalField(pb.TradeBar.BUY_VOLUME_STR_FIELD_NUMBER)
    sell_volume_field = DecimalField(pb.TradeBar.SELL_VOLUME_STR_FIELD_NUMBER)
    vwap_field = DecimalField(pb.TradeBar.VWAP_STR_FIELD_NUMBER)
    open_time_field = TimeField(
        pb.TradeBar.EVENT_TS_FIELD_NUMBER, pb.TradeBar.EVENT_TS_PRECISION_FIELD_NUMBER
    )
    close_time_field = TimeField(
        pb.TradeBar.END_TS_FIELD_NUMBER, pb.TradeBar.END_TS_PRECISION_FIELD_NUMBER
    )
    time_field = TimeField(
        pb.TradeBar.BAR_TS_FIELD_NUMBER, pb.TradeBar.BAR_TS_PRECISION_FIELD_NUMBER
    )

    def write(message: Any) -> _Written:
        interval = message.interval
        whole_ms = _whole(interval, _MAX_UINT32) if message.kind == "time" else 0
        content = b"".join(
            (
                open_field[message.open],
                high_field[message.high],
                low_field[message.low],
                close_field[message.close],
                volume_field[message.volume],
                count(pb.TradeBar.TRADE_COUNT_FIELD_NUMBER, message.trades),
                open_time_field.write(message.open_timestamp),
                close_time_field.write(message.close_timestamp),
                buy_volume_field[message.buy_volume],
                sell_volume_field[message.sell_volume],
                vwap_field[message.vwap],
                time_field.write(message.timestamp),
            )
        )
        body = (
            kind_field[message.kind]
            + count(pb.TradeBar.INTERVAL_FIELD_NUMBER, _whole(interval, _MAX_UINT64))
            + count(pb.TradeBar.INTERVAL_MS_FIELD_NUMBER, whole_ms)
            + name_field.write(message.name)
            + interval_field[interval]
            + content
        )
        return body, content

    return write


def _book_snapshot() -> _Write:
    crossed_removed = count(pb.BookSnapshot.REMOVE_CROSSED_LEVELS_FIELD_NUMBER, 1)
    name_field = TextField(pb.BookSnapshot.NAME_FIELD_NUMBER, optional=False)
    interval_field = DecimalField(pb.BookSnapshot.INTERVAL_STR_FIELD_NUMBER)
    bids_field = LevelsField(pb.BookSnapshot.BIDS_FIELD_NUMBER)
    asks_field = LevelsField(pb.BookSnapshot.ASKS_FIELD_NUMBER)
    time_field = TimeField(
        pb.BookSnapshot.EVENT_TS_FIELD_NUMBER, pb.BookSnapshot.EVENT_TS_PRECISION_FIELD_NUMBER
    )

    def write(message: Any) -> _Written:
        interval = message.interval
        content = (
            bids_field.write(message.bids)
            + asks_field.write(message.asks)
            + time_field.write(message.timestamp)
        )
        body = (
            count(pb.BookSnapshot.DEPTH_FIELD_NUMBER, message.depth)
            + content
            + count(pb.BookSnapshot.INTERVAL_MS_FIELD_NUMBER, _whole(interval, _MAX_UINT32))
            + crossed_removed
            + name_field.write(message.name)
            + interval_field[interval]
        )
        return body, content

    return write


def _grouped_book_snapshot() -> _Write:
    """Write a snapshot, whose numbers a grouped one shares, and the grouping behind it."""
    write_snapshot = _book_snapshot()
    grouping_field = DecimalField(pb.GroupedBookSnapshot.GROUPING_STR_FIELD_NUMBER)

    def write(message: Any) -> _Written:
        snapshot, content = write_snapshot(message)
        whole = _whole(message.grouping, _MAX_UINT32)
        grouping = count(pb.GroupedBookSnapshot.GROUPING_FIELD_NUMBER, whole)
        return snapshot + grouping + grouping_field[message.grouping], content

    return write


def _quote() -> _Write:
    bid_price_field = DecimalField(pb.Quote.BID_PRICE_STR_FIELD_NUMBER)
    bid_amount_field = DecimalField(pb.Quote.BID_QTY_STR_FIELD_NUMBER)
    ask_price_field = DecimalField(pb.Quote.ASK_PRICE_STR_FIELD_NUMBER)
    ask_amount_field = DecimalField(pb.Quote.ASK_QTY_STR_FIELD_NUMBER)
    name_field = TextField(pb.Quote.NAME_FIELD_NUMBER, optional=False)
    interval_field = DecimalField(pb.Quote.INTERVAL_STR_FIELD_NUMBER)
    grouping_field = DecimalField(pb.Quote.GROUPING_STR_FIELD_NUMBER)
    has_levels = count(pb.Quote.HAS_LEVELS_FIELD_NUMBER, 1)
    bids_field = LevelsField(pb.Quote.BIDS_FIELD_NUMBER)
    asks_field = LevelsField(pb.Quote.ASKS_FIELD_NUMBER)
    time_field = TimeField(pb.Quote.EVENT_TS_FIELD_NUMBER, pb.Quote.EVENT_TS_PRECISION_FIELD_NUMBER)

    def write(message: Any) -> _Written:
        bids, asks = message.bids, message.asks
        if len(bids) == len(asks) == 1:
            (bid,), (ask,) = bids, asks
            levels = (
                bid_price_field[bid.price]
                + bid_amount_field[bid.amount]
                + ask_price_field[ask.price]
                + ask_amount_field[ask.amount]
            )
        else:
            levels = has_levels + bids_field.write(bids) + asks_field.write(asks)
        content = levels + time_field.write(message.timestamp)
        body = (
            content
            + name_field.write(message.name)
            + interval_field[message.interval]
            + grouping_field[message.grouping]
            + count(pb.Quote.DEPTH_FIELD_NUMBER, message.depth)
        )
        return body, content

    return write


def _error() -> _Write:
    details_field = TextField(pb.ControlError.DETAILS_FIELD_NUMBER, optional=False)
    codes = {name: pb.ErrorCode.Value(f"ERROR_CODE_{name}") for name in get_args(ErrorCode)}
    code_field = choices(pb.ControlError.CODE_FIELD_NUMBER, codes)

    def write(message: Any) -> _Written:
        errors = message.sub_sequent_errors_count
        body = details_field.write(message.details) + count(
            pb.ControlError.SUBSEQUENT_ERRORS_FIELD_NUMBER, errors
        )
        return body + code_field.get(message.code, b""), b""

    return write


def _disconnect() -> _Write:
    symbols_field = Heads(pb.ControlDisconnect.SYMBOLS_FIELD_NUMBER)
    symbol_field = TextField(pb.SymbolList.SYMBOLS_FIELD_NUMBER)
    reason_field = TextField(pb.ControlDisconnect.REASON_FIELD_NUMBER)

    def write(message: Any) -> _Written:
        close_code = 0 if message.close_code is UNSET else message.close_code
        body = reason_field.write(message.reason) + count(
            pb.ControlDisconnect.CLOSE_CODE_FIELD_NUMBER, close_code
        )
        if message.symbols is not UNSET:
            symbols = b"".join(map(symbol_field.write, message.symbols))
            body += symbols_field[len(symbols)] + symbols
        return body, b""

    return write


def _whole(number: float, most: int) -> int:
    """Give a number for the public schema's integer field, or 0 where that has no room for it."""
    return int(number) if number.is_integer() and 0 <= number <= most else 0


class Payload(NamedTuple):
    """What stands before a payload in the envelope, and what writes it."""

    heads: Heads
    write: _Write


_EVENT: Final = pb.NormalizedEvent

PAYLOADS: Final = {
    "trade": Payload(Heads(_EVENT.TRADE_FIELD_NUMBER), _trade()),
    "bookChange": Payload(Heads(_EVENT.BOOK_CHANGE_FIELD_NUMBER), _book_change()),
    "bookSnapshot": Payload(Heads(_EVENT.BOOK_SNAPSHOT_FIELD_NUMBER), _book_snapshot()),
    "quote": Payload(Heads(_EVENT.QUOTE_FIELD_NUMBER), _quote()),
    "derivativeTicker": Payload(Heads(_EVENT.DERIVATIVE_TICKER_FIELD_NUMBER), _derivative_ticker()),
    "liquidation": Payload(Heads(_EVENT.LIQUIDATION_FIELD_NUMBER), _liquidation()),
    "optionSummary": Payload(Heads(_EVENT.OPTION_SUMMARY_FIELD_NUMBER), _option_summary()),
    "bookTicker": Payload(Heads(_EVENT.BOOK_TICKER_FIELD_NUMBER), _book_ticker()),
    "groupedBookSnapshot": Payload(
        Heads(_EVENT.GROUPED_BOOK_SNAPSHOT_FIELD_NUMBER), _grouped_book_snapshot()
    ),
    "tradeBar": Payload(Heads(_EVENT.TRADE_BAR_FIELD_NUMBER), _trade_bar()),
    "error": Payload(Heads(_EVENT.ERROR_FIELD_NUMBER), _error()),
    "disconnect": Payload(Heads(_EVENT.DISCONNECT_FIELD_NUMBER), _disconnect()),
}
