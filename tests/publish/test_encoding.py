"""What is encoded: once for all buses, and nothing that no bus wants."""

from pathlib import Path

import msgspec
import pytest

from tardis_machine.bronze import decode
from tardis_machine.journal import Directory, Entry, Gap, Provenance, Reader, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.segment import bury, segment_path, tombstone_path
from tardis_machine.messages import ErrorMessage
from tardis_machine.publish.encoding import Encoding
from tests.support.events import lines

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


def test_entries_kept_for_other_buses_are_the_latest_of_a_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = lines(10)
    monkeypatch.setattr("tardis_machine.publish.encoding._KEPT_BYTES", 3 * len(data))
    encoding = Encoding([EVERYTHING, EVERYTHING])
    entries = [entry(data, 10)._replace(offset=number) for number in range(10)]

    encoded = [encoding.events("log", each)[1] for each in entries]

    is_kept = [encoding.events("log", entries[at])[1] is encoded[at] for at in (9, 8, 7)]
    assert is_kept == [True, True, True]
    assert encoding.events("log", entries[6])[1] is not encoded[6]


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


def test_a_bus_that_reads_further_at_once_gets_all_of_it() -> None:
    """Entries that lie there are read as one, and for another bus there may be more of them."""
    encoding = Encoding([EVERYTHING, EVERYTHING])
    for count in (10, 25, 10):
        _, batch = encoding.events("log", entry(lines(count), count))
        assert (batch.messages, len(batch.events())) == (count, count)


def skipped(path: Path) -> tuple[Writer, bytes]:
    """Write a log whose first segment, of 20 messages, may be skipped; gives that, too."""
    journal = Writer(path, "p", ["kafka"], max_bytes=1 << 20, fsync=None, segment_bytes=6_000)
    provenance = encode_provenance(Provenance("p", "r", origin=2))
    for first in range(0, 30, 10):
        assert journal.append(provenance, lines(10, start=first), 10, first)
    journal.close()
    return journal, segment_path(journal.path, 0).read_bytes()


def announced(path: Path) -> str:
    """Have the first thing that a log has to say, a gap, announced as a bus does."""
    [log] = Directory(path).logs()
    gap = Reader(log, 0, 0, 0).read()
    assert isinstance(gap, Gap)
    assert gap.messages == 20
    encoding = Encoding([EVERYTHING])
    event = encoding.event(*encoding.announce("kafka", gap))
    message = decode(event.value).message
    assert isinstance(message, ErrorMessage)
    return message.details


KNOWN = (
    "20 messages were not published to kafka: position 0 of request r to position 19 of request r"
)
UNKNOWN = "20 messages were not published to kafka: the journal is skipped there, positions unknown"


def test_what_was_skipped_is_announced_by_its_ends(tmp_path: Path) -> None:
    journal, _ = skipped(tmp_path)
    bury(journal.path, 0)
    assert announced(tmp_path) == KNOWN


@pytest.mark.parametrize("value", [0x00, 0x7F, 0xC1, 0xFF])
def test_no_damaged_byte_of_a_tombstone_stops_a_bus(tmp_path: Path, value: int) -> None:
    journal, _ = skipped(tmp_path)
    bury(journal.path, 0)
    path = tombstone_path(journal.path, 0)
    content = path.read_bytes()
    for place, byte in enumerate(content):
        path.write_bytes(content[:place] + bytes((value,)) + content[place + 1 :])
        assert announced(tmp_path) == (KNOWN if byte == value else UNKNOWN)


def test_no_damaged_byte_of_a_tombstone_without_a_checksum_stops_a_bus(tmp_path: Path) -> None:
    """As they were written before; whatever is said of them then, it is said."""
    journal, _ = skipped(tmp_path)
    bury(journal.path, 0)
    path = tombstone_path(journal.path, 0)
    content = msgspec.msgpack.encode(msgspec.msgpack.decode(path.read_bytes())[:5])
    path.write_bytes(content)
    assert announced(tmp_path) == KNOWN
    for place in range(len(content)):
        for value in (0x00, 0x7F, 0xC1, 0xFF):
            path.write_bytes(content[:place] + bytes((value,)) + content[place + 1 :])
            assert announced(tmp_path)


def test_no_byte_that_was_damaged_before_its_segment_was_skipped_stops_a_bus(
    tmp_path: Path,
) -> None:
    journal, content = skipped(tmp_path)
    for place in range(150):  # headers, provenance, and the line's beginning
        damaged = content[:place] + bytes((content[place] ^ 0xC1,)) + content[place + 1 :]
        segment_path(journal.path, 0).write_bytes(damaged)
        [log] = Directory(tmp_path).logs()
        log.bury(0)
        assert announced(tmp_path)
        assert log.skipped(0, 0) == 20
        assert log.end().messages == 30
