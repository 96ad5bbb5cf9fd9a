"""Payloads to Silver columns, exact."""

from decimal import Decimal

import pyarrow as pa
import pytest

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake import silver
from tardis_machine.lake.decode.envelopes import PAYLOADS


def read(case: str, *messages: object) -> list[dict[str, object]]:
    values = pa.array([m.SerializeToString() for m in messages], pa.binary())  # type: ignore[attr-defined]
    columns, defects = silver.read(case, values)
    for column in silver.TABLES[case].columns:
        assert columns[column.name].type == column.arrow_type, column.name
    assert defects == {}
    rows: list[dict[str, object]] = pa.RecordBatch.from_pydict(columns).to_pylist()
    return rows


def test_every_payload_case_has_a_table() -> None:
    assert set(silver.TABLES) == set(PAYLOADS)


def test_decimals_are_exact_and_absence_is_not_zero() -> None:
    present = pb.DerivativeTicker(mark_price_str="61130.000000000000000001", funding_rate_str="0")
    present.event_ts.FromMicroseconds(1_700_000_000_123_456)
    [row] = read("derivativeTicker", present)
    assert row["mark_price"] == Decimal("61130.000000000000000001")
    assert row["funding_rate"] == Decimal(0)
    assert row["last_price"] is None
    assert row["funding_ts"] is None
    assert str(row["event_ts"]) == "2023-11-14 22:13:20.123456+00:00"


def test_levels_stay_in_their_message_and_keep_their_order() -> None:
    first, second = pb.BookChange(is_snapshot=True), pb.BookChange()
    first.event_ts.FromSeconds(1)
    second.event_ts.FromSeconds(2)
    first.bids.add(price_str="2.5", qty_str="0")
    first.bids.add(price_str="2", qty_str="10")
    second.asks.add(price_str="0.00000000000000001", qty_str="1")
    rows = read("bookChange", first, second)
    assert rows[0]["bids"] == [
        {"price": Decimal("2.5"), "amount": Decimal(0)},
        {"price": Decimal(2), "amount": Decimal(10)},
    ]
    assert rows[0]["asks"] == rows[1]["bids"] == []
    assert rows[1]["asks"] == [{"price": Decimal("1e-17"), "amount": Decimal(1)}]
    assert [row["is_snapshot"] for row in rows] == [True, False]


def test_a_missing_level_of_a_snapshot_is_null() -> None:
    snapshot = pb.BookSnapshot(depth=2, name="book_snapshot_2_1s", interval_str="1000")
    snapshot.event_ts.FromSeconds(1)
    snapshot.bids.add(price_str="1", qty_str="2")
    snapshot.bids.add()
    [row] = read("bookSnapshot", snapshot)
    assert row["bids"] == [
        {"price": Decimal(1), "amount": Decimal(2)},
        {"price": None, "amount": None},
    ]
    assert row["depth"] == 2


@pytest.mark.parametrize(
    ("number", "word"), [(0, "unknown"), (1, "buy"), (2, "sell"), (17, "unknown"), (-3, "unknown")]
)
def test_sides_are_words(number: int, word: str) -> None:
    liquidation = pb.Liquidation(price_str="1", qty_str="1")
    liquidation.side = number  # type: ignore[assignment]
    liquidation.event_ts.FromSeconds(1)
    [row] = read("liquidation", liquidation)
    assert row["side"] == word


def test_a_disconnect_of_some_symbols_differs_from_one_of_all() -> None:
    some = pb.ControlDisconnect()
    some.symbols.symbols.append("XBTUSD")
    rows = read("disconnect", pb.ControlDisconnect(), some)
    assert [row["all_symbols"] for row in rows] == [True, False]
    assert rows[1]["symbols"] == ["XBTUSD"]


def test_a_quote_of_several_levels_is_a_defect() -> None:
    quote = pb.Quote(has_levels=True)
    quote.event_ts.FromSeconds(1)
    values = pa.array([quote.SerializeToString()], pa.binary())
    _, defects = silver.read("quote", values)
    assert "other than one level" in defects[0]


def defect(case: str, message: object) -> str:
    """Read a bad message between good ones; give its defect."""
    payload = getattr(pb, case[0].upper() + case[1:])
    good = payload(price_str="1", qty_str="1") if case == "trade" else payload()
    good.event_ts.FromSeconds(1)
    values = [each.SerializeToString() for each in (good, message, good)]  # type: ignore[attr-defined]
    _, defects = silver.read(case, pa.array(values, pa.binary()))
    assert list(defects) == [1]
    return defects[1]


def trade(price: str, amount: str) -> pb.Trade:
    made = pb.Trade(price_str=price, qty_str=amount)
    made.event_ts.FromSeconds(1)
    return made


@pytest.mark.parametrize(
    ("price", "amount", "said"),
    [
        ("0.1234567890123456789", "1", "price '0.1234567890123456789' does not fit"),
        ("1", "123456789012345678901", "amount '123456789012345678901' does not fit"),
        # Arrow would cast these to other numbers.
        ("1" + "0" * 30, "1", "price '1000000000000000000000000000000' does not fit"),
        ("-1" + "0" * 30 + ".5", "1", "price '-1000000000000000000000000000000.5' does not fit"),
        ("99999999999999999999.1234567890123456789", "1", "price '99999999999999999999.1234567"),
        ("1", "1E+30", "amount '1E+30' does not fit"),
        ("1", "1.3810507024936420076816e21", "amount '1.3810507024936420076816e21' does not fit"),
        ("1", "1e999999999999", "amount '1e999999999999' does not fit"),
        # And these it would round to 0.
        (
            "1",
            ".10483387211204333853952347154363667531e-19",
            "amount '.104833872112043338539523471",
        ),
        ("1e-999999999", "1", "price '1e-999999999' does not fit"),
        ("", "1", "price is missing"),
        ("NaN", "1", "price 'NaN' does not fit"),
    ],
)
def test_what_silver_cannot_hold_has_a_defect(price: str, amount: str, said: str) -> None:
    assert defect("trade", trade(price, amount)).startswith(said)


def test_what_silver_can_just_hold_is_exact() -> None:
    largest = "9" * 20 + "." + "9" * 18
    [row] = read("trade", trade(largest, f"-{largest}"))
    assert (row["price"], row["amount"]) == (Decimal(largest), Decimal(f"-{largest}"))
    exponents = ("1.5e19", "-2.5E+3"), ("1e-18", f"{'7' * 30}00e-18"), ("0e-40", "+1e1")
    for price, amount in exponents:
        [row] = read("trade", trade(price, amount))
        assert (row["price"], row["amount"]) == (Decimal(price), Decimal(amount))


def test_levels_that_do_not_fit_are_a_defect_of_their_message() -> None:
    change = pb.BookChange()
    change.event_ts.FromSeconds(1)
    change.bids.add(price_str="1", qty_str="1")
    change.bids.add(price_str="2", qty_str="0.0000000000000000001")
    said = defect("bookChange", change)
    assert said.startswith("bids.amount '0.0000000000000000001' does not fit")


def test_a_payload_that_cannot_be_decoded_is_a_defect() -> None:
    _, defects = silver.read("trade", pa.array([b"\xff\xff\xff"], pa.binary()))
    assert "decode" in defects[0]
