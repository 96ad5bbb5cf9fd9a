"""Envelopes to columns."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from tardis_machine.bronze import Context, Encoder
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake.decode.envelopes import PAYLOADS, data_types, envelopes, payloads
from tardis_machine.lake.silver import TABLES
from tests.lake.events import book_change, trade
from tests.support.payload_lines import LINES


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_an_envelope_becomes_columns_with_its_payload_as_bytes() -> None:
    columns, bad = envelopes(binary(trade(1), book_change(2, [("1", "2")])))
    assert bad == {}
    assert columns.column("exchange").to_pylist() == ["bitmex", "bitmex"]
    assert columns.column("trade").is_valid().to_pylist() == [True, False]
    assert columns.column("bookChange").is_valid().to_pylist() == [False, True]
    fields, bad = payloads("trade", columns.column("trade").drop_null())
    assert bad == {}
    assert fields.column("price_str").to_pylist() == ["61130.5"]


def test_every_payload_case_can_be_decoded() -> None:
    for case, message in PAYLOADS.items():
        fields, bad = payloads(case, binary(b""))
        assert bad == {}
        assert fields.schema.names == [field.name for field in message.fields]


@pytest.mark.parametrize("where", [[0], [99], [3, 4, 50], list(range(100))])
def test_bad_records_are_found_and_the_others_kept(where: list[int]) -> None:
    values: list[bytes | None] = [trade(number) for number in range(100)]
    for row in where:
        values[row] = b"garbage"
    columns, bad = envelopes(binary(*values))
    assert sorted(bad) == where
    assert all("decode" in reason for reason in bad.values())
    good = [row for row in range(100) if row not in where]
    assert columns.column("position").take(pa.array(good, pa.int64())).to_pylist() == good


def test_a_missing_value_is_a_bad_record() -> None:
    columns, bad = envelopes(binary(trade(1), None))
    assert bad == {1: "no value"}
    assert columns.num_rows == 2


def test_framing_of_a_schema_registry_is_taken_off() -> None:
    framed = b"\0\0\0\0\7\0" + trade(1)
    columns, bad = envelopes(binary(framed, trade(2), None))
    assert bad == {2: "no value"}
    assert columns.column("position").to_pylist()[:2] == [1, 2]


def test_fields_of_a_newer_schema_are_ignored() -> None:
    newer = trade(1) + bytes([0xC2, 0x3E, 0x02]) + b"hi"  # field 1000, length-delimited
    columns, bad = envelopes(binary(newer))
    assert bad == {}
    assert columns.column("position").to_pylist() == [1]


def test_corrupted_records_never_take_others_with_them() -> None:
    chance = random.Random(7)
    values = []
    for number in range(400):
        value = bytearray(trade(number))
        if number % 2:
            value[chance.randrange(len(value))] = chance.randrange(256)
        values.append(bytes(value))
    columns, bad = envelopes(binary(*values))
    assert columns.num_rows == 400
    assert all(row % 2 for row in bad)
    for row in range(0, 400, 2):
        assert columns.column("position")[row].as_py() == row


def test_an_envelope_without_payload_has_none() -> None:
    columns, _ = envelopes(binary(pb.NormalizedEvent(exchange="x").SerializeToString()))
    assert all(columns.column(case).null_count == 1 for case in PAYLOADS)


def test_a_bar_without_volume_has_no_average() -> None:
    bar = LINES["tradeBar"]
    lines = b"%b\n%b\n" % (bar, bar.replace(b'"vwap":1.25', b'"vwap":null'))
    columns, _ = envelopes(binary(*Encoder(Context()).encode_lines(lines).values()))
    fields, bad = payloads("tradeBar", columns.column("tradeBar"))
    assert bad == {}
    (vwap,) = (column for column in TABLES["tradeBar"].columns if column.name == "vwap")
    defects: dict[int, str] = {}
    assert vwap.read(fields, defects).to_pylist() == [Decimal("1.25"), None]
    assert defects == {}


def test_every_payload_case_names_its_data_type() -> None:
    bar = pb.TradeBar(name="trade_bar_10s", open_str="1").SerializeToString()
    assert data_types("tradeBar", binary(bar)).to_pylist() == ["trade_bar_10s"]
    quote = pb.Quote(name="quote", bid_price_str="1").SerializeToString()
    assert data_types("quote", binary(quote, quote)).to_pylist() == ["quote", "quote"]
    assert data_types("bookChange", binary(b"", b"")).to_pylist() == ["book_change"] * 2
    assert {len(data_types(case, binary(b""))) for case in PAYLOADS} == {1}
