"""A log: the subdirectory of one server process."""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tardis_machine.journal import segment
from tardis_machine.journal.cursor import Cursor, CursorState, read_state

_LOCK: Final = "lock"
_META: Final = "log.json"


class Meta(msgspec.Struct):
    """Who writes a log, and for which buses."""

    producer_id: str
    buses: list[str]
    pid: int
    version: int = 1


class End(NamedTuple):
    """How far a log reaches: the place behind its last whole entry, and messages before that."""

    segment: int
    offset: int
    messages: int


class Log:
    """One log as anyone but its writer sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._meta: Meta | None = None
        self._finished = False
        self._end = End(-1, 0, 0)

    def meta(self) -> Meta:
        if self._meta is None:
            self._meta = msgspec.json.decode((self.path / _META).read_bytes(), type=Meta)
        return self._meta

    def finished(self) -> bool:
        """Tell whether the writer is gone; it never comes back."""
        if not self._finished:
            try:
                fd = os.open(self.path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._finished = True
                return True
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._finished = True
            except BlockingIOError:
                pass
            finally:
                os.close(fd)
        return self._finished

    def listing(self) -> segment.Listing:
        return segment.list_log(self.path)

    def cursor_path(self, bus: str) -> Path:
        return self.path / f"{bus}.cursor"

    def cursor(self, bus: str) -> Cursor:
        return Cursor(self.cursor_path(bus))

    def cursor_state(self, bus: str) -> CursorState:
        return read_state(self.cursor_path(bus))

    def end(self) -> End:
        """Find the log's end, reading its last segment from where the last call stopped."""
        listing = self.listing()
        known = self._end
        for number in reversed(listing.segments):
            if number < known.segment:
                break
            here = number == known.segment
            start, messages = (known.offset, known.messages) if here else (None, None)
            try:
                found = segment.scan(self.path, number, start, messages)
            except FileNotFoundError:
                continue
            if found.size:
                known = End(number, found.size, found.end)
                break
        for number in listing.tombstones:
            tombstone = segment.read_tombstone(self.path, number)
            if tombstone is not None and tombstone.end > known.messages:
                known = End(number + 1, segment.HEADER_BYTES, tombstone.end)
        self._end = known
        return known

    def bytes(self) -> int:
        """Sum up the sizes of the segments."""
        total = 0
        for number in self.listing().segments:
            with contextlib.suppress(FileNotFoundError):
                total += segment.segment_path(self.path, number).stat().st_size
        return total

    def skipped(self, number: int, seen: int) -> int:
        """Count the messages of tombstones at or after a segment that lie behind `seen`."""
        total = 0
        for found in self.listing().tombstones:
            if found >= number:
                tombstone = segment.read_tombstone(self.path, found)
                if tombstone is not None:
                    total += max(0, tombstone.end - max(tombstone.first, seen))
        return total

    def collect(self, before: int) -> int:
        """Delete segments and tombstones numbered below `before`; returns how many."""
        listing = self.listing()
        gone = 0
        for number in listing.segments:
            if number < before:
                segment.segment_path(self.path, number).unlink(missing_ok=True)
                gone += 1
        for number in listing.tombstones:
            if number < before:
                segment.tombstone_path(self.path, number).unlink(missing_ok=True)
        return gone

    def remove(self) -> None:
        """Delete the whole log; a crash on the way leaves nothing that looks like a log."""
        gone = self.path.with_name(f".old-{self.name}")
        self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def create(directory: Path, name: str, meta: Meta) -> tuple[Path, int]:
    """Make a log's directory and take its lock, before anyone can see it unlocked."""
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".new-{name}"
    hidden.mkdir()
    (hidden / _META).write_bytes(msgspec.json.encode(meta))
    fd = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path = directory / name
    hidden.rename(path)
    return path, fd
