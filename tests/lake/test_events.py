"""What is found wrong with records, and what their columns say."""

from datetime import date

import pyarrow as pa
import pytest

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake import events
from tardis_machine.lake.decode.envelopes import envelopes
from tests.lake.events import START_US, trade


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
    [batch] = events.inspect([pa.RecordBatch.from_pydict(columns)])
    assert batch.schema.names == list(events.INSPECTED)
    found: list[dict[str, object]] = batch.to_pylist()
    return found


def test_a_sound_record_has_its_envelopes_columns() -> None:
    [row] = inspected(trade(5, trade_id="a"))
    assert row["reason"] is None
    assert (row["payload_case"], row["data_type"]) == ("trade", "trade")
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
        # A group of an unknown number that ends as another.
        (b"\xfb\x0e\x74", "failed to decode"),
        (changed(exchange="é" * 41), "exchange of more than 80 bytes"),
        (changed(exchange="a\0"), "exchange with a NUL"),
        # It would be null in the table, and never be found again.
        (changed(exchange="__HIVE_DEFAULT_PARTITION__"), "exchange of the name __HIVE"),
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


def test_the_last_of_several_meta_entries_of_a_key_counts() -> None:
    def told(*keys: str) -> bytes:
        # An entry each, as they may be appended to encoded bytes.
        each = [pb.NormalizedEvent(meta={key: f"{n}"}) for n, key in enumerate(keys)]
        return trade(0) + b"".join(event.SerializeToString() for event in each)

    asked = [("a", "b"), (), ("b", "a"), ("a", "b", "a", "a"), ("c",) * 100]
    rows = inspected(*(told(*keys) for keys in asked))
    assert [row["meta"] for row in rows] == [
        [("a", "0"), ("b", "1")],
        [],
        [("b", "0"), ("a", "1")],
        [("b", "1"), ("a", "3")],
        [("c", "99")],
    ]
    # Batches of one task have one schema, whatever is in them.
    metas = [envelopes(pa.array([told(*keys)])).columns.column("meta") for keys in asked]
    assert {events._told_last(meta).type for meta in metas} == {metas[0].type}


def test_a_payload_of_a_newer_version_is_kept() -> None:
    event = pb.NormalizedEvent.FromString(changed(trade=None))
    newer = event.SerializeToString() + bytes([0xFA, 0x06, 0x02]) + b"hi"  # field 111
    [row] = inspected(newer)
    assert (row["reason"], row["payload_case"], row["data_type"]) == (None, events.NEWER, None)


def test_a_payload_that_cannot_be_decoded_is_kept_in_bronze() -> None:
    # Field 100 with a payload that is no message.
    broken = changed(trade=None) + bytes([0xA2, 0x06, 0x03]) + b"\xff\xff\xff"
    [row] = inspected(broken)
    assert (row["reason"], row["payload_case"]) == (None, "trade")
