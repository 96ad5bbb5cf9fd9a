"""Power loss: what is left is what was synced, names and content, and that is enough."""

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tardis_machine.journal import Directory, Entry, Provenance, Reader, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters, read
from tests.support.events import CONTEXT, events

PROVENANCE = encode_provenance(Provenance("p", "r"))


class Disk:
    """Remembers what each sync has forced to disk; everything else is lost with the power."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._files: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._directories = {root.stat().st_ino}
        self._open: list[int] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._observed(getattr(os, name)))

    def _observed(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(fd: int) -> None:
            sync(fd)
            status = os.fstat(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if stat.S_ISDIR(status.st_mode):
                found = list(path.iterdir())
                self._names[status.st_ino] = {each.name: each.stat().st_ino for each in found}
                self._directories |= {each.stat().st_ino for each in found if each.is_dir()}
            else:
                size = status.st_size
                if status.st_ino not in self._files:
                    self._open.append(os.dup(fd))  # or a new file might get its number
                self._files[status.st_ino] = path.read_bytes()[:size]

        return synced

    def after_power_loss(self, to: Path) -> Path:
        """Build what a machine finds when it comes back."""
        shutil.rmtree(to, ignore_errors=True)
        self._build(self.root.stat().st_ino, to)
        return to

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)

    def _build(self, inode: int, to: Path) -> None:
        to.mkdir()
        for name, each in self._names.get(inode, {}).items():
            if each in self._directories:
                self._build(each, to / name)
            else:
                (to / name).write_bytes(self._files.get(each, b""))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    root = tmp_path / "journal"
    root.mkdir()
    with monkeypatch.context() as patched:
        made = Disk(root, patched)
        yield made
        made.close()


def writer(disk: Disk, fsync: float | None) -> Writer:
    return Writer(disk.root, "p", ["kafka"], max_bytes=1 << 20, fsync=fsync, segment_bytes=1_000)


def append(journal: Writer, number: int) -> None:
    assert journal.append(PROVENANCE, b"x" * 199 + b"\n", 1, number)


def left(path: Path) -> tuple[list[int], int]:
    """Give the positions that can be read, and how many messages are said to be missing."""
    positions, missing = [], 0
    for log in Directory(path).logs():
        assert log.meta() is not None
        reader = Reader(log, 0, 0, 0)
        while (each := reader.read()) is not None:
            if isinstance(each, Entry):
                positions.append(each.position)
            else:
                assert each.first is not None  # by its tombstone, which is whole
                missing += each.messages
    return positions, missing


def test_a_synced_batch_is_left(disk: Disk, tmp_path: Path) -> None:
    journal = writer(disk, fsync=0.0)
    for number in range(20):
        append(journal, number)
        journal.sync()
        assert left(disk.after_power_loss(tmp_path / "left")) == (list(range(number + 1)), 0)
    journal.close()


def test_within_an_interval_everything_is_left(disk: Disk, tmp_path: Path) -> None:
    journal = writer(disk, fsync=0.01)
    for number in range(20):
        append(journal, number)
    everything = (list(range(20)), 0)
    deadline = time.monotonic() + 30
    while left(disk.after_power_loss(tmp_path / "left")) != everything:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    journal.close()


def test_a_closed_log_is_left(disk: Disk, tmp_path: Path) -> None:
    journal = writer(disk, fsync=3600.0)
    for number in range(20):
        append(journal, number)
    journal.close()
    assert left(disk.after_power_loss(tmp_path / "left")) == (list(range(20)), 0)


def test_without_syncing_it_may_all_be_gone(disk: Disk, tmp_path: Path) -> None:
    journal = writer(disk, fsync=None)
    append(journal, 0)
    assert left(disk.after_power_loss(tmp_path / "left")) == ([], 0)
    journal.close()


def test_a_skipped_segment_is_there_or_its_tombstone_is(disk: Disk, tmp_path: Path) -> None:
    journal = writer(disk, fsync=0.0)
    for number in range(20):
        append(journal, number)
    journal.sync()
    while journal.make_room(forced=True):
        positions, missing = left(disk.after_power_loss(tmp_path / "left"))
        assert len(positions) + missing == 20
    journal.close()


def test_a_dead_letter_is_left(disk: Disk, tmp_path: Path) -> None:
    dead = DeadLetters(disk.root, "kafka")
    dead.add([dead.of_event(CONTEXT, event, "there", "no") for event in events(3)])
    found = read(disk.after_power_loss(tmp_path / "left") / "kafka.ndjson")
    assert [each.position for each in found if isinstance(each, DeadLetter)] == [0, 1, 2]
