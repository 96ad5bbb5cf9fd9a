"""The thread that writes: nobody else waits for the disk, and each flow keeps its rule."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tardis_machine.journal import (
    Directory,
    Entry,
    Flow,
    Gap,
    JournalFullError,
    Provenance,
    Reader,
    Scribe,
    WhenFull,
    Writer,
)
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.scribe import FlowCancelledError, JournalClosedError
from tardis_machine.journal.segment import segment_path
from tardis_machine.journal.syncer import SyncState
from tardis_machine.journal.writer import LogGoneError
from tests.support.hanging_disk import HangingDisk
from tests.support.waiting import until

Open = Callable[..., Scribe]
LINE = b"x" * 3_999 + b"\n"


def flow(when_full: WhenFull = WhenFull.PACE, request: str = "r") -> Flow:
    return Flow(encode_provenance(Provenance("p", request)), when_full)


@pytest.fixture
def scribe(tmp_path: Path) -> Iterator[Open]:
    """Open journals; each is closed at the end."""
    opened: list[Scribe] = []

    def made(*, max_bytes: int = 1 << 20, fsync: float | None = None) -> Scribe:
        writer = Writer(tmp_path, "p", ["kafka"], max_bytes=max_bytes, fsync=fsync, stall_s=0.2)
        opened.append(Scribe(writer))
        return opened[-1]

    yield made
    for each in opened:
        if each.writer._fd >= 0:
            each.close()


def entries(path: Path) -> list[Entry | Gap]:
    found: list[Entry | Gap] = []
    for log in Directory(path).logs():
        reader = Reader(log, 0, 0, 0)
        while (each := reader.read()) is not None:
            found.append(each)
    return found


def positions(path: Path) -> list[int | str]:
    """Give the position of each message, and why some are missing."""
    found: list[int | str] = []
    for each in entries(path):
        if isinstance(each, Gap):
            found.append(each.reason)
        else:
            found += range(each.position, each.position + each.messages)
    return found


async def test_entries_are_written_in_order(scribe: Open, tmp_path: Path) -> None:
    journal = scribe()
    mine = flow()
    tickets = [journal.submit(mine, LINE, 1, number) for number in range(50)]
    await tickets[-1]
    assert all(ticket.done for ticket in tickets)
    journal.close()
    assert positions(tmp_path) == list(range(50))


async def test_small_entries_of_a_flow_that_come_together_become_one(
    scribe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not over what is missing, nor with what takes no position, and not without bounds."""
    journal = scribe()
    disk = HangingDisk(monkeypatch)
    mine, other = flow(request="mine"), flow(WhenFull.DROP, request="other")
    tickets = [journal.submit(mine, b"first\n", 1, 0)]
    await until(disk.reached.is_set)  # whatever follows is taken at once
    tickets += [journal.submit(mine, b"a%d\n" % number, 1, number) for number in (1, 2)]
    tickets.append(journal.submit(other, b"b0\n", 1, 0))
    tickets.append(journal.submit(mine, b"a3\na4\n", 2, 3))
    tickets.append(journal.submit(mine, b"hidden\n", 1, 5, hidden=True))
    tickets.append(journal.submit(mine, b"a5\n", 1, 5))
    tickets.append(journal.submit(mine, b"a7\n", 1, 7))
    tickets.append(journal.submit(other, b"y" * 70_000 + b"\n", 1, 1))
    tickets.append(journal.submit(other, b"b2\n", 1, 2))
    disk.free.set()
    for ticket in tickets:
        await ticket
    journal.close()
    found = [each for each in entries(tmp_path) if isinstance(each, Entry)]
    assert [each.data for each in found if each.provenance == mine.provenance] == [
        b"first\n",
        b"a1\na2\na3\na4\n",
        b"hidden\n",
        b"a5\n",
        b"a7\n",
    ]
    assert [
        (e.position, e.messages, e.hidden) for e in found if e.provenance != mine.provenance
    ] == [
        (0, 1, False),
        (1, 1, False),
        (2, 1, False),
    ]
    assert sum(each.messages for each in found) == journal.writer.messages == 11


@pytest.mark.parametrize("call", ["writev", "fdatasync"])
async def test_a_disk_that_hangs_holds_the_response_and_not_the_loop(
    scribe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    journal = scribe(fsync=0.0)
    disk = HangingDisk(monkeypatch, call)
    ticket = journal.submit(flow(), LINE, 1, 0)
    await until(disk.reached.is_set)
    for _ in range(20):  # the loop goes round
        await asyncio.sleep(0)
    assert not ticket.done
    disk.free.set()
    await ticket
    assert positions(tmp_path) == [0]


async def test_a_batch_is_on_disk_before_its_ticket_is_done(
    scribe: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sync for every batch; those that come together share one."""
    journal = scribe(fsync=0.0)
    synced: list[int] = []
    fdatasync = os.fdatasync

    def observed(fd: int) -> None:
        fdatasync(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fdatasync", observed)
    mine = flow()
    tickets = []
    for number in range(20):
        tickets.append(journal.submit(mine, LINE, 1, number))
        if number % 5 == 4:
            await tickets[-1]
            path = next(journal.writer.path.glob("*.seg"))
            assert synced[-1] == path.stat().st_size
    assert 0 < len(synced) <= 20


async def test_a_full_journal_paces_who_waits_and_nobody_else(scribe: Open) -> None:
    journal = scribe()
    mine = flow()
    tickets = [journal.submit(mine, LINE, 1, number) for number in range(300)]
    await until(lambda: journal.waiting > 0)
    await journal.submit(flow(WhenFull.DROP), LINE, 1, 0)
    with pytest.raises(JournalFullError) as raised:
        await journal.submit(flow(WhenFull.ERROR), b"x" * 100_000, 1, 0)
    assert raised.value.limit == 1 << 20
    await tickets[-1]  # the bus is stalled, and skipped
    assert journal.writer.space.stalled == {"kafka"}
    assert journal.waiting == 0
    assert journal.lost == 0


async def test_a_flow_that_failed_writes_no_more(scribe: Open, tmp_path: Path) -> None:
    journal = scribe()
    mine = flow(WhenFull.ERROR)
    tickets = [journal.submit(mine, b"x" * 200_000 + b"\n", 1, number) for number in range(6)]
    small = journal.submit(mine, b"x\n", 1, 6)
    for ticket in (tickets[-1], small):
        with pytest.raises(JournalFullError):
            await ticket
    journal.close()
    found = positions(tmp_path)
    assert found == list(range(len(found)))
    assert len(found) < 6


async def test_a_broken_disk_ends_the_flow_and_not_the_thread(
    scribe: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = scribe()

    def broken(fd: int, parts: Sequence[bytes]) -> int:
        raise OSError(errno.EIO, "Input/output error")

    live = flow(WhenFull.DROP)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", broken)
        with pytest.raises(OSError, match="Input/output"):
            await journal.submit(flow(), LINE, 1, 0)
        await journal.submit(live, LINE, 1, 0)
    assert journal.lost == 1
    await journal.submit(flow(), LINE, 1, 0)
    await journal.submit(live, LINE, 1, 1)
    assert journal.lost == 1


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "truncated"])
async def test_what_nobody_would_find_is_not_taken_for_written(
    scribe: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """A file that is open can be written to though its name is gone."""
    journal = scribe()
    await journal.submit(flow(), LINE, 1, 0)
    log = journal.writer.path
    if how == "truncated":
        os.truncate(segment_path(log, 0), 100)
    else:
        log.rename(tmp_path / "elsewhere")
    if how == "replaced":
        shutil.copytree(tmp_path / "elsewhere", log)
    if how == "deleted":
        shutil.rmtree(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(LogGoneError, match="is gone"):
            await journal.submit(flow(), LINE, 1, 1)
    await journal.submit(flow(WhenFull.DROP), LINE, 1, 0)
    assert journal.lost == 1
    assert journal.gone
    assert caplog.text.count("journal is gone") == 1
    assert "Traceback" not in caplog.text


async def test_an_idle_server_notices_that_its_journal_is_gone(
    scribe: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = scribe()
    shutil.rmtree(tmp_path)
    await until(lambda: journal.gone)
    with pytest.raises(LogGoneError):
        await journal.submit(flow(), LINE, 1, 0)
    assert "Traceback" not in caplog.text


async def test_live_goes_on_while_the_disk_hangs_and_memory_has_an_end(
    scribe: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tardis_machine.journal.scribe._MOST_QUEUED_BYTES", 10 * len(LINE))
    journal = scribe()
    disk = HangingDisk(monkeypatch)
    live = flow(WhenFull.DROP)
    tickets = [journal.submit(live, LINE, 1, 0)]
    await until(disk.reached.is_set)
    tickets += [journal.submit(live, LINE, 1, number) for number in range(1, 20)]
    assert [ticket.done for ticket in tickets] == [False] * 12 + [True] * 8
    assert journal.lost == 8
    disk.free.set()
    for ticket in tickets:
        await ticket


@pytest.mark.parametrize("call", ["writev", "fdatasync", "statvfs"])
async def test_live_entries_are_released_while_the_disk_hangs_and_later_ones_lost(
    scribe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Entries in the queue are written when the disk goes on, so they do not count as lost."""
    journal = scribe(fsync=0.0)
    disk = HangingDisk(monkeypatch, call)
    live, paced = flow(WhenFull.DROP, request="live"), flow(request="paced")
    tickets = [journal.submit(live, LINE, 1, 0)]
    await until(disk.reached.is_set)
    tickets += [journal.submit(live, LINE, 1, number) for number in range(1, 5)]
    waits = journal.submit(paced, LINE, 1, 0)
    sent: list[int] = []
    for number, ticket in enumerate(tickets):
        ticket.when_done(partial(sent.append, number))
    await tickets[0]
    await until(lambda: len(sent) == 5)
    assert sent == list(range(5))
    later = [journal.submit(live, LINE, 1, number) for number in range(5, 8)]
    assert all(ticket.done for ticket in later)
    assert journal.lost == 3
    assert not waits.done
    disk.free.set()
    await waits
    await journal.submit(live, LINE, 1, 8)
    assert journal.lost == 3
    await asyncio.to_thread(journal.close)
    found = [each for each in entries(tmp_path) if isinstance(each, Entry)]
    assert sum(each.messages for each in found) == journal.writer.messages == 7
    positions = [
        number
        for each in found
        if each.provenance == live.provenance
        for number in range(each.position, each.position + each.messages)
    ]
    assert positions == [0, 1, 2, 3, 4, 8]


async def test_cancelled_flow_leaves_the_queue_though_the_disk_hangs(
    scribe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry that is being written stays written, and others keep their place."""
    journal = scribe()
    disk = HangingDisk(monkeypatch)
    cancelled, other = flow(request="cancelled"), flow(request="other")
    tickets = [journal.submit(cancelled, LINE, 1, 0)]
    await until(disk.reached.is_set)
    tickets += [journal.submit(cancelled, LINE, 1, number) for number in range(1, 20)]
    kept = [journal.submit(other, LINE, 1, number) for number in range(3)]
    journal.cancel(cancelled)
    assert journal.queued == 3
    for ticket in tickets:
        with pytest.raises(FlowCancelledError):
            await ticket
    disk.free.set()
    with pytest.raises(FlowCancelledError):
        await journal.submit(cancelled, LINE, 1, 20)
    await kept[-1]
    await asyncio.to_thread(journal.close)
    found = [each for each in entries(tmp_path) if isinstance(each, Entry)]
    assert [each.position for each in found if each.provenance == cancelled.provenance] == [0]
    ours = [each for each in found if each.provenance == other.provenance]
    assert sum(each.messages for each in ours) == 3


async def test_full_disk_is_logged_once_while_a_response_waits_and_once_after(
    scribe: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = scribe()

    def full(fd: int, parts: Sequence[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        waiting = [journal.submit(flow(request=name), LINE, 1, 0) for name in ("a", "b")]
        await until(lambda: journal.shortage is not None)
        assert journal.shortage is not None
        assert (journal.shortage.full, journal.shortage.responses) == ("disk", 2)
        assert str(journal.shortage) == "disk full, responses that wait: 2"
    for ticket in waiting:
        await ticket
    await until(lambda: journal.shortage is None)
    said = [each for each in caplog.records if "for room in the journal" in each.message]
    assert [each.message for each in said] == [
        "responses wait for room in the journal",
        "responses wait no longer for room in the journal",
    ]
    assert {each.levelname for each in said} == {"WARNING"}
    assert vars(said[0])["full"] == "disk"


async def test_room_is_the_disks_where_that_is_less_than_the_journals(
    scribe: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = scribe()
    space = journal.writer.space
    assert space.room == (1 << 20) - space.used
    monkeypatch.setattr(Directory, "free_bytes", lambda _: 5_000)
    await until(lambda: space.room == 5_000)


async def test_a_ticket_calls_back_once_done(scribe: Open) -> None:
    journal = scribe()
    called: list[bool] = []
    early = journal.submit(flow(), LINE, 1, 0)
    early.when_done(lambda: called.append(early.done))
    await until(lambda: called == [True])
    late = journal.submit(flow(), LINE, 1, 0)
    await late
    late.when_done(lambda: called.append(late.done))
    await until(lambda: called == [True, True])


async def test_what_waits_when_it_is_closed_is_told(scribe: Open) -> None:
    journal = scribe()
    mine = flow()
    tickets = [journal.submit(mine, LINE, 1, number) for number in range(300)]
    await until(lambda: journal.waiting > 0)
    await asyncio.to_thread(journal.close)
    with pytest.raises(JournalClosedError):
        await tickets[-1]


async def test_an_idle_server_leaves_its_room_to_others(scribe: Open, tmp_path: Path) -> None:
    """All there is lies in the segment it would go on with: it seals that."""
    idle = scribe()
    other = scribe()
    await idle.submit(flow(), b"x" * 900_000 + b"\n", 1, 0)
    live = flow(WhenFull.DROP)
    await until(lambda: len(list(idle.writer.path.glob("*.seg"))) == 2)
    await other.submit(live, b"x" * 200_000 + b"\n", 1, 0)
    assert other.lost == 0
    await asyncio.to_thread(idle.close)
    await asyncio.to_thread(other.close)
    assert positions(tmp_path) == ["skipped", 0]


class FailingSync:
    """A disk whose syncs fail until it is `mended`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str = "fdatasync") -> None:
        self.mended = False
        real = getattr(os, call)

        def sync(fd: int) -> object:
            if not self.mended:
                raise OSError(errno.EIO, "Input/output error")
            return real(fd)

        monkeypatch.setattr(os, call, sync)


async def test_failed_sync_is_a_state_until_a_new_segment_is_synced(
    scribe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = scribe(fsync=0.01)
    state = journal.writer.syncing
    mine = flow()
    disk = FailingSync(monkeypatch)
    await journal.submit(mine, LINE, 1, 0)
    await until(lambda: bool(state.reason))
    await journal.submit(mine, LINE, 1, 1)
    await until(lambda: state.failures >= 3)
    assert state.reason == "Input/output error"
    disk.mended = True
    await until(lambda: not state.reason)  # though nothing more is written
    await journal.submit(mine, LINE, 1, 2)
    assert journal.close()
    assert positions(tmp_path) == [0, 1, 2]


async def test_entry_behind_a_failed_sync_goes_into_a_new_segment(
    scribe: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = scribe(fsync=0.0)
    state = journal.writer.syncing
    disk = FailingSync(monkeypatch)
    for number in range(3):
        with pytest.raises(OSError, match="Input/output"):
            await journal.submit(flow(), LINE, 1, number)
        assert state.reason == "Input/output error"
    disk.mended = True
    await journal.submit(flow(), LINE, 1, 3)
    assert not state.reason
    journal.close()
    found = [each for each in entries(tmp_path) if isinstance(each, Entry)]
    assert [each.position for each in found] == [0, 1, 2, 3]
    assert found[-1].segment > found[-2].segment


async def test_syncs_go_on_after_a_moment_without_free_descriptors(
    scribe: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = scribe(fsync=0.01)
    state = journal.writer.syncing

    def refuse(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(os, "dup", refuse)
        await journal.submit(flow(), LINE, 1, 0)
        await until(lambda: bool(state.reason))
    await until(lambda: not state.reason)


def test_sync_of_a_segment_that_was_there_proves_nothing() -> None:
    state = SyncState()
    state.begin(4)
    state.fail("Input/output error")
    state.succeed(4)
    assert told(state) == ("Input/output error", True)
    state.begin(5)
    assert told(state) == ("Input/output error", False)
    state.fail("No space left on device")  # of segment 4, noticed late
    state.succeed(5)
    assert told(state) == ("No space left on device", True)
    state.begin(6)
    state.succeed(6)
    assert told(state) == ("", False)


def told(state: SyncState) -> tuple[str, bool]:
    return state.reason, state.wants_segment


def test_idle_log_on_a_failing_disk_leaves_few_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    writer = Writer(tmp_path, "p", ["kafka"], max_bytes=1 << 20, fsync=0.0, clock=lambda: now)
    FailingSync(monkeypatch)
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    for _ in range(600):  # ten minutes of looks
        now += 1.0
        writer.seal_if_idle()
    assert writer.syncing.reason
    assert len(list(writer.path.glob("*.seg"))) < 30
    writer.close()


@pytest.mark.parametrize(
    ("call", "fsync"), [("writev", None), ("fdatasync", 0.0), ("fdatasync", 0.01)]
)
async def test_close_returns_though_the_disk_hangs(
    scribe: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    fsync: float | None,
) -> None:
    journal = scribe(fsync=fsync)
    disk = HangingDisk(monkeypatch, call)
    ticket = journal.submit(flow(), LINE, 1, 0)
    await until(disk.reached.is_set)
    assert not await asyncio.to_thread(journal.close, 0.1)
    assert "journal cannot be ended: its disk hangs" in caplog.text
    [log] = Directory(tmp_path).logs()
    assert not log.finished()
    disk.free.set()
    await ticket
    await until(log.finished)
    assert positions(tmp_path) == [0]


@pytest.mark.parametrize("calls", [0, 1])
def test_writer_that_cannot_be_made_leaves_no_thread_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The disk fails once it has told its free space so many times."""
    told = iter(range(calls))

    def refuse(_: Directory) -> int:
        if next(told, None) is None:
            raise OSError(errno.EIO, "Input/output error")
        return 1 << 30

    monkeypatch.setattr(Directory, "free_bytes", refuse)
    before = os.listdir("/dev/fd")  # noqa: PTH208 - no disk
    with pytest.raises(OSError, match="Input/output"):
        Writer(tmp_path, "p", ["kafka"], max_bytes=1 << 20, fsync=0.5)
    assert len(os.listdir("/dev/fd")) == len(before)  # noqa: PTH208 - no disk
    assert "journal-fsync" not in {thread.name for thread in threading.enumerate()}
