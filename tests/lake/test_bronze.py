"""What is found wrong with records, and what their columns say."""

from datetime import date

import pyarrow as pa
import pytest

from lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake import bronze
from tests.lake.events import START_US, book_change, trade


def inspected(*values: bytes | None) -> list[dict[str, object]]:
    count = len(values)
    columns = {
        "bus": pa.repeat("test", count),
        "destination": pa.repeat("events", count),
        "partition": pa.array(range(count), pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.nulls(count, pa.timestamp("us", tz="UTC")),
        "key": pa.nulls(count, pa.binary()),
        "headers": pa.nulls(count),
        "value": pa.array(values, pa.binary()),
    }
    [batch] = bronze.inspect([pa.RecordBatch.from_pydict(columns)])
    assert batch.schema.names == list(bronze.INSPECTED)
    found: list[dict[str, object]] = batch.to_pylist()
    return found


def test_a_sound_record_has_its_envelopes_columns() -> None:
    [row] = inspected(trade(5, trade_id="a"))
    assert row["reason"] is None
    assert row["defect"] is None
    assert row["payload_case"] == "trade"
    assert (row["exchange"], row["symbol"], row["day"]) == ("bitmex", "XBTUSD", date(2024, 3, 1))
    assert (row["origin"], row["position"]) == ("replay", 5)


def test_the_day_is_that_of_local_time() -> None:
    event = pb.NormalizedEvent.FromString(trade(0))
    event.local_ts.FromMicroseconds(START_US - 1)
    event.ingest_ts.FromMicroseconds(START_US + 10**12)
    [row] = inspected(event.SerializeToString())
    assert row["day"] == date(2024, 2, 29)


def changed(**fields: object) -> bytes:
    event = pb.NormalizedEvent.FromString(trade(0))
    for name, value in fields.items():
        if value is None:
            event.ClearField(name)
        else:
            setattr(event, name, value)
    return event.SerializeToString()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"garbage", "failed to decode"),
        (None, "no value"),
        (b"", "no local_ts"),
        (changed(local_ts=None), "no local_ts"),
        (changed(exchange=""), "no exchange"),
        (changed(event_id=""), "no event id"),
        (changed(event_id="A" * 32), "no event id"),
        (changed(trade=None), "no payload"),
    ],
)
def test_what_bronze_cannot_take_has_a_reason(value: bytes | None, reason: str) -> None:
    good, bad = inspected(trade(0), value)
    assert good["reason"] is None
    assert str(bad["reason"]).startswith(reason)


def test_times_beyond_the_calendar_have_a_reason() -> None:
    event = pb.NormalizedEvent.FromString(trade(0))
    event.local_ts.seconds = 2**61
    [row] = inspected(event.SerializeToString())
    assert "outside the years" in str(row["reason"])


@pytest.mark.parametrize(
    ("value", "defect"),
    [
        (trade(0, price="0.1234567890123456789"), "price '0.1234567890123456789' does not fit"),
        (trade(0, amount="123456789012345678901"), "amount '123456789012345678901' does not fit"),
        (trade(0, price=""), "price is missing"),
        (trade(0, price="NaN"), "price 'NaN' does not fit"),
        (
            book_change(0, [("1", "1"), ("2", "0.0000000000000000001")]),
            "bids.amount '0.0000000000000000001' does not fit",
        ),
    ],
)
def test_what_silver_cannot_hold_has_a_defect_and_bronze_takes_it(
    value: bytes, defect: str
) -> None:
    before, bad, after = inspected(trade(1), value, book_change(2, [("1", "2")]))
    assert bad["reason"] is None
    assert str(bad["defect"]).startswith(defect)
    assert before["defect"] is None
    assert after["defect"] is None


def test_a_payload_that_cannot_be_decoded_is_a_defect() -> None:
    event = pb.NormalizedEvent.FromString(trade(0))
    event.ClearField("trade")
    # Field 100 with a payload that is no message.
    broken = event.SerializeToString() + bytes([0xA2, 0x06, 0x03]) + b"\xff\xff\xff"
    [row] = inspected(broken)
    assert row["payload_case"] == "trade"
    assert "decode" in str(row["defect"])
