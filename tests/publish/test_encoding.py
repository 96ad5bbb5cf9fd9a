"""What is encoded: once for all buses, and nothing that no bus wants."""

import pytest

from tardis_machine.journal import Entry, Provenance
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.publish.encoding import Encoding
from tests.buses.events import lines

EVERYTHING: frozenset[str] = frozenset()
TRADES = frozenset({"trade"})
BOOKS = frozenset({"bookChange"})


def entry(data: bytes, messages: int) -> Entry:
    provenance = encode_provenance(Provenance("p", "r"))
    return Entry(0, 28, 28 + len(data), provenance, 0, messages, 1, False, data)


@pytest.mark.parametrize(
    ("include", "encoded"),
    [
        ([TRADES], 75),
        ([BOOKS], 25),
        ([TRADES, TRADES], 75),
        ([TRADES, BOOKS], 100),
        ([TRADES, EVERYTHING], 100),
        ([frozenset({"quote"})], 0),
    ],
)
def test_payload_cases_that_no_bus_wants_are_not_encoded(
    include: list[frozenset[str]], encoded: int
) -> None:
    """They are counted all the same: what a bus leaves out is filtered, not lost."""
    _, batch = Encoding(include).events("log", entry(lines(100), 100))
    assert len(batch.events()) == encoded
    assert batch.messages == 100


def test_a_line_that_no_bus_wants_cannot_be_a_dead_letter() -> None:
    change = b'{"type":"book_change","exchange":"bitmex","symbol":"XBTUSD","bids":"none"}\n'
    data = lines(1) + change
    _, batch = Encoding([TRADES]).events("log", entry(data, 2))
    assert (len(batch.events()), len(batch.rejected), batch.messages) == (1, 0, 2)
    _, batch = Encoding([EVERYTHING]).events("log", entry(data, 2))
    assert len(batch.rejected) == 1


def test_buses_that_are_level_share_what_was_encoded() -> None:
    encoding = Encoding([TRADES, EVERYTHING])
    first = encoding.events("log", entry(lines(100), 100))
    assert encoding.events("log", entry(lines(100), 100))[1] is first[1]
    assert encoding.events("another", entry(lines(100), 100))[1] is not first[1]
