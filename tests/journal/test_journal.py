"""What the model leaves out: writes that fail, damage, and reading piecewise."""

import errno
import os
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from tardis_machine.journal import (
    Directory,
    Entry,
    Gap,
    Log,
    Provenance,
    Reader,
    Writer,
)
from tardis_machine.journal import entry as entries
from tardis_machine.journal import reader as reading
from tardis_machine.journal.segment import HEADER_BYTES, aside, keep_aside, segment_path

PROVENANCE = Provenance("producer", "request", "session", 2, "http", "/replay-normalized")


def writer(
    path: Path,
    *,
    fsync: float | None = None,
    max_bytes: int = 1 << 20,
    segment_bytes: int = 1 << 20,
) -> Writer:
    return Writer(
        path, "producer", ["kafka"], max_bytes=max_bytes, fsync=fsync, segment_bytes=segment_bytes
    )


def append(journal: Writer, number: int, size: int = 100) -> bool:
    data = b"%d " % number + b"x" * size + b"\n"
    return journal.append(entries.encode_provenance(PROVENANCE), data, 1, number)


def read_all(log: Log) -> list[Entry | Gap]:
    reader = Reader(log, 0, 0, 0)
    found = []
    while (each := reader.read()) is not None:
        found.append(each)
    return found


def positions(found: Sequence[Entry | Gap]) -> list[int | str]:
    return [each.position if isinstance(each, Entry) else each.reason for each in found]


def only_log(path: Path) -> Log:
    [log] = Directory(path).logs()
    return log


def test_an_entry_comes_back_as_it_was_written(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    provenance = entries.encode_provenance(PROVENANCE)
    assert journal.append(provenance, b"a\nb\n", 2, 7)
    assert journal.append(provenance, bytearray(b"hidden\n"), 1, 9, hidden=True)
    journal.close()
    first, second = read_all(only_log(tmp_path))
    assert isinstance(first, Entry)
    assert isinstance(second, Entry)
    assert entries.decode_provenance(first.provenance) == PROVENANCE
    assert (first.data, first.messages, first.position, first.hidden) == (b"a\nb\n", 2, 7, False)
    assert (second.data, second.messages, second.position) == (b"hidden\n", 1, 9)
    assert second.hidden
    assert 0 < first.ingest_us <= second.ingest_us


def test_a_full_disk_is_a_full_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = writer(tmp_path)
    assert append(journal, 0)

    def torn_write(fd: int, parts: Sequence[bytes]) -> int:
        os.write(fd, parts[0])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", torn_write)
        assert not append(journal, 1)
    assert append(journal, 2)
    journal.close()
    assert positions(read_all(only_log(tmp_path))) == [0, 2]
    assert only_log(tmp_path).end().messages == 2


def test_other_errors_of_the_disk_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = writer(tmp_path)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", broken)
        with pytest.raises(OSError, match="Input/output"):
            append(journal, 0)
    journal.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = writer(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", lambda fd, parts: os.write(fd, parts[0]))
        assert append(journal, 0)
    journal.close()
    assert positions(read_all(only_log(tmp_path))) == [0]


def test_one_damaged_entry_costs_only_itself(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    for number in range(5):
        append(journal, number)
    journal.close()
    log = only_log(tmp_path)
    second = read_all(log)[1]
    path = segment_path(log.path, 0)
    content = bytearray(path.read_bytes())
    content[second.offset + 80] ^= 0xFF
    path.write_bytes(content)
    found = read_all(only_log(tmp_path))
    assert positions(found) == [0, "corrupt", 2, 3, 4]
    assert found[1].messages == 1


def damage(path: Path, *places: int, size: int = 20) -> None:
    content = bytearray(path.read_bytes())
    for place in places:
        content[place : place + size] = bytes(size)
    path.write_bytes(content)


def twelve(directory: Path) -> Log:
    """Write a log of twelve entries in several segments, and end it."""
    journal = writer(directory, segment_bytes=1_000)
    for number in range(12):
        append(journal, number)
    journal.close()
    return only_log(directory)


def test_a_damaged_header_costs_its_entry_and_is_counted_with_the_next_segment(
    tmp_path: Path,
) -> None:
    log = twelve(tmp_path)
    whole = read_all(log)
    damage(segment_path(log.path, 0), whole[1].offset)
    found = read_all(only_log(tmp_path))
    in_segment = [each for each in whole if each.segment == 0]
    rest = list(range(len(in_segment), 12))
    assert positions(found) == [0, "corrupt", *range(2, len(in_segment)), "corrupt", *rest]
    assert sum(each.messages for each in found if isinstance(each, Gap)) == 1


def test_what_follows_damage_in_the_last_segment_is_read(tmp_path: Path) -> None:
    """Two damaged headers in a row, behind which nothing but entries says where they begin.

    How many there were shows where the log ends.
    """
    journal = writer(tmp_path)
    for number in range(6):
        append(journal, number)
    journal.close()
    log = only_log(tmp_path)
    whole = read_all(log)
    damage(segment_path(log.path, 0), whole[1].offset, whole[2].offset)
    found = read_all(log)
    assert positions(found) == [0, "corrupt", 3, 4, 5, "corrupt"]
    assert sum(each.messages for each in found if isinstance(each, Gap)) == 2


def test_a_segment_whose_header_is_torn_is_read(tmp_path: Path) -> None:
    log = twelve(tmp_path)
    damage(segment_path(log.path, 1), 0, size=HEADER_BYTES)
    assert positions(read_all(log)) == list(range(12))


def tear_header(path: Path) -> bytes:
    """Flip one bit of the number of messages before a segment; gives what is left."""
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1_000])
def test_what_lies_behind_the_torn_header_of_the_last_segment_is_pending(
    tmp_path: Path, segment_bytes: int
) -> None:
    journal = writer(tmp_path, segment_bytes=segment_bytes)
    for number in range(12):
        append(journal, number)
    last = max(journal.path.glob("*.seg"))
    tear_header(last)
    log = only_log(tmp_path)
    assert log.pending("kafka") == 12
    append(journal, 12)
    journal.close()
    assert log.pending("kafka") == only_log(tmp_path).pending("kafka") == 13
    for each in read_all(log)[:-1]:
        assert isinstance(each, Entry)
        cursor = log.cursor("kafka")
        state = cursor.state
        state.segment, state.offset, state.seen = each.segment, each.end, each.position + 1
        cursor.save()
        cursor.close()
        log.collect(each.segment)
        assert only_log(tmp_path).pending("kafka") == 12 - each.position


def test_what_is_sound_behind_a_torn_header_and_a_damaged_entry_is_read(tmp_path: Path) -> None:
    log = twelve(tmp_path)
    whole = read_all(log)
    last = [each for each in whole if each.segment == whole[-1].segment]
    assert len(last) > 1
    damage(segment_path(log.path, last[0].segment), 0, last[0].offset + 80)
    found = read_all(only_log(tmp_path))
    assert positions(found) == [*range(12 - len(last)), "corrupt", *range(13 - len(last), 12)]
    assert only_log(tmp_path).end().messages == 12


@pytest.mark.parametrize("sound", [True, False])
def test_a_segment_whose_header_is_torn_is_kept_aside_when_it_is_done(
    tmp_path: Path, *, sound: bool
) -> None:
    journal = writer(tmp_path)
    append(journal, 0)
    journal.close()
    log = only_log(tmp_path)
    if not sound:
        damage(segment_path(log.path, 0), HEADER_BYTES, size=4)
    content = tear_header(segment_path(log.path, 0))
    assert positions(read_all(log)) == [0 if sound else "corrupt"]
    log.remove()
    [kept] = aside(tmp_path).iterdir()
    assert kept.read_bytes() == content


@pytest.mark.parametrize("lost", [0, HEADER_BYTES - 1])
def test_what_power_loss_leaves_of_a_segment_without_a_header_is_kept_nowhere(
    tmp_path: Path, lost: int
) -> None:
    journal = writer(tmp_path)
    append(journal, 0)
    journal.close()
    path = segment_path(journal.path, 0)
    content = path.read_bytes()
    path.write_bytes(content[:lost] + bytes(len(content) - lost))
    only_log(tmp_path).remove()
    assert not aside(tmp_path).exists()


def test_a_segment_whose_header_is_torn_is_counted_when_it_is_skipped(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=1_000)
    for number in range(20):
        append(journal, number)
    log = only_log(tmp_path)
    whole = read_all(log)
    content = tear_header(segment_path(log.path, 1))
    for _ in range(2):
        assert journal.make_room(forced=True)
    journal.close()
    gap, *rest = read_all(only_log(tmp_path))
    skipped = sum(each.segment < 2 for each in whole)
    assert isinstance(gap, Gap)
    assert gap.messages == log.skipped(0, 0) == skipped
    assert gap.first is not None
    assert gap.last is not None
    assert (gap.first.position, gap.last.position) == (0, skipped - 1)
    assert positions(rest) == list(range(skipped, 20))
    [kept] = aside(tmp_path).iterdir()
    assert kept.read_bytes() == content


def test_a_segment_without_a_byte_leaves_no_tombstone(tmp_path: Path) -> None:
    writer(tmp_path).close()
    log = only_log(tmp_path)
    segment_path(log.path, 1).touch()
    log.bury(1)
    assert log.listing() == ([0], [])


def test_a_damaged_segment_is_kept_aside_when_it_is_done(tmp_path: Path) -> None:
    log = twelve(tmp_path)
    damage(segment_path(log.path, 0), read_all(log)[1].offset)
    content = segment_path(log.path, 0).read_bytes()
    assert "corrupt" in positions(read_all(log))
    log.remove()
    assert not Directory(tmp_path).logs()
    [kept] = aside(tmp_path).iterdir()
    assert kept.read_bytes() == content
    assert Directory(tmp_path).aside_bytes() == len(content)


def test_nothing_that_is_kept_aside_is_written_over(tmp_path: Path) -> None:
    kept = set()
    for number in range(3):
        log = tmp_path / "log-000000000001-00000000"  # put back again and again
        log.mkdir()
        segment_path(log, 0).write_bytes(b"%d" % number)
        keep_aside(log, segment_path(log, 0))
        log.rmdir()
        kept.add(b"%d" % number)
        assert {path.read_bytes() for path in aside(tmp_path).iterdir()} == kept


def test_segments_deleted_by_hand_are_a_gap_that_is_counted(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=1_000)
    for number in range(20):
        append(journal, number)
    journal.close()
    log = only_log(tmp_path)
    segment_path(log.path, 0).unlink()
    gap, *rest = read_all(log)
    assert isinstance(gap, Gap)
    assert gap.first is None
    assert gap.messages + len(rest) == 20


def test_a_writer_keeps_its_log_unfinished(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    log = only_log(tmp_path)
    assert not log.finished()
    journal.close()
    assert log.finished()


def test_reading_holds_a_piece_at_a_time(tmp_path: Path) -> None:
    journal = writer(tmp_path, max_bytes=64 << 20)
    for number in range(400):
        assert append(journal, number, size=50_000)
    journal.close()
    reader = Reader(only_log(tmp_path), 0, 0, 0)
    largest = 0
    while reader.read() is not None:
        largest = max(largest, reader.buffered)
    assert HEADER_BYTES < largest <= 256 * 1024


def test_an_entry_larger_than_a_piece_is_read_whole(tmp_path: Path) -> None:
    journal = writer(tmp_path, max_bytes=64 << 20)
    for number, size in enumerate((10, 3_000_000, 10)):
        assert append(journal, number, size=size)
    journal.close()
    found = read_all(only_log(tmp_path))
    assert positions(found) == [0, 1, 2]
    assert isinstance(found[1], Entry)
    assert len(found[1].data) > 3_000_000


def test_the_end_is_found_in_the_last_segment_alone(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=1_000)
    for number in range(30):
        append(journal, number)
    path = only_log(tmp_path).path
    for segment in sorted(path.glob("*.seg"))[:-1]:
        segment.write_bytes(segment.read_bytes()[:HEADER_BYTES])
    assert only_log(tmp_path).end().messages == 30
    journal.close()


@pytest.mark.parametrize("torn", [False, True])
def test_the_end_is_found_a_piece_at_a_time(tmp_path: Path, *, torn: bool) -> None:
    """A first look at a segment takes as little memory as any other, whatever its last bytes."""
    journal = writer(tmp_path, max_bytes=1 << 30, segment_bytes=64 << 20)
    for number in range(250):
        assert append(journal, number, size=100_000)
    assert append(journal, 250, size=2_000_000)
    if torn:
        path = segment_path(journal.path, 0)
        path.write_bytes(path.read_bytes()[:-1])
    log = only_log(tmp_path)
    tracemalloc.start()
    try:
        assert log.end().messages == 250 + (not torn)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20
    journal.close()


def test_what_was_reserved_leaves_no_trace(tmp_path: Path) -> None:
    journal = writer(tmp_path, max_bytes=8 << 30, segment_bytes=64 << 20)
    assert append(journal, 0)
    path = segment_path(only_log(tmp_path).path, 0)
    written = path.stat().st_size
    assert append(journal, 1)
    assert path.stat().st_size - written == written - HEADER_BYTES
    journal.close()
    assert path.stat().st_blocks * 512 < 1 << 20
    assert positions(read_all(only_log(tmp_path))) == [0, 1]


def test_a_reader_at_rest_notices_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading.time, "monotonic", lambda: 100.0)  # and not by looking closely
    journal = writer(tmp_path, segment_bytes=HEADER_BYTES + 400)
    reader = Reader(only_log(tmp_path), 0, 0, 0)
    assert not reader.at_rest(), "nothing is known before the first look"
    found: list[Entry | Gap] = []
    for number in range(8):  # with a new segment for every second one
        assert reader.read() is None
        assert reader.at_rest()
        time.sleep(0.02)  # more than the ticks of a directory's time
        append(journal, number)
        assert not reader.at_rest()
        each = reader.read()
        assert each is not None
        found.append(each)
        assert not reader.at_rest(), "there may be more"
    assert positions(found) == list(range(8))
    assert reader.segment > 2
    journal.close()


def test_a_reader_at_rest_looks_closely_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(reading.time, "monotonic", lambda: clock[0])
    journal = writer(tmp_path, segment_bytes=HEADER_BYTES + 200)
    append(journal, 0)
    log = only_log(tmp_path)
    reader = Reader(log, 0, 0, 0)
    assert reader.read() is not None
    assert reader.read() is None
    modified = log.path.stat()
    append(journal, 1)
    # As if this segment were begun at the very time that the directory had already.
    os.utime(log.path, ns=(modified.st_atime_ns, modified.st_mtime_ns))
    clock[0] += 0.2
    assert reader.at_rest()
    clock[0] += 0.2
    assert not reader.at_rest()
    assert positions([each for each in (reader.read(),) if each]) == [1]
    journal.close()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x04
    path.write_bytes(content)


def killed(directory: Path) -> tuple[Log, list[Entry]]:
    """Write a log of three entries by a server that does not come to end it."""
    journal = writer(directory)
    for number in range(3):
        append(journal, number)
    os.close(journal._lock)
    log = only_log(directory)
    return log, [each for each in read_all(log) if isinstance(each, Entry)]


@pytest.mark.parametrize("flipped", [1, 2])
def test_a_damaged_last_entry_of_a_killed_server_is_counted(tmp_path: Path, flipped: int) -> None:
    """All of it is there, so it was written whole, and a client has got it."""
    log, whole = killed(tmp_path)
    assert log.pending("kafka") == 3
    for each in whole[flipped:]:
        flip(segment_path(log.path, 0), each.end - 20)
    found = read_all(only_log(tmp_path))
    assert positions(found) == [*range(flipped), "corrupt"]
    assert found[-1].messages == 3 - flipped
    assert found[-1].offset == whole[-1].end
    assert only_log(tmp_path).pending("kafka") == 3
    log.remove()
    assert len(list(aside(tmp_path).iterdir())) == 1


def test_what_was_never_written_whole_is_no_damage(tmp_path: Path) -> None:
    """Neither what a killed server's last write left, nor what power loss made zeros of."""
    log, whole = killed(tmp_path)
    path = segment_path(log.path, 0)
    content = path.read_bytes()
    for left in (content[:-1], content[: whole[2].offset + 10], content[:-9] + bytes(9)):
        path.write_bytes(left)
        assert positions(read_all(only_log(tmp_path))) == [0, 1]
        assert only_log(tmp_path).pending("kafka") == 2
    log.remove()
    assert not aside(tmp_path).exists()


def test_an_entry_that_a_living_server_is_at_is_no_damage(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    append(journal, 0)
    append(journal, 1)
    flip(segment_path(journal.path, 0), -20)
    assert positions(read_all(only_log(tmp_path))) == [0]
    assert only_log(tmp_path).pending("kafka") == 1
    journal.close()


@pytest.mark.parametrize("where", ["header", "data", "cut"])
def test_what_is_lost_at_the_end_of_a_log_that_was_ended_is_counted(
    tmp_path: Path, where: str
) -> None:
    """Whatever became of it: a server that ends says how much it has written."""
    journal = writer(tmp_path)
    for number in range(3):
        append(journal, number)
    journal.close()
    last = read_all(only_log(tmp_path))[-1]
    path = segment_path(journal.path, 0)
    if where == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        assert isinstance(last, Entry)
        flip(path, last.end - 20 if where == "data" else last.offset + 10)
    found = read_all(only_log(tmp_path))
    assert positions(found) == [0, 1, "corrupt"]
    assert found[-1].messages == 1
    assert only_log(tmp_path).pending("kafka") == 3


def test_a_damaged_last_entry_is_counted_when_its_segment_is_skipped(tmp_path: Path) -> None:
    log, whole = killed(tmp_path)
    flip(segment_path(log.path, 0), whole[2].end - 20)
    log.bury(0)
    [gap] = read_all(only_log(tmp_path))
    assert gap.messages == only_log(tmp_path).pending("kafka") == 3


def joined(log: Log) -> list[Entry]:
    """Read a log as a bus does."""
    reader = Reader(log, 0, 0, 0)
    found = []
    while isinstance(each := reader.read(), Entry):
        found.append(reader.read_on(each))
        assert (reader.offset, reader.messages) == (found[-1].end, sum(e.messages for e in found))
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time that entries are appended at, in microseconds, to be changed."""
    now = [1_700_000_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0] * 1000)
    return now


def test_small_entries_of_a_response_are_read_as_one(tmp_path: Path, clock: list[int]) -> None:
    journal = writer(tmp_path)
    for number in range(100):
        clock[0] += 10
        assert append(journal, number)
    journal.close()
    log = only_log(tmp_path)
    apart = [each for each in read_all(log) if isinstance(each, Entry)]
    assert len(apart) == 100
    [one] = joined(log)
    assert one.data == b"".join([each.data for each in apart])
    assert (one.position, one.messages) == (0, 100)
    assert (one.offset, one.end) == (apart[0].offset, apart[-1].end)
    # Not before any of them came in.
    assert one.ingest_us == apart[-1].ingest_us == clock[0]


@pytest.mark.parametrize("what", ["position", "provenance", "hidden", "time", "size", "clock back"])
def test_entries_that_do_not_belong_together_are_read_apart(
    tmp_path: Path, clock: list[int], what: str
) -> None:
    journal = writer(tmp_path, max_bytes=8 << 20)
    ours = entries.encode_provenance(PROVENANCE)
    theirs = entries.encode_provenance(Provenance("producer", "another request"))
    assert journal.append(ours, b"first\n", 1, 0)
    clock[0] += {"time": 2001, "clock back": -1}.get(what, 2000)
    data = b"x" * (16 << 10) if what == "size" else b"second\n"
    position = 2 if what == "position" else 1
    provenance = theirs if what == "provenance" else ours
    assert journal.append(provenance, data, 1, position, hidden=what == "hidden")
    assert journal.append(provenance, b"third\n", 1, position + 1)
    journal.close()
    first, *others = joined(only_log(tmp_path))
    assert (first.data, first.messages) == (b"first\n", 1)
    assert b"".join([each.data for each in others]) == data + b"third\n"


@pytest.mark.usefixtures("clock")
def test_a_damaged_entry_among_small_ones_costs_only_itself(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    for number in range(5):
        assert append(journal, number)
    journal.close()
    log = only_log(tmp_path)
    third = read_all(log)[2]
    assert isinstance(third, Entry)
    damage(segment_path(log.path, 0), third.end - 30)
    reader = Reader(log, 0, 0, 0)
    before = reader.read()
    assert isinstance(before, Entry)
    assert (reader.read_on(before).messages, reader.offset) == (2, third.offset)
    gap = reader.read()
    assert isinstance(gap, Gap)
    assert (gap.messages, gap.reason) == (1, "corrupt")
    after = reader.read()
    assert isinstance(after, Entry)
    after = reader.read_on(after)
    assert (after.position, after.messages, reader.messages) == (3, 2, 5)
