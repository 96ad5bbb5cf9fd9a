"""The ring: what goes through it is written once, in order, whoever dies or stands still."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tardis_machine.engine.choice import kernel
from tardis_machine.journal import (
    Directory,
    Entry,
    Flow,
    Gap,
    Provenance,
    Reader,
    Scribe,
    WhenFull,
    segment,
)
from tardis_machine.journal import ring as rings
from tardis_machine.journal.entry import decode_provenance, encode_provenance
from tardis_machine.journal.scribe import WRITTEN
from tardis_machine.journal.writer import LogGoneError, Writer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(kernel().module is None, reason="there is no ring without a kernel")

MAX_BYTES = 256 << 20
RING_BYTES = 1 << 20
SPAWN = multiprocessing.get_context("spawn")


def data(number: int) -> bytes:
    return b"%d " % number + b"x" * (number * 7919 % 150_000) + b"\n"


def open_writer(path: Path, **settings: object) -> Writer:
    given: dict[str, object] = {"max_bytes": MAX_BYTES, "ring_bytes": RING_BYTES, "fsync": None}
    return Writer(path, "p", ["bus"], **(given | settings))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def has_ring(tmp_path: Path) -> None:
    """Leave out what this disk cannot have: in a container without a volume there is no ring."""
    if sys.platform != "linux" or rings._kind_of_disk(tmp_path) not in rings._IN_PLACE:
        pytest.skip("there is no ring on this file system: see --basetemp")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Scribe]]:
    """Open journals that have a ring; each is closed at the end."""
    found: list[Scribe] = []

    def make(**settings: object) -> Scribe:
        found.append(Scribe(open_writer(tmp_path, **settings)))
        return found[-1]

    yield make
    for each in found:
        if each.writer._fd >= 0:
            with contextlib.suppress(LogGoneError, FileNotFoundError):
                each.close()


def flow(request: str = "request") -> Flow:
    return Flow(encode_provenance(Provenance("p", request)), WhenFull.PACE)


async def append(journal: Scribe, numbers: range, to: Flow | None = None) -> int:
    """Append entries; gives how many went through the ring."""
    to = to or flow()
    through = 0
    for number in numbers:
        ticket = journal.write(to, data(number), 1, number)
        through += ticket is WRITTEN
        await ticket
    return through


def left_alone(journal: Scribe) -> Scribe:
    """Have its server not empty the ring from time to time, as if it died before."""
    journal.writer.tend = lambda: None  # type: ignore[method-assign]
    return journal


def numbers(path: Path) -> list[int]:
    """Read all logs as a publisher would; each entry is checked."""
    found: list[int] = []
    for log in Directory(path).logs():
        log.finished()
        first = log.listing().segments[0]
        reader = Reader(log, first, 0, segment.first_message(log.path, first) or 0)
        while (entry := reader.read()) is not None:
            assert isinstance(entry, Entry)
            assert entry.data == data(entry.position)
            assert decode_provenance(entry.provenance).request_id == "request"
            assert abs(entry.ingest_us / 1e6 - time.time()) < 600
            found.append(entry.position)
    return found


def start_mover(journal: Scribe) -> "subprocess.Popen[bytes]":
    """Have another process empty the ring."""
    ring = journal.writer.ring
    assert ring is not None
    code = (
        "import sys; from pathlib import Path; from tardis_machine.journal.ring import Mover; "
        "Mover(Path(sys.argv[1]), int(sys.argv[2]), None)._run()"
    )
    command = [sys.executable, "-c", code, str(journal.writer.path), str(ring.waits)]
    return subprocess.Popen(command, pass_fds=(ring.waits,))


@contextlib.contextmanager
def moving(journal: Scribe) -> Iterator["subprocess.Popen[bytes]"]:
    """The same, until the end at the latest."""
    process = start_mover(journal)
    try:
        wait_until(lambda: not _is_free(journal.writer.path / rings.NAME))
        yield process
    finally:
        process.kill()
        process.wait()


def _is_free(path: Path) -> bool:
    """Tell whether nobody is at a ring."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_most_entries_go_through_it_and_all_are_written_in_order(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()
    with moving(journal):
        through = asyncio.run(append(journal, range(2_000)))
        journal.close()
    assert through > 1_000
    assert numbers(tmp_path) == list(range(2_000))
    assert not list(tmp_path.glob("*/ring"))


def test_without_anyone_to_empty_it_the_server_does(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()
    assert asyncio.run(append(journal, range(1_000))) > 500
    journal.close()
    assert numbers(tmp_path) == list(range(1_000))


def test_what_lies_in_it_is_written_soon_though_nothing_follows(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()
    asyncio.run(append(journal, range(3)))
    wait_until(lambda: numbers(tmp_path) == [0, 1, 2])


def test_entries_of_other_threads_and_hidden_ones_keep_their_order(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()

    async def run() -> None:
        to = flow()
        for number in range(200):
            await append(journal, range(number, number + 1), to)
            if number % 10 == 0:
                journal.submit(to, data(number), 1, number, hidden=True)

    with moving(journal):
        asyncio.run(run())
        journal.close()
    expected = [n for number in range(200) for n in [number] * (2 if number % 10 == 0 else 1)]
    assert numbers(tmp_path) == expected


def _die_with_a_full_ring(path: Path, count: int) -> None:
    journal = left_alone(Scribe(open_writer(path)))
    asyncio.run(append(journal, range(count)))
    ring = journal.writer.ring
    assert ring is not None
    assert not ring.is_empty
    (path / "told").write_text("x")
    signal.pause()


def test_what_a_server_that_was_killed_left_in_it_is_written_by_whoever_finds_it(
    tmp_path: Path,
) -> None:
    process = SPAWN.Process(target=_die_with_a_full_ring, args=(tmp_path, 8))
    process.start()
    wait_until((tmp_path / "told").exists)
    assert len(numbers(tmp_path)) < 8  # while it lives, it may still write them itself
    process.kill()
    process.join()
    assert numbers(tmp_path) == list(range(8))
    assert not list(tmp_path.glob("*/ring"))


def test_nobody_takes_for_finished_what_somebody_still_writes(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    """A server is dead, and the publisher's process is at its ring."""
    journal = left_alone(opened())
    asyncio.run(append(journal, range(3)))
    fd = os.open(journal.writer.path / rings.NAME, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert not rings.recover(journal.writer.path)
    os.close(fd)
    assert rings.recover(journal.writer.path)


def test_a_mover_that_is_killed_loses_nothing_and_writes_nothing_twice(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()
    to = flow()
    for first in range(0, 2_000, 200):
        with moving(journal) as mover:
            asyncio.run(append(journal, range(first, first + 150), to))
            mover.kill()
        asyncio.run(append(journal, range(first + 150, first + 200), to))
    journal.close()
    assert numbers(tmp_path) == list(range(2_000))


def test_a_mover_asks_for_no_segment_that_is_delivered_and_deleted(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened(segment_bytes=3 << 20)
    to = flow()
    asyncio.run(append(journal, range(100), to))
    [log] = Directory(tmp_path).logs()
    assert log.collect(journal.writer._number) > 0
    with moving(journal):
        asyncio.run(append(journal, range(100, 150), to))
        journal.close()
    found = numbers(tmp_path)
    assert found[-1] == 149
    assert found == list(range(found[0], 150))


def test_a_mover_that_stands_still_holds_nobody_for_long_and_spoils_nothing_when_it_goes_on(
    opened: Callable[..., Scribe], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened()
    to = flow()
    with moving(journal) as mover:
        asyncio.run(append(journal, range(100), to))
        os.kill(mover.pid, signal.SIGSTOP)
        asyncio.run(append(journal, range(100, 400), to))
        assert "publisher stands still" in caplog.text
        assert journal.writer.ring is None
        assert journal.writer.appended == 400
        os.kill(mover.pid, signal.SIGCONT)
        asyncio.run(append(journal, range(400, 500), to))
        assert journal.writer.appended == 500
        assert mover.wait(30) == 0
    journal.close()
    assert numbers(tmp_path) == list(range(500))


def _serve_with_a_mover(path: Path) -> None:
    journal = Scribe(open_writer(path))
    mover = start_mover(journal)
    asyncio.run(append(journal, range(300)))
    (path / "new").write_text(str(mover.pid))
    (path / "new").rename(path / "told")
    signal.pause()


def test_a_mover_ends_when_the_server_is_gone(tmp_path: Path) -> None:
    """It hears of it by the end of a pipe, which nobody else may have open."""
    server = SPAWN.Process(target=_serve_with_a_mover, args=(tmp_path,))
    server.start()
    wait_until((tmp_path / "told").exists)
    server.kill()
    server.join()
    wait_until(lambda: not _runs(int((tmp_path / "told").read_text())))
    assert numbers(tmp_path) == list(range(300))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_of_another_life_of_the_machine_nothing_is_believed(
    opened: Callable[..., Scribe], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = left_alone(opened())
    asyncio.run(append(journal, range(3)))
    ring = journal.writer.ring
    assert ring is not None
    ring._memory[rings._BOOT] = b"x" * 36
    assert rings.recover(journal.writer.path)
    assert "machine went down" in caplog.text
    assert numbers(tmp_path) == []


def test_a_damaged_ring_is_said_and_holds_nobody(
    opened: Callable[..., Scribe], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = left_alone(opened())
    asyncio.run(append(journal, range(3)))
    ring = journal.writer.ring
    assert ring is not None
    rings._COUNT.pack_into(ring._memory, rings._ROOM, 1 << 40)
    with caplog.at_level(logging.ERROR):
        journal.close()
    assert "ring is damaged" in caplog.text
    [log] = Directory(tmp_path).logs()
    gap = Reader(log, 0, 0, 0).read()
    assert isinstance(gap, Gap)
    assert (gap.messages, gap.reason) == (3, "corrupt")


def test_what_the_disk_does_not_take_at_the_end_is_left_to_whoever_comes_later(
    opened: Callable[..., Scribe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = left_alone(opened())
    asyncio.run(append(journal, range(5)))

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", refuse)
        journal.close()
    assert "its ring is left as it is" in caplog.text
    assert numbers(tmp_path) == list(range(5))


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_what_nobody_would_find_does_not_go_through_it(
    opened: Callable[..., Scribe], tmp_path: Path, how: str
) -> None:
    journal = opened()
    to = flow()
    assert asyncio.run(append(journal, range(5), to)) > 0
    log = journal.writer.path
    log.rename(tmp_path / "elsewhere")
    if how == "replaced":
        shutil.copytree(tmp_path / "elsewhere", log)
    if how == "deleted":
        shutil.rmtree(tmp_path / "elsewhere")
    time.sleep(0.1)  # for a moment it is not looked for again
    with pytest.raises(LogGoneError, match="is gone"):
        asyncio.run(append(journal, range(5, 6), to))


def test_a_journal_that_is_gone_when_a_segment_ends_is_said_to_be(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened(segment_bytes=3 << 20)
    to = flow()
    asyncio.run(append(journal, range(5), to))
    journal.writer.path.parent.rename(tmp_path.with_name("elsewhere"))
    with pytest.raises(LogGoneError, match="is gone"):
        asyncio.run(append_large(journal, to))
    tmp_path.with_name("elsewhere").rename(tmp_path)


async def append_large(journal: Scribe, to: Flow) -> None:
    """Append what no segment has room for that is begun already."""
    await journal.write(to, b"x" * (3 << 20), 1, 5)


@pytest.mark.parametrize(
    "settings", [{"ring_bytes": 0}, {"max_bytes": 16 << 20}, {"fsync": 0}], ids=str
)
def test_where_there_is_none(opened: Callable[..., Scribe], settings: dict[str, object]) -> None:
    journal = opened(**settings)
    assert journal.writer.ring is None
    assert asyncio.run(append(journal, range(3))) == 0


def test_what_is_larger_than_the_ring_passes_it_by(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()
    large = b"x" * (2 * RING_BYTES) + b"\n"

    async def run() -> None:
        to = flow()
        await append(journal, range(3), to)
        await journal.write(to, large, 1, 3)
        await append(journal, range(4, 6), to)

    asyncio.run(run())
    journal.close()
    [log] = Directory(tmp_path).logs()
    reader = Reader(log, 0, 0, 0)
    found = [entry for entry in iter(reader.read, None) if isinstance(entry, Entry)]
    assert [len(entry.data) for entry in found] == [
        len(data(0)),
        len(data(1)),
        len(data(2)),
        len(large),
        len(data(4)),
        len(data(5)),
    ]


def test_no_segment_is_begun_before_the_last_one_is_whole(
    opened: Callable[..., Scribe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that finds a new one would take what is still to come for lost."""
    journal = opened(segment_bytes=3 << 20)
    begin = Writer._begin
    on_their_way: list[int] = []

    def look(writer: Writer, path: Path, number: int) -> int | None:
        on_their_way.append(0 if writer.ring is None else writer.ring.used)
        return begin(writer, path, number)

    monkeypatch.setattr(Writer, "_begin", look)
    asyncio.run(append(journal, range(300)))
    assert len(on_their_way) > 2
    assert not any(on_their_way)


WARM_BYTES = 3 * (576 << 10)
"""As much of a ring is gone through while its reader keeps up."""


def keep_up(journal: Scribe, entries: range) -> list[int]:
    """Append entries that are written at once; gives how many bytes were on their way each time."""
    found: list[int] = []
    for number in entries:
        asyncio.run(append(journal, range(number, number + 1)))
        assert journal.writer.ring is not None
        found.append(journal.writer.ring.used)
        assert journal.writer.ring._carry()
    return found


def test_a_ring_whose_reader_keeps_up_stays_in_the_caches(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = left_alone(opened(ring_bytes=8 << 20))
    on_their_way = keep_up(journal, range(400))
    ring = journal.writer.ring
    assert ring is not None
    assert ring.shared.tail > 4 * (8 << 20)
    unused = rings._ROOM + WARM_BYTES + len(max(map(data, range(400)), key=len)) + 1024
    assert not any(ring._memory[unused:])
    # What is left out at the end of the room is nothing that anybody waits for.
    assert max(on_their_way) < 200_000
    assert ring.used == 0
    journal.close()
    assert numbers(tmp_path) == list(range(400))


def test_a_ring_whose_reader_falls_behind_has_room_for_what_comes_next(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    """Wherever that happens: to begin at the front again must not leave it without."""
    size = 8 << 20
    journal = left_alone(opened(ring_bytes=size, max_bytes=8 << 30))
    done = looked = 0
    for _ in range(40):
        kept_up = range(done, done + 7)
        keep_up(journal, kept_up)
        done = kept_up.stop
        assert journal.writer.ring is not None
        # At the front there is room for little while the reader is there.
        free = size if journal.writer.ring.shared.tail % size < WARM_BYTES else WARM_BYTES
        taken, number = 0, journal.writer._number
        while asyncio.run(append(journal, range(done, done + 1))):
            taken += len(data(done))
            done += 1
        done += 1
        assert journal.writer.ring is not None
        assert journal.writer.ring._carry()
        if journal.writer._number == number:  # else its segment had no room
            assert free - 2 * 151_000 < taken <= size
            looked += 1
    assert looked > 20
    journal.close()
    assert numbers(tmp_path) == list(range(done))


def test_nobody_is_asked_in_the_middle_of_a_segment_that_there_is_space_for(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    """Each time a thread has to be woken, and look at the whole directory."""
    journal = opened(max_bytes=8 << 30, segment_bytes=18 << 20, ring_bytes=32 << 20)
    asked: list[int] = []
    renew = journal.renew
    journal.renew = lambda: (asked.append(1), renew())[1]  # type: ignore[method-assign]
    assert asyncio.run(append(journal, range(1_200))) > 1_000
    journal.close()
    assert len(segment.list_log(journal.writer.path).segments) > 4
    assert not asked
    assert numbers(tmp_path) == list(range(1_200))


_MAPPED_HUGE = """
import mmap, os, re
from pathlib import Path
from tardis_machine.journal import ring

def huge(path):
    [mapping] = re.findall(rf"{path.absolute()}$.*?^FilePmdMapped: +(\\d+)",
        Path("/proc/self/smaps").read_text(), re.MULTILINE | re.DOTALL)
    return int(mapping)

for turn in range(5):
    folder = Path(f"turn-{turn}")
    folder.mkdir()
    fd = os.open(folder / "example", os.O_RDWR | os.O_CREAT)
    for at in range(0, 8 << 20, 2 << 20):
        os.pwrite(fd, bytes(2 << 20), at)
    example = mmap.mmap(fd, 8 << 20)
    example[:] = bytes(8 << 20)
    made = ring.create(folder, 8 << 20, None)
    print(huge(folder / "example"), huge(folder / "ring"))
"""


def test_its_memory_comes_in_huge_pages_where_files_have_them(tmp_path: Path) -> None:
    """It is gone through again and again: small ones would take all of a processor's table."""
    command = [sys.executable, "-c", _MAPPED_HUGE]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    of_example, of_ring = zip(*(map(int, line.split()) for line in shown.splitlines()), strict=True)
    if not all(of_example):
        pytest.skip("files have no huge pages here, or memory is short of them")
    assert any(of_ring)


def test_it_counts_for_the_bound_and_is_counted_in_messages(
    opened: Callable[..., Scribe], tmp_path: Path
) -> None:
    journal = opened()
    asyncio.run(append(journal, range(400)))
    assert journal.writer.space.measure().bytes >= RING_BYTES
    assert journal.writer.appended == 400
    journal.close()
    assert journal.writer.messages == journal.writer.appended == 400
    [log] = Directory(tmp_path).logs()
    assert log.end().messages == 400


def test_who_empties_it_syncs_what_it_wrote(
    opened: Callable[..., Scribe], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    real = os.fdatasync

    def sync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    journal = opened()
    ring = journal.writer.ring
    assert ring is not None
    mover = rings.Mover(journal.writer.path, ring.waits, 0.01).start()
    asyncio.run(append(journal, range(5)))
    inode = os.fstat(journal.writer._fd).st_ino
    wait_until(lambda: inode in synced)
    journal.close()
    mover.join(30)
    assert not mover.is_alive()
