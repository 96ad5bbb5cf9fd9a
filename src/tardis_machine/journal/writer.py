"""The server's end of the journal: entries appended before they are sent."""

import contextlib
import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import durable, entry, log, segment
from tardis_machine.journal.directory import Directory
from tardis_machine.journal.space import LARGEST_SEGMENT, Space

_log = logging.getLogger(__name__)

_SPARE_BYTES: Final = 16 * 1024
_LEAST_RESERVED: Final = 1 << 20


class FileLimitError(TardisMachineError):
    """An entry is larger than this process may make a file."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(
            f"{size} bytes do not fit into a file of the journal: expected the limit of a file's "
            "size (ulimit -f, LimitFSIZE) to be larger"
        )


class LogGoneError(TardisMachineError):
    """Somebody has deleted or moved the log that this process writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(
            "the journal is gone: it was deleted or moved while the server ran, and what is to be "
            "published has no place; start the server again"
        )


class Writer:
    """Appends to the one log that this process owns; used by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        producer_id: str,
        buses: Sequence[str],
        *,
        max_bytes: int,
        destinations: Mapping[str, str] | None = None,
        adopt: bool = False,
        stall_s: float = 60.0,
        fsync: float | None = 0.5,
        segment_bytes: int = LARGEST_SEGMENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start a log, for buses that go to these destinations.

        `fsync`: seconds between syncs, 0 for every append, None for never. Raises BoundError if
        the directory belongs to another configuration.
        """
        journal = Directory(directory)
        known = dict(destinations or {})
        meta = log.Meta(producer_id, list(buses), os.getpid(), destinations=known)
        with journal.entrance():
            journal.bind({bus: known.get(bus, "") for bus in buses}, adopt=adopt)
            name = journal.next_log(secrets.token_hex(4))
            self.path, self._lock = log.create(directory, name, meta)
        self.space = Space(
            journal,
            buses,
            max_bytes=max_bytes,
            stall_s=stall_s,
            segment_bytes=segment_bytes,
            clock=clock,
        )
        self.messages = 0
        self._fsync = fsync
        self._spare = self.path / "spare"
        self._number = -1
        self._fd = -1
        self._size = 0
        self._reserved = 0
        self._file_full = False
        self._sealed_at = -1
        try:
            self._rotate()
        except BaseException:
            durable.let_go(self._lock)
            raise
        self._syncer = _Syncer(self.path, fsync) if fsync else None

    def append(
        self,
        provenance: bytes,
        data: entry.Buffer,
        count: int,
        position: int,
        *,
        hidden: bool = False,
    ) -> bool:
        """Write one entry; False if it does not fit, FileLimitError if it never will.

        LogGoneError if nobody could find it there.
        """
        size = entry.HEADER_BYTES + len(provenance) + len(data)

        def write() -> bool:
            over = self._size + size > self.space.segment_bytes
            if over and self._size > segment.HEADER_BYTES and not self._rotate():
                return False
            self._reserve(size)
            now = time.time_ns() // 1000
            head = entry.header(provenance, data, count, position, now, hidden=hidden)
            parts = (head, provenance, data)
            if self._write(parts, size):
                return True
            # Where files are limited, the next one takes it.
            return self._file_full and self._rotate() and self._write(parts, size)

        try:
            if not self.space.take(size + segment.HEADER_BYTES, write):
                return False
        except FileNotFoundError:
            raise LogGoneError(self.path) from None
        self.find()
        self.messages += count
        if self._syncer is not None:
            self._syncer.dirty(self._fd)
        return True

    def find(self) -> None:
        """Make sure that what was written lies where readers look for it; LogGoneError if not.

        A file that is open may be written to after it was deleted. One that was put in its place
        does not grow.
        """
        try:
            size = segment.segment_path(self.path, self._number).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            raise LogGoneError(self.path) from None
        if size < self._size:
            raise LogGoneError(self.path)

    def sync(self) -> None:
        """Force to disk what was appended, if that is not to wait for an interval."""
        if self._fsync == 0:
            os.fdatasync(self._fd)

    def seal_if_idle(self) -> None:
        """Begin a new segment if nothing was appended since the last call and space is short.

        Other servers may need the room, and cannot skip what is being written to.
        """
        idle, self._sealed_at = self._sealed_at == self.messages, self.messages
        short = 2 * self.space.used > self.space.max_bytes
        if idle and short and self._size > segment.HEADER_BYTES:
            self._rotate()

    def make_room(self, *, forced: bool) -> bool:
        """Give up the oldest segment at the expense of stalled buses, or of the furthest behind."""
        if self._size > segment.HEADER_BYTES and len(segment.list_log(self.path).segments) == 1:
            # The only segment may have to go: it can once it is not the one written to.
            self._rotate()
        return self.space.skip_oldest(forced=forced)

    def close(self) -> None:
        """End the log. The publisher deletes it once it is delivered."""
        if self._fd >= 0 and self._size > segment.HEADER_BYTES:
            # The next segment's header says how many messages there are before it, so that the
            # last of them do not pass for a write that was cut off if they are damaged.
            with contextlib.suppress(OSError):
                self._rotate()
        if self._syncer is not None:
            self._syncer.stop()
        if self._fd >= 0:
            self._release()
            if self._fsync is not None:
                os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
            durable.let_go(self._lock)

    def _rotate(self) -> bool:
        """Begin the next segment; False if the disk has no room for it."""
        number = self._number + 1
        path = segment.segment_path(self.path, number)
        fd = self._begin(path, number)
        if fd is None and self._spare.exists():
            # Without it a log of one segment could never give that up on a full disk.
            self._spare.unlink()
            fd = self._begin(path, number)
        if fd is None:
            return False
        if not self._spare.exists():
            with contextlib.suppress(OSError):
                spare = durable.open_private(self._spare, os.O_WRONLY | os.O_CREAT)
                durable.write_all(spare, bytes(_SPARE_BYTES))
                os.close(spare)
        if self._fd >= 0:
            self._release()
            if self._fsync is None:
                os.close(self._fd)
            elif self._syncer is None:
                os.fdatasync(self._fd)
                os.close(self._fd)
            else:
                self._syncer.retire(self._fd)
        if self._fsync == 0 or (number == 0 and self._fsync is not None):
            durable.sync_directory(self.path)
        self._fd, self._number, self._size = fd, number, segment.HEADER_BYTES
        self._reserved = 0
        return True

    def _reserve(self, size: int) -> None:
        """Have room found for all that may be written to this segment without asking."""
        if self._size + size > self._reserved:
            end = min(self._size + self.space.granted, self.space.segment_bytes)
            if end - self._size >= _LEAST_RESERVED:
                durable.reserve(self._fd, self._size, end - self._size)
            self._reserved = max(end, self._size + size)

    def _release(self) -> None:
        """Give back what was reserved behind the end of a segment."""
        if self._reserved > self._size:
            with contextlib.suppress(OSError):  # it goes with the segment, at the latest
                os.ftruncate(self._fd, self._size)

    def _begin(self, path: Path, number: int) -> int | None:
        """Make a segment; None if the disk is full."""
        fd = -1
        try:
            fd = durable.open_private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            durable.write_all(fd, segment.segment_header(number, self.messages))
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                path.unlink(missing_ok=True)
            if error.errno not in segment.FULL or number == 0:
                raise
            return None
        return fd

    def _write(self, parts: Sequence[entry.Buffer], size: int) -> bool:
        """Write an entry whole or not at all; False if the disk is full."""
        try:
            written = os.writev(self._fd, parts)
            if written != size:
                durable.write_all(self._fd, b"".join(parts)[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            if error.errno not in segment.FULL:
                raise
            self._file_full = error.errno == errno.EFBIG
            if self._file_full and self._size == segment.HEADER_BYTES:
                raise FileLimitError(size) from error
            return False
        self._size += size
        return True


class _Syncer:
    """A thread that syncs what was written since the last time, and closes retired segments."""

    def __init__(self, path: Path, interval_s: float) -> None:
        self._path = path
        self._interval_s = interval_s
        self._current: int | None = None
        self._retired: list[int] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-fsync", daemon=True)
        self._thread.start()

    def dirty(self, fd: int) -> None:
        self._current = fd

    def retire(self, fd: int) -> None:
        with self._lock:
            self._retired.append(fd)
            self._current = None

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._sync()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sync()

    def _sync(self) -> None:
        with self._lock:
            retired, self._retired = self._retired, []
            current, self._current = self._current, None
            # A duplicate: the writer may retire and this thread close the original meanwhile.
            current = None if current is None else os.dup(current)
        for fd in (*retired, *(() if current is None else (current,))):
            try:
                os.fdatasync(fd)
            except OSError as error:
                _log.exception("journal could not be synced", extra={"error": error.strerror})
            finally:
                with contextlib.suppress(OSError):
                    os.close(fd)
        if retired:  # and so a segment was begun, whose name counts as much
            try:
                durable.sync_directory(self._path)
            except OSError as error:
                _log.exception("journal could not be synced", extra={"error": error.strerror})
