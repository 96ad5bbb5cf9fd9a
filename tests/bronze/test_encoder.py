"""Batches: what events carry, what is rejected and why."""

import pytest

from tardis_machine import bronze, messages
from tardis_machine.bronze import Context, EncodeError, Encoder, Event, Rejected
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import BookChange, BookLevel, Milliseconds, Time, Trade
from tests.support.messages import BAR, CONTEXT, DISCONNECT, QUOTE, TRADE


def encode_one(line: bytes, position: int = 0) -> Event:
    event = Encoder(CONTEXT).encode_line(line, position)
    assert isinstance(event, Event)
    return event


def reject_one(line: bytes) -> EncodeError:
    rejected = Encoder(CONTEXT).encode_line(line)
    assert isinstance(rejected, Rejected)
    assert rejected.line == line
    return rejected.error


def test_an_event_carries_what_routing_needs() -> None:
    event = encode_one(TRADE, 41)
    assert (event.payload_case, event.exchange, event.symbol) == ("trade", "bitmex", "XBTUSD")
    assert (event.data_type, event.local_us, event.position) == ("trade", 1_709_251_200_123_456, 41)
    assert len(event.event_id) == 32


@pytest.mark.parametrize(
    ("line", "case", "data_type", "symbol"),
    [
        (BAR, "tradeBar", "trade_bar_0.5vol", "XBTUSD"),
        (QUOTE, "quote", "quote", "XBTUSD"),
        (DISCONNECT, "disconnect", "disconnect", ""),
    ],
)
def test_computed_and_control_events(line: bytes, case: str, data_type: str, symbol: str) -> None:
    event = encode_one(line)
    assert (event.payload_case, event.data_type, event.symbol) == (case, data_type, symbol)


def test_the_envelope_has_the_whole_context() -> None:
    decoded = bronze.decode(encode_one(TRADE, 3).value)
    assert decoded.envelope.context == CONTEXT
    assert (decoded.envelope.position, decoded.envelope.payload_case) == (3, "trade")
    meta = pb.NormalizedEvent.FromString(encode_one(TRADE).value).meta
    assert dict(meta) == {
        "request_id": "r",
        "session_id": "s",
        "transport": "ws",
        "route": "/ws-stream-normalized",
        "team": "desk",
    }


def test_an_empty_context_leaves_everything_out() -> None:
    event = Encoder(Context(source="")).encode_line(TRADE)
    assert isinstance(event, Event)
    parsed = pb.NormalizedEvent.FromString(event.value)
    assert not parsed.HasField("ingest_ts")
    assert (parsed.source, parsed.producer_id, parsed.origin, dict(parsed.meta)) == ("", "", 0, {})
    assert bronze.decode(event.value).envelope.context == Context(source="")


def test_an_encoder_takes_the_next_context() -> None:
    encoder = Encoder(CONTEXT)
    encoder.encode_lines(TRADE)
    encoder.context = Context(request_id="next")
    event = encoder.encode_line(TRADE)
    assert isinstance(event, Event)
    assert bronze.decode(event.value).envelope.context == Context(request_id="next")


@pytest.mark.parametrize(
    "context",
    [
        Context(ingest_us=2**80),
        Context(ingest_us=10**18),
        Context(ingest_us=-1),
        Context(origin=9),  # type: ignore[arg-type]
        Context(source="\ud800"),
        Context(meta={"key": 1}),  # type: ignore[dict-item]
    ],
)
def test_a_context_no_envelope_can_hold_is_refused(context: Context) -> None:
    with pytest.raises(EncodeError, match="context is invalid"):
        Encoder(context)


def test_an_empty_batch_has_no_events() -> None:
    for nothing in (b"", b"\n", b" \n\n"):
        batch = Encoder(CONTEXT).encode_lines(nothing)
        assert (len(batch), batch.messages, batch.in_order()) == (0, 0, [])


def test_public_fields_are_filled_where_whole() -> None:
    bar = pb.NormalizedEvent.FromString(encode_one(BAR).value).trade_bar
    assert (bar.interval, bar.interval_ms, bar.interval_str) == (0, 0, "0.5")
    timed = BAR.replace(b'"interval":0.5,"kind":"volume"', b'"interval":1000,"kind":"time"')
    bar = pb.NormalizedEvent.FromString(encode_one(timed).value).trade_bar
    assert (bar.interval, bar.interval_ms, bar.interval_str) == (1000, 1000, "1000")


def test_a_bad_line_is_rejected_and_the_others_pass() -> None:
    lines = [TRADE, b'{"type":"trade"', BAR, TRADE.replace(b"2024-03-01T00:00:00.123Z", b"soon")]
    batch = Encoder(CONTEXT).encode_lines(b"\n".join(lines) + b"\n", 10)
    results = batch.in_order()
    assert batch.messages == 4
    assert [type(result) for result in results] == [Event, Rejected, Event, Rejected]
    assert [result.position for result in results] == [10, 11, 12, 13]
    assert [result.line for result in results if isinstance(result, Rejected)] == lines[1::2]


def test_a_rejected_line_does_not_change_the_others() -> None:
    alone = Encoder(CONTEXT).encode_lines(TRADE + b"\n" + TRADE)
    mixed = Encoder(CONTEXT).encode_lines(TRADE + b"\n{\n" + TRADE)
    assert alone.buffers.ids == mixed.buffers.ids


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ((b'"price":61130', b'"price":null'), "price"),
        ((b'"price":61130', b'"price":"61130"'), "price"),
        ((b'"price":61130', b'"price":1e999'), "price"),
        ((b'"amount":100', b'"amount":true'), "amount"),
        ((b'"id":"a1"', b'"id":null'), "id"),
        ((b"XBTUSD", b"X" * 10_000), "symbol"),
        ((b'"a1"', b'"%b"' % (b"a" * 10_000)), "id"),
        ((b'"side":"buy"', b'"side":"bid"'), "side"),
        ((b"2024-03-01T00:00:00.123Z", b"1969-12-31T23:59:59.999Z"), "timestamp"),
        ((b"2024-03-01T00:00:00.123Z", b"2024-03-01"), "timestamp"),
        ((b"2024-03-01T00:00:00.123456Z", b"1969-12-31T23:59:59.999999Z"), "localTimestamp"),
        ((b"2024-03-01T00:00:00.123456Z", b"2024-03-01T00:00:00.1234567Z"), "localTimestamp"),
    ],
)
def test_the_error_names_field_type_exchange_and_symbol(
    change: tuple[bytes, bytes], field: str
) -> None:
    error = reject_one(TRADE.replace(*change))
    assert (error.field, error.message_type, error.exchange) == (field, "trade", "bitmex")
    assert error.symbol == ("X" * 10_000 if field == "symbol" else "XBTUSD")
    assert "cannot encode trade of bitmex X" in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"type":"unheard of"}',
        b'{"type":"trade"}',
        b'{"type":7}',
        b'{"a":' + b"[" * 100_000,
        TRADE[:-1],
        TRADE.replace(b"XBTUSD", b"\xff"),
        TRADE.replace(b"XBTUSD", rb"\ud800"),
        TRADE.replace(b"}", b',"more":1}'),
        TRADE + b"x",
    ],
)
def test_nothing_but_rejection_comes_of_garbage(line: bytes) -> None:
    assert str(reject_one(line)).startswith("cannot encode ")


def test_a_single_message_raises() -> None:
    message = messages.decode_line(TRADE)
    assert isinstance(message, Trade)
    for number in (float("nan"), float("inf"), float("-inf")):
        message.price = number
        with pytest.raises(EncodeError, match="price") as caught:
            bronze.encode(message, CONTEXT)
        assert (caught.value.field, caught.value.symbol) == ("price", "XBTUSD")


def test_times_outside_of_any_calendar_raise() -> None:
    message = messages.decode_line(TRADE)
    for microseconds in (-1, 10**18, -(10**18)):
        message.local_timestamp = Time(microseconds)
        with pytest.raises(EncodeError):
            bronze.encode(message, CONTEXT)


def test_counts_out_of_range_raise() -> None:
    bar = messages.decode_line(BAR)
    assert isinstance(bar, messages.TradeBar)
    bar.trades = -1
    with pytest.raises(EncodeError) as caught:
        bronze.encode(bar, CONTEXT)
    assert caught.value.field == "trades"


def test_negative_prices_and_amounts_are_fine() -> None:
    change = BookChange(
        symbol="s",
        exchange="e",
        is_snapshot=False,
        bids=[BookLevel(price=-37.63, amount=-1.0)],
        asks=[],
        timestamp=Milliseconds(0),
        local_timestamp=Time(0),
    )
    assert bronze.decode(bronze.encode(change, CONTEXT)).message == change


def test_a_negative_position_raises() -> None:
    with pytest.raises(EncodeError, match="position counts from 0"):
        Encoder(CONTEXT).encode_lines(TRADE, -1)
