"""The public schema of this name, by hand: what its consumers know, and what therefore stays."""

from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message

_Field = descriptor_pb2.FieldDescriptorProto

PACKAGE: Final = "lakehouse.bronze.v1"

ENUMS: Final[dict[str, dict[str, int]]] = {
    "Origin": {
        "ORIGIN_UNSPECIFIED": 0,
        "ORIGIN_REALTIME": 1,
        "ORIGIN_REPLAY": 2,
        "ORIGIN_ARCHIVE": 3,
    },
    "Side": {"SIDE_UNSPECIFIED": 0, "SIDE_BUY": 1, "SIDE_SELL": 2},
    "Action": {"ACTION_UNSPECIFIED": 0, "ACTION_UPSERT": 1, "ACTION_DELETE": 2},
    "BarKind": {
        "BAR_KIND_UNSPECIFIED": 0,
        "BAR_KIND_TICK": 1,
        "BAR_KIND_TIME": 2,
        "BAR_KIND_VOLUME": 3,
    },
    "ErrorCode": {
        "ERROR_CODE_UNSPECIFIED": 0,
        "ERROR_CODE_WS_CONNECT": 1,
        "ERROR_CODE_WS_SEND": 2,
        "ERROR_CODE_SOURCE_AUTH": 3,
        "ERROR_CODE_SOURCE_RATE_LIMIT": 4,
    },
}

_SNAPSHOT: Final = {
    "depth": (1, "uint32"),
    "bids": (2, "repeated Level"),
    "asks": (3, "repeated Level"),
    "event_ts": (10, "Timestamp"),
    "grouping": (11, "uint32"),
    "interval_ms": (12, "uint32"),
    "remove_crossed_levels": (13, "bool"),
    "sequence": (14, "int64"),
}

MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "NormalizedEvent": {
        "source": (1, "string"),
        "exchange": (2, "string"),
        "symbol": (3, "string"),
        "local_ts": (4, "Timestamp"),
        "ingest_ts": (5, "Timestamp"),
        "origin": (6, "Origin"),
        "meta": (10, "map"),
        "trade": (100, "Trade"),
        "book_change": (101, "BookChange"),
        "book_snapshot": (102, "BookSnapshot"),
        "quote": (103, "Quote"),
        "derivative_ticker": (104, "DerivativeTicker"),
        "liquidation": (105, "Liquidation"),
        "option_summary": (106, "OptionSummary"),
        "book_ticker": (107, "BookTicker"),
        "grouped_book_snapshot": (108, "GroupedBookSnapshot"),
        "trade_bar": (109, "TradeBar"),
        "error": (150, "ControlError"),
        "disconnect": (151, "ControlDisconnect"),
    },
    "Trade": {
        "trade_id": (1, "string"),
        "price_str": (2, "string"),
        "qty_str": (3, "string"),
        "side": (4, "Side"),
        "sequence": (5, "int64"),
        "event_ts": (10, "Timestamp"),
    },
    "BookChange": {
        "side": (1, "Side"),
        "action": (2, "Action"),
        "price_str": (3, "string"),
        "qty_str": (4, "string"),
        "level": (5, "int32"),
        "sequence": (6, "int64"),
        "event_ts": (10, "Timestamp"),
    },
    "Level": {"price_str": (1, "string"), "qty_str": (2, "string")},
    "BookSnapshot": _SNAPSHOT,
    "GroupedBookSnapshot": _SNAPSHOT,
    "TradeBar": {
        "kind": (1, "BarKind"),
        "interval": (2, "uint64"),
        "interval_ms": (3, "uint32"),
        "open_str": (4, "string"),
        "high_str": (5, "string"),
        "low_str": (6, "string"),
        "close_str": (7, "string"),
        "volume_str": (8, "string"),
        "trade_count": (9, "uint64"),
        "event_ts": (10, "Timestamp"),
        "end_ts": (11, "Timestamp"),
    },
    "Quote": {
        "bid_price_str": (1, "string"),
        "bid_qty_str": (2, "string"),
        "ask_price_str": (3, "string"),
        "ask_qty_str": (4, "string"),
        "event_ts": (10, "Timestamp"),
    },
    "DerivativeTicker": {
        "mark_price_str": (1, "string"),
        "index_price_str": (2, "string"),
        "funding_rate_str": (3, "string"),
        "event_ts": (10, "Timestamp"),
    },
    "Liquidation": {
        "side": (1, "Side"),
        "price_str": (2, "string"),
        "qty_str": (3, "string"),
        "order_id": (4, "string"),
        "event_ts": (10, "Timestamp"),
    },
    "OptionSummary": {
        "iv_str": (1, "string"),
        "delta_str": (2, "string"),
        "gamma_str": (3, "string"),
        "theta_str": (4, "string"),
        "vega_str": (5, "string"),
        "oi_str": (6, "string"),
        "event_ts": (10, "Timestamp"),
    },
    "BookTicker": {
        "best_bid_price_str": (1, "string"),
        "best_bid_qty_str": (2, "string"),
        "best_ask_price_str": (3, "string"),
        "best_ask_qty_str": (4, "string"),
        "event_ts": (10, "Timestamp"),
    },
    "ControlError": {
        "details": (1, "string"),
        "subsequent_errors": (2, "uint32"),
        "code": (3, "ErrorCode"),
    },
    "ControlDisconnect": {"reason": (1, "string"), "close_code": (2, "uint32")},
}

SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def event_class() -> type[Message]:
    """Make the NormalizedEvent of a consumer that knows the tables above and nothing more."""
    file = descriptor_pb2.FileDescriptorProto(
        name="public.proto",
        package=PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "NormalizedEvent":
            message.oneof_decl.add(name="payload")
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{PACKAGE}.NormalizedEvent")
    return message_factory.GetMessageClass(descriptor)


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if number >= 100:
        field.oneof_index = 0
    if kind == "map":
        entry = message.nested_type.add(name="MetaEntry")
        entry.options.map_entry = True
        for index, part in enumerate(("key", "value"), 1):
            entry.field.add(
                name=part, number=index, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL
            )
        field.label = _Field.LABEL_REPEATED
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.NormalizedEvent.MetaEntry"
        return
    if kind.startswith("repeated "):
        field.label = _Field.LABEL_REPEATED
        kind = kind.removeprefix("repeated ")
    if kind in SCALARS:
        field.type = SCALARS[kind]
    elif kind in ENUMS:
        field.type = _Field.TYPE_ENUM
        field.type_name = f".{PACKAGE}.{kind}"
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = (
            ".google.protobuf.Timestamp" if kind == "Timestamp" else f".{PACKAGE}.{kind}"
        )
