"""Consumers and producers of the public schema understand ours, and the other way round."""

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tardis_machine import bronze, messages
from tardis_machine.bronze import Context, Encoder, Event, Origin
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tests.schemas import public
from tests.support.payload_lines import LINES

PublicEvent = public.event_class()
LOCAL = "2024-03-01T00:00:00.123456Z"
AT = {"seconds": 1_709_251_200, "nanos": 123_000_000}
ENVELOPE = {
    "source": "elsewhere",
    "exchange": "bitmex",
    "symbol": "XBTUSD",
    "local_ts": {"seconds": 1_709_251_200, "nanos": 123_456_000},
    "ingest_ts": AT,
    "origin": 2,
    "meta": {"request_id": "r"},
}


def encode(line: bytes) -> bytes:
    context = Context(producer_id="here", origin=Origin.REPLAY, ingest_us=1, request_id="r")
    event = Encoder(context).encode_line(line)
    assert isinstance(event, Event)
    return event.value


@pytest.mark.parametrize("name", sorted(public.MESSAGES))
def test_names_numbers_and_types_stay(name: str) -> None:
    descriptor = pb.DESCRIPTOR.message_types_by_name[name]
    for field_name, (number, kind) in public.MESSAGES[name].items():
        field = descriptor.fields_by_name[field_name]
        assert field.number == number, field.full_name
        assert kind_of(field) == kind, field.full_name


@pytest.mark.parametrize("name", sorted(public.ENUMS))
def test_enum_values_stay(name: str) -> None:
    values = pb.DESCRIPTOR.enum_types_by_name[name].values_by_name
    assert {value: values[value].number for value in public.ENUMS[name]} == public.ENUMS[name]


def test_additions_keep_away_from_public_numbers() -> None:
    for name, fields in public.MESSAGES.items():
        for field in pb.DESCRIPTOR.message_types_by_name[name].fields:
            assert field.name in fields or 20 <= field.number < 100, field.full_name


def kind_of(field: FieldDescriptor) -> str:
    if field.type == field.TYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry:
            return "map"
        return (
            f"repeated {field.message_type.name}" if field.is_repeated else field.message_type.name
        )
    if field.type == field.TYPE_ENUM:
        return str(field.enum_type.name)
    return {number: name for name, number in public.SCALARS.items()}[field.type]


@pytest.mark.parametrize("case", messages.PAYLOAD_CASES)
def test_a_public_consumer_reads_what_we_write(case: str) -> None:
    ours = pb.NormalizedEvent.FromString(encode(LINES[case]))
    theirs = PublicEvent.FromString(encode(LINES[case]))
    assert theirs.WhichOneof("payload") == ours.WhichOneof("payload")
    agree(theirs, ours)


def agree(theirs: Message, ours: Message) -> None:
    """Every field that the consumer knows has our value."""
    for field in theirs.DESCRIPTOR.fields:
        their_value, our_value = getattr(theirs, field.name), getattr(ours, field.name)
        if kind_of(field) == "map":
            assert dict(their_value) == dict(our_value)
        elif field.type != field.TYPE_MESSAGE:
            assert their_value == our_value, field.full_name
        elif field.is_repeated:
            for their_item, our_item in zip(their_value, our_value, strict=True):
                agree(their_item, our_item)
        elif theirs.HasField(field.name):
            agree(their_value, our_value)


@pytest.mark.parametrize("case", messages.PAYLOAD_CASES)
def test_what_a_public_consumer_does_not_know_survives_it(case: str) -> None:
    passed_on = PublicEvent.FromString(encode(LINES[case])).SerializeToString()
    assert messages.encode_line(bronze.decode(passed_on).message) == LINES[case]


@pytest.mark.parametrize("case", messages.PAYLOAD_CASES)
def test_unknown_fields_survive_us(case: str) -> None:
    unknown = b"\xf2\x3f\x05later"  # field 1022, of a version to come
    event = pb.NormalizedEvent.FromString(encode(LINES[case]) + unknown)
    assert unknown in event.SerializeToString()
    assert messages.encode_line(bronze.decode(event.SerializeToString()).message) == LINES[case]


@pytest.mark.parametrize(
    ("payload", "values", "line"),
    [
        (
            "trade",
            {"trade_id": "a1", "price_str": "61130", "qty_str": "100", "side": 1, "event_ts": AT},
            LINES["trade"],
        ),
        (
            "liquidation",
            {"order_id": "a1", "price_str": "61130", "qty_str": "100", "side": 2, "event_ts": AT},
            LINES["liquidation"],
        ),
        (
            "book_ticker",
            {"best_bid_price_str": "1", "best_ask_qty_str": "2", "event_ts": AT},
            (
                b'{"type":"book_ticker","symbol":"XBTUSD","exchange":"bitmex","askAmount":2,'
                b'"bidPrice":1,"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "book_change",
            {"side": 1, "action": 1, "price_str": "1.5", "qty_str": "2", "event_ts": AT},
            (
                b'{"type":"book_change","symbol":"XBTUSD","exchange":"bitmex","isSnapshot":false,'
                b'"bids":[{"price":1.5,"amount":2}],"asks":[],"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "book_change",
            {"side": 2, "action": 2, "price_str": "1.5", "event_ts": AT},
            (
                b'{"type":"book_change","symbol":"XBTUSD","exchange":"bitmex","isSnapshot":false,'
                b'"bids":[],"asks":[{"price":1.5,"amount":0}],"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "book_snapshot",
            {
                "depth": 1,
                "bids": [{"price_str": "1", "qty_str": "2"}],
                "asks": [{}],
                "interval_ms": 100,
                "event_ts": AT,
            },
            (
                b'{"type":"book_snapshot","symbol":"XBTUSD","exchange":"bitmex",'
                b'"name":"book_snapshot_1_100ms","depth":1,"interval":100,'
                b'"bids":[{"price":1,"amount":2}],"asks":[{}],"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "grouped_book_snapshot",
            {"depth": 1, "grouping": 10, "interval_ms": 100, "event_ts": AT},
            (
                b'{"type":"book_snapshot","symbol":"XBTUSD","exchange":"bitmex",'
                b'"name":"book_snapshot_1_grouped10_100ms","depth":1,"interval":100,"grouping":10,'
                b'"bids":[],"asks":[],"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "quote",
            {"bid_price_str": "1", "bid_qty_str": "2", "event_ts": AT},
            (
                b'{"type":"book_snapshot","symbol":"XBTUSD","exchange":"bitmex","name":"quote",'
                b'"depth":1,"interval":0,"bids":[{"price":1,"amount":2}],"asks":[{}],'
                b'"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "derivative_ticker",
            {"mark_price_str": "0", "event_ts": AT},
            (
                b'{"type":"derivative_ticker","symbol":"XBTUSD","exchange":"bitmex","markPrice":0,'
                b'"timestamp":"2024-03-01T00:00:00.123Z",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
            ),
        ),
        (
            "error",
            {"details": "d", "subsequent_errors": 2, "code": 1},
            (
                b'{"type":"error","exchange":"bitmex","localTimestamp":"2024-03-01T00:00:00.123456Z",'
                b'"details":"d","subSequentErrorsCount":2,"code":"WS_CONNECT"}'
            ),
        ),
        (
            "disconnect",
            {"reason": "r", "close_code": 1006},
            (
                b'{"type":"disconnect","exchange":"bitmex",'
                b'"localTimestamp":"2024-03-01T00:00:00.123456Z","reason":"r","closeCode":1006}'
            ),
        ),
    ],
)
def test_we_read_what_a_public_producer_writes(
    payload: str, values: dict[str, object], line: bytes
) -> None:
    event = PublicEvent(**ENVELOPE, **{payload: values})
    decoded = bronze.decode(event.SerializeToString())
    assert messages.encode_line(decoded.message) == line
    assert decoded.envelope.context.source == "elsewhere"
    assert decoded.envelope.context.request_id == "r"
    assert (decoded.envelope.event_id, decoded.envelope.position) == ("", None)


@pytest.mark.parametrize(
    ("payload", "field"), [("option_summary", "option_type"), ("trade_bar", "interval_str")]
)
def test_what_the_public_schema_cannot_say_is_named(payload: str, field: str) -> None:
    event = PublicEvent(**ENVELOPE, **{payload: {"event_ts": AT}})
    with pytest.raises(bronze.DecodeError) as caught:
        bronze.decode(event.SerializeToString())
    assert caught.value.field == field
