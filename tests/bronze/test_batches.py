"""Batches of a pipe: however it is cut, ids and bytes are the same."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze import Context, EncodeError, Encoder
from tardis_machine.bronze import batches as module
from tardis_machine.bronze.batches import batches
from tests.support.messages import DISCONNECT, QUOTE, TRADE

LINES = [
    TRADE,
    TRADE,
    b"",
    QUOTE,
    b"nonsense",
    TRADE.replace(b"00.123456Z", b"01.123456Z"),
    TRADE.replace(b"00.123456Z", b"01.123456Z"),
    DISCONNECT.replace(b"00.123456Z", b"02.123456Z"),
    TRADE.replace(b'"a1"', b'"\\"localTimestamp\\":\\"x\\""').replace(b"00.123456Z", b"02.123456Z"),
]
NDJSON = b"".join(line + b"\n" for line in LINES)


def ids(parts: list[bytes]) -> list[str]:
    encoder = Encoder(Context())
    return [event.event_id for part in parts for event in encoder.encode_lines(part).events()]


@given(st.lists(st.integers(0, len(NDJSON)), max_size=8))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(NDJSON)]
    chunks = [NDJSON[a:b] for a, b in itertools.pairwise(borders)]
    parts = list(batches(chunks))
    assert b"".join(parts) == NDJSON
    assert ids(parts) == ids([NDJSON])


def test_a_batch_is_given_as_soon_as_its_time_is_over() -> None:
    reader = batches(iter([NDJSON, b""]))
    assert next(reader).count(b"\n") == 7


def test_a_last_line_without_end_is_read() -> None:
    assert list(batches([TRADE])) == [TRADE]


def test_one_local_time_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCH", 1000)
    with pytest.raises(EncodeError, match="over 1000 bytes in one line or one local time"):
        list(batches([TRADE + b"\n"] * 100))
