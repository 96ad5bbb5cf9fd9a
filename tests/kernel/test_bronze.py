"""The compiled encoder beside the Python one: the same batch, whatever the lines."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages import PAYLOAD_CASES
from tests.kernel.implementations import batch_content, encoders
from tests.support.documents import Document, documents, javascript
from tests.support.messages import BAR, CONTEXT, DISCONNECT, QUOTE, TRADE

INCLUDES = st.one_of(st.none(), st.sets(st.sampled_from(PAYLOAD_CASES)))


PYTHON, COMPILED = encoders(CONTEXT)


def assert_same(ndjson: bytes, position: int = 0, include: set[str] | None = None) -> None:
    expected = batch_content(PYTHON.encode_lines(ndjson, position, include))
    assert batch_content(COMPILED.encode_lines(ndjson, position, include)) == expected


def lines(several: list[Document]) -> bytes:
    return "".join(f"{javascript(document)}\n" for document in several).encode()


@given(st.lists(documents(), max_size=8), st.integers(0, 2**40), INCLUDES)
def test_every_document(several: list[Document], position: int, include: set[str] | None) -> None:
    assert_same(lines(several), position, include)


@given(st.lists(documents(), min_size=1, max_size=4), INCLUDES, st.data())
def test_damaged_lines(
    several: list[Document], include: set[str] | None, data: st.DataObject
) -> None:
    damaged = [bytearray(lines([each])[:-1]) for each in several]
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(damaged))
        at = data.draw(st.integers(0, len(line)))
        damage = data.draw(
            st.sampled_from((b"", b'"', b"}", b"0", b"e", b"\\", b"\xff", b",", b" "))
        )
        line[at : at + data.draw(st.integers(0, 3))] = damage
    assert_same(b"\n".join(damaged), 0, include)


@given(documents(), st.data())
def test_a_line_that_is_broken_in_two(document: Document, data: st.DataObject) -> None:
    line = lines([document])
    at = data.draw(st.integers(0, len(line)))
    assert_same(line[:at] + b"\n" + line[at:] + TRADE)
    assert_same(line[:-1] + TRADE)


@pytest.mark.parametrize(
    "number",
    [
        "1e999",
        "61130.0",
        "-0",
        "-0.0",
        "0.00100000",
        "1E-7",
        "1" * 40,
        "0." + "3" * 40,
        "007",
        "1e5",
        "9007199254740993",
        "123456789012345678",
        "0.1234567890123456789",
        "5e-324",
        "+1",
        "1.",
        ".5",
    ],
)
def test_numbers_in_forms_that_no_emitter_prints(number: str) -> None:
    for line in (TRADE, BAR, QUOTE):
        for key in ("price", "amount", "interval", "open", "vwap", "depth", "trades"):
            assert_same(
                re.sub(
                    rb'"%b":[0-9.]+' % key.encode(),
                    b'"%b":%b' % (key.encode(), number.encode()),
                    line,
                )
            )


def test_keys_in_another_order_and_blanks() -> None:
    ordered = b'"type":"trade","symbol":"XBTUSD"'
    for other in (b'"symbol":"XBTUSD","type":"trade"', b'"type": "trade","symbol":"XBTUSD"'):
        changed = TRADE.replace(ordered, other)
        assert changed != TRADE
        assert_same(changed + b"\n" + TRADE)
        assert_same(changed, 0, {"quote"})
    ticker = (
        b'{"type":"book_ticker","symbol":"s","exchange":"e","bidPrice":1,"bidAmount":2,'
        b'"askPrice":3,"askAmount":4,"timestamp":"2024-03-01T00:00:00.123Z",'
        b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}'
    )
    assert_same(ticker)
    assert_same(ticker.replace(b'"askPrice"', b'"bidPrice"'))


@pytest.mark.parametrize(
    "include", [{"quote"}, {"bookSnapshot"}, {"groupedBookSnapshot", "trade"}, set()]
)
@pytest.mark.parametrize("grouping", [b"", b'"grouping":10,'])
@pytest.mark.parametrize("name", [b"quote", b"quote_1s", b"book_snapshot_1_0ms", b"\\u0071uote"])
def test_snapshots_of_cases_that_nobody_wants(
    include: set[str], grouping: bytes, name: bytes
) -> None:
    line = QUOTE.replace(b'"name":"quote"', b'"name":"%b"' % name)
    line = line.replace(b'"bids"', grouping + b'"bids"')
    assert_same(b"\n".join((TRADE, line, DISCONNECT, line[:-4], line)), 5, include)


def test_excluded_lines_are_counted_and_not_read() -> None:
    for each in (PYTHON, COMPILED):
        batch = each.encode_lines(b'{"type":"trade",nothing\n' + QUOTE, 3, {"quote"})
        assert (batch.messages, len(batch), list(batch.rejected)) == (2, 1, [])
        assert batch.buffers.positions.tolist() == [4]
        assert [series.payload_case for series in batch.buffers.table] == ["quote"]


def test_thousands_of_levels_and_of_series() -> None:
    levels = ",".join(f'{{"price":{n / 7!r},"amount":{n}}}' for n in range(3000)).encode()
    change = (
        b'{"type":"book_change","symbol":"S","exchange":"e","isSnapshot":true,"bids":[%b],'
        b'"asks":[],"timestamp":"2024-03-01T00:00:00.123Z",'
        b'"localTimestamp":"2024-03-01T00:00:00.123456Z"}' % levels
    )
    assert_same(b"\n".join(change.replace(b'"S"', b'"S%d"' % n) for n in range(20)))
    assert_same(b"\n".join(TRADE.replace(b"XBTUSD", b"S%d" % n) for n in range(3000)))
