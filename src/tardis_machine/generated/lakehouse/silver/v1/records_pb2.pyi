import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordKey(_message.Message):
    __slots__ = ("event_id", "exchange", "symbol", "local_ts", "ingest_ts", "origin", "producer_id", "position")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TS_FIELD_NUMBER: _ClassVar[int]
    INGEST_TS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    exchange: str
    symbol: str
    local_ts: _timestamp_pb2.Timestamp
    ingest_ts: _timestamp_pb2.Timestamp
    origin: str
    producer_id: str
    position: int
    def __init__(self, event_id: _Optional[str] = ..., exchange: _Optional[str] = ..., symbol: _Optional[str] = ..., local_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ingest_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., origin: _Optional[str] = ..., producer_id: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class PriceLevel(_message.Message):
    __slots__ = ("price", "amount")
    PRICE_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    price: str
    amount: str
    def __init__(self, price: _Optional[str] = ..., amount: _Optional[str] = ...) -> None: ...

class TradeRecord(_message.Message):
    __slots__ = ("key", "event_ts", "trade_id", "price", "amount", "side")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    TRADE_ID_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    trade_id: str
    price: str
    amount: str
    side: str
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., trade_id: _Optional[str] = ..., price: _Optional[str] = ..., amount: _Optional[str] = ..., side: _Optional[str] = ...) -> None: ...

class BookChangeRecord(_message.Message):
    __slots__ = ("key", "event_ts", "is_snapshot", "bids", "asks")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    is_snapshot: bool
    bids: _containers.RepeatedCompositeFieldContainer[PriceLevel]
    asks: _containers.RepeatedCompositeFieldContainer[PriceLevel]
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., is_snapshot: _Optional[bool] = ..., bids: _Optional[_Iterable[_Union[PriceLevel, _Mapping]]] = ..., asks: _Optional[_Iterable[_Union[PriceLevel, _Mapping]]] = ...) -> None: ...

class BookSnapshotRecord(_message.Message):
    __slots__ = ("key", "event_ts", "name", "depth", "interval_ms", "bids", "asks")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    name: str
    depth: int
    interval_ms: str
    bids: _containers.RepeatedCompositeFieldContainer[PriceLevel]
    asks: _containers.RepeatedCompositeFieldContainer[PriceLevel]
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., name: _Optional[str] = ..., depth: _Optional[int] = ..., interval_ms: _Optional[str] = ..., bids: _Optional[_Iterable[_Union[PriceLevel, _Mapping]]] = ..., asks: _Optional[_Iterable[_Union[PriceLevel, _Mapping]]] = ...) -> None: ...

class GroupedBookSnapshotRecord(_message.Message):
    __slots__ = ("key", "event_ts", "name", "depth", "interval_ms", "grouping", "bids", "asks")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    GROUPING_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    name: str
    depth: int
    interval_ms: str
    grouping: str
    bids: _containers.RepeatedCompositeFieldContainer[PriceLevel]
    asks: _containers.RepeatedCompositeFieldContainer[PriceLevel]
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., name: _Optional[str] = ..., depth: _Optional[int] = ..., interval_ms: _Optional[str] = ..., grouping: _Optional[str] = ..., bids: _Optional[_Iterable[_Union[PriceLevel, _Mapping]]] = ..., asks: _Optional[_Iterable[_Union[PriceLevel, _Mapping]]] = ...) -> None: ...

class QuoteRecord(_message.Message):
    __slots__ = ("key", "event_ts", "name", "interval_ms", "bid_price", "bid_amount", "ask_price", "ask_amount")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    BID_PRICE_FIELD_NUMBER: _ClassVar[int]
    BID_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    ASK_PRICE_FIELD_NUMBER: _ClassVar[int]
    ASK_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    name: str
    interval_ms: str
    bid_price: str
    bid_amount: str
    ask_price: str
    ask_amount: str
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., name: _Optional[str] = ..., interval_ms: _Optional[str] = ..., bid_price: _Optional[str] = ..., bid_amount: _Optional[str] = ..., ask_price: _Optional[str] = ..., ask_amount: _Optional[str] = ...) -> None: ...

class BookTickerRecord(_message.Message):
    __slots__ = ("key", "event_ts", "bid_price", "bid_amount", "ask_price", "ask_amount")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    BID_PRICE_FIELD_NUMBER: _ClassVar[int]
    BID_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    ASK_PRICE_FIELD_NUMBER: _ClassVar[int]
    ASK_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    bid_price: str
    bid_amount: str
    ask_price: str
    ask_amount: str
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., bid_price: _Optional[str] = ..., bid_amount: _Optional[str] = ..., ask_price: _Optional[str] = ..., ask_amount: _Optional[str] = ...) -> None: ...

class DerivativeTickerRecord(_message.Message):
    __slots__ = ("key", "event_ts", "last_price", "open_interest", "funding_rate", "funding_ts", "predicted_funding_rate", "index_price", "mark_price")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    LAST_PRICE_FIELD_NUMBER: _ClassVar[int]
    OPEN_INTEREST_FIELD_NUMBER: _ClassVar[int]
    FUNDING_RATE_FIELD_NUMBER: _ClassVar[int]
    FUNDING_TS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FUNDING_RATE_FIELD_NUMBER: _ClassVar[int]
    INDEX_PRICE_FIELD_NUMBER: _ClassVar[int]
    MARK_PRICE_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    last_price: str
    open_interest: str
    funding_rate: str
    funding_ts: _timestamp_pb2.Timestamp
    predicted_funding_rate: str
    index_price: str
    mark_price: str
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_price: _Optional[str] = ..., open_interest: _Optional[str] = ..., funding_rate: _Optional[str] = ..., funding_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., predicted_funding_rate: _Optional[str] = ..., index_price: _Optional[str] = ..., mark_price: _Optional[str] = ...) -> None: ...

class LiquidationRecord(_message.Message):
    __slots__ = ("key", "event_ts", "liquidation_id", "price", "amount", "side")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    LIQUIDATION_ID_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    liquidation_id: str
    price: str
    amount: str
    side: str
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., liquidation_id: _Optional[str] = ..., price: _Optional[str] = ..., amount: _Optional[str] = ..., side: _Optional[str] = ...) -> None: ...

class OptionSummaryRecord(_message.Message):
    __slots__ = ("key", "event_ts", "option_type", "strike_price", "expiration_ts", "best_bid_price", "best_bid_amount", "best_bid_iv", "best_ask_price", "best_ask_amount", "best_ask_iv", "last_price", "open_interest", "mark_price", "mark_iv", "delta", "gamma", "vega", "theta", "rho", "underlying_price", "underlying_index")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    OPTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    STRIKE_PRICE_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TS_FIELD_NUMBER: _ClassVar[int]
    BEST_BID_PRICE_FIELD_NUMBER: _ClassVar[int]
    BEST_BID_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    BEST_BID_IV_FIELD_NUMBER: _ClassVar[int]
    BEST_ASK_PRICE_FIELD_NUMBER: _ClassVar[int]
    BEST_ASK_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    BEST_ASK_IV_FIELD_NUMBER: _ClassVar[int]
    LAST_PRICE_FIELD_NUMBER: _ClassVar[int]
    OPEN_INTEREST_FIELD_NUMBER: _ClassVar[int]
    MARK_PRICE_FIELD_NUMBER: _ClassVar[int]
    MARK_IV_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    VEGA_FIELD_NUMBER: _ClassVar[int]
    THETA_FIELD_NUMBER: _ClassVar[int]
    RHO_FIELD_NUMBER: _ClassVar[int]
    UNDERLYING_PRICE_FIELD_NUMBER: _ClassVar[int]
    UNDERLYING_INDEX_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    option_type: str
    strike_price: str
    expiration_ts: _timestamp_pb2.Timestamp
    best_bid_price: str
    best_bid_amount: str
    best_bid_iv: str
    best_ask_price: str
    best_ask_amount: str
    best_ask_iv: str
    last_price: str
    open_interest: str
    mark_price: str
    mark_iv: str
    delta: str
    gamma: str
    vega: str
    theta: str
    rho: str
    underlying_price: str
    underlying_index: str
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., option_type: _Optional[str] = ..., strike_price: _Optional[str] = ..., expiration_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., best_bid_price: _Optional[str] = ..., best_bid_amount: _Optional[str] = ..., best_bid_iv: _Optional[str] = ..., best_ask_price: _Optional[str] = ..., best_ask_amount: _Optional[str] = ..., best_ask_iv: _Optional[str] = ..., last_price: _Optional[str] = ..., open_interest: _Optional[str] = ..., mark_price: _Optional[str] = ..., mark_iv: _Optional[str] = ..., delta: _Optional[str] = ..., gamma: _Optional[str] = ..., vega: _Optional[str] = ..., theta: _Optional[str] = ..., rho: _Optional[str] = ..., underlying_price: _Optional[str] = ..., underlying_index: _Optional[str] = ...) -> None: ...

class TradeBarRecord(_message.Message):
    __slots__ = ("key", "event_ts", "name", "kind", "interval", "open", "high", "low", "close", "volume", "buy_volume", "sell_volume", "trade_count", "vwap", "open_ts", "close_ts")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    BUY_VOLUME_FIELD_NUMBER: _ClassVar[int]
    SELL_VOLUME_FIELD_NUMBER: _ClassVar[int]
    TRADE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VWAP_FIELD_NUMBER: _ClassVar[int]
    OPEN_TS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TS_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    event_ts: _timestamp_pb2.Timestamp
    name: str
    kind: str
    interval: str
    open: str
    high: str
    low: str
    close: str
    volume: str
    buy_volume: str
    sell_volume: str
    trade_count: int
    vwap: str
    open_ts: _timestamp_pb2.Timestamp
    close_ts: _timestamp_pb2.Timestamp
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., event_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., interval: _Optional[str] = ..., open: _Optional[str] = ..., high: _Optional[str] = ..., low: _Optional[str] = ..., close: _Optional[str] = ..., volume: _Optional[str] = ..., buy_volume: _Optional[str] = ..., sell_volume: _Optional[str] = ..., trade_count: _Optional[int] = ..., vwap: _Optional[str] = ..., open_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., close_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ErrorRecord(_message.Message):
    __slots__ = ("key", "details", "subsequent_errors")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    SUBSEQUENT_ERRORS_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    details: str
    subsequent_errors: int
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., details: _Optional[str] = ..., subsequent_errors: _Optional[int] = ...) -> None: ...

class DisconnectRecord(_message.Message):
    __slots__ = ("key", "all_symbols", "symbols")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    key: RecordKey
    all_symbols: bool
    symbols: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[_Union[RecordKey, _Mapping]] = ..., all_symbols: _Optional[bool] = ..., symbols: _Optional[_Iterable[str]] = ...) -> None: ...
