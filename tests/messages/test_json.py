"""JSON exactly as clients expect it, in both directions."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tardis_machine import messages
from tardis_machine.messages import (
    BookLevel,
    BookSnapshot,
    BookSnapshotLevel,
    Disconnect,
    MessageError,
    Milliseconds,
    Time,
    Trade,
)
from tardis_machine.messages.numbers import decimal_text, of_float
from tests.support.documents import Document, documents, javascript, javascript_number, numbers

TRADE = (
    b'{"type":"trade","symbol":"XBTUSD","exchange":"bitmex","id":"a1","price":61130,'
    b'"amount":0.00002142,"side":"buy","timestamp":"2024-03-01T00:00:00.123Z",'
    b'"localTimestamp":"2024-03-01T00:00:00.123000Z"}'
)


def trade(price: float) -> Trade:
    return Trade(
        symbol="XBTUSD",
        exchange="bitmex",
        price=price,
        amount=1.0,
        side="unknown",
        timestamp=Time(0),
        local_timestamp=Time(0),
    )


def test_a_message_reads_and_prints_as_it_was() -> None:
    message = messages.decode_line(TRADE)
    assert message == Trade(
        symbol="XBTUSD",
        exchange="bitmex",
        id="a1",
        price=61130.0,
        amount=0.00002142,
        side="buy",
        timestamp=Milliseconds(1_709_251_200_123_000),
        local_timestamp=Time(1_709_251_200_123_000),
    )
    assert messages.encode_line(message) == TRADE


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (61130.0, "61130"),
        (0.00002142, "0.00002142"),
        (0.000001, "0.000001"),
        (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1e15, "1000000000000000"),
        (1.5e16, "15000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-1.5e21, "-1.5e+21"),
        (-0.0, "0"),
        (0.0, "0"),
        (-5.0, "-5"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_numbers_print_as_javascript_prints_them(number: float, text: str) -> None:
    line = messages.encode_line(trade(number)).decode()
    assert f'"price":{text},"amount"' in line
    assert of_float(number) == text
    assert javascript_number(number) == text


@given(numbers)
def test_a_number_is_that_of_ecmascript(number: float) -> None:
    assert of_float(number) == javascript_number(number)


@given(numbers)
@example(5e-324)
@example(-1.7976931348623157e308)
def test_decimal_text_is_plain_and_exact(number: float) -> None:
    text = decimal_text(number)
    assert "e" not in text.lower()
    assert float(text) == number


@given(st.lists(documents(), max_size=5))
def test_json_survives_byte_for_byte(several: list[Document]) -> None:
    ndjson = "".join(f"{javascript(document)}\n" for document in several).encode()
    decoded = messages.decode_lines(ndjson)
    assert messages.encode_lines(decoded) == ndjson
    assert b"".join(messages.encode_line(message) + b"\n" for message in decoded) == ndjson


def test_holes_of_a_snapshot_stay_empty() -> None:
    snapshot = BookSnapshot(
        symbol="s",
        exchange="e",
        name="book_snapshot_3_0ms",
        depth=3,
        interval=0.0,
        bids=[BookSnapshotLevel(price=1.0, amount=2.0), BookSnapshotLevel(), BookSnapshotLevel()],
        asks=[BookSnapshotLevel()] * 3,
        timestamp=Time(0),
        local_timestamp=Time(0),
    )
    line = messages.encode_line(snapshot)
    assert b'"bids":[{"price":1,"amount":2},{},{}],"asks":[{},{},{}]' in line
    assert messages.decode_line(line) == snapshot


def test_an_empty_list_is_not_an_absent_one() -> None:
    without, empty = (
        Disconnect(exchange="e", local_timestamp=Time(0), symbols=symbols) for symbols in (None, [])
    )
    assert b"symbols" not in messages.encode_line(without)
    assert messages.encode_line(empty).endswith(b'"symbols":[]}')


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_json_cannot_say_is_refused(number: float) -> None:
    with pytest.raises(MessageError, match="price is") as caught:
        messages.encode_lines([trade(1.0), trade(number)])
    assert caught.value.field == "price"


def test_a_level_json_cannot_say_is_named() -> None:
    change = messages.BookChange(
        symbol="s",
        exchange="e",
        is_snapshot=False,
        bids=[],
        asks=[BookLevel(price=1.0, amount=1.0), BookLevel(price=float("nan"), amount=1.0)],
        timestamp=Time(0),
        local_timestamp=Time(0),
    )
    with pytest.raises(MessageError) as caught:
        messages.encode_line(change)
    assert caught.value.field == "asks[1].price"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ((b'"price":61130', b'"price":"61130"'), "price"),
        ((b'"side":"buy"', b'"side":"bid"'), "side"),
        ((b"00:00.123Z", b"00:00Z"), "timestamp"),
        ((b'"2024-03-01T00:00:00.123Z"', b"1709251200123"), "timestamp"),
        ((b'"2024-03-01T00:00:00.123Z"', b"null"), "timestamp"),
        ((b'"id":"a1"', b'"id":[]'), "id"),
        ((b'"symbol":"XBTUSD",', b""), None),
        ((b'"id"', b'"extra"'), None),
        ((b"}", b""), None),
    ],
)
def test_what_is_not_a_message_is_named_with_its_line(
    change: tuple[bytes, bytes], field: str | None
) -> None:
    bad = TRADE.replace(*change)
    with pytest.raises(MessageError, match="line 3: not a normalized message") as caught:
        messages.decode_lines(TRADE + b"\n\n" + bad + b"\n")
    assert caught.value.field == field
    assert caught.value.line == 2
