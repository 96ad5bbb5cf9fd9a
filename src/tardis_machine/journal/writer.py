"""The server's end of the journal: entries appended before they are sent."""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import entry, log, segment
from tardis_machine.journal.space import Space

_log = logging.getLogger(__name__)
_LARGEST_SEGMENT: Final = 64 * 1024 * 1024
_SEGMENTS_AT_LEAST: Final = 16


class JournalFullError(TardisMachineError):
    """The journal has no room and the policy says that this ends the response."""

    retriable = True

    def __init__(self, used: int, limit: int) -> None:
        self.used = used
        self.limit = limit
        super().__init__(
            f"the journal is full ({used} of {limit} bytes): a bus is behind or the disk is full; "
            "see --journal-max-bytes and --journal-when-full"
        )


class Writer:
    """Appends to the one log that this process owns."""

    def __init__(
        self,
        directory: Path,
        producer_id: str,
        buses: Sequence[str],
        *,
        max_bytes: int,
        stall_s: float = 60.0,
        fsync: float | None = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start a log. `fsync`: seconds between syncs, 0 for every append, None for never."""
        self.space = Space(directory, buses, max_bytes=max_bytes, stall_s=stall_s, clock=clock)
        self.messages = 0
        self.segment_bytes = max(1, min(_LARGEST_SEGMENT, max_bytes // _SEGMENTS_AT_LEAST))
        meta = log.Meta(producer_id=producer_id, buses=list(buses), pid=os.getpid())
        now = datetime.now(UTC)
        name = f"{now:%Y%m%dT%H%M%S.%f}-{secrets.token_hex(4)}"
        self.path, self._lock = log.create(directory, name, meta)
        self.space.own = self.path
        self._fsync = fsync
        self._number = -1
        self._fd = -1
        self._size = 0
        self._refused = 0
        self._disk_full = False
        self._rotate()
        self._syncer = _Syncer(fsync) if fsync else None

    def append(
        self, provenance: bytes, data: bytes, count: int, position: int, *, hidden: bool = False
    ) -> bool:
        """Write one entry; False if it does not fit."""
        size = entry.HEADER_BYTES + len(provenance) + len(data)
        if not self.space.fits(size):
            self._refused = size
            self.space.full()
            return False
        over = self._size + size > self.segment_bytes and self._size > segment.HEADER_BYTES
        if over and not self._rotate():
            return False
        now = time.time_ns() // 1000
        head = entry.header(provenance, data, count, position, now, hidden=hidden)
        if not self._write((head, provenance, data), size):
            return False
        self.messages += count
        if self._fsync is not None:
            if self._syncer is None:
                os.fdatasync(self._fd)
            else:
                self._syncer.dirty(self._fd)
        return True

    def has_room(self) -> bool:
        """Tell whether what was refused last would fit now."""
        return not self._disk_full and self.space.fits(self._refused)

    def make_room(self, *, forced: bool) -> bool:
        """Give up the oldest segment at the expense of stalled buses, or of the furthest behind."""
        if self._size > segment.HEADER_BYTES and len(segment.list_log(self.path).segments) == 1:
            # The only segment may have to go: it can once it is not the one written to.
            self._rotate()
        return self.space.skip_oldest(forced=forced)

    def close(self) -> None:
        """End the log. The publisher deletes it once it is delivered."""
        if self._syncer is not None:
            self._syncer.stop()
        if self._fd >= 0:
            if self._fsync is not None:
                os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
            os.close(self._lock)

    def _rotate(self) -> bool:
        """Begin the next segment; False if the disk has no room for it."""
        number = self._number + 1
        path = segment.segment_path(self.path, number)
        fd = -1
        try:
            fd = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            os.write(fd, segment.segment_header(number, self.messages))
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                path.unlink(missing_ok=True)
            if error.errno not in segment.FULL or number == 0:
                raise
            self._disk_full = True
            self.space.full()
            return False
        if self._fd >= 0:
            if self._fsync is None:
                os.close(self._fd)
            elif self._syncer is None:
                os.fdatasync(self._fd)
                os.close(self._fd)
            else:
                self._syncer.retire(self._fd)
        self._fd, self._number, self._size = fd, number, segment.HEADER_BYTES
        self.space.add(segment.HEADER_BYTES)
        return True

    def _write(self, parts: tuple[bytes, ...], size: int) -> bool:
        """Write an entry whole or not at all; False if the disk is full."""
        try:
            written = os.writev(self._fd, parts)
            if written != size:
                rest = b"".join(parts)
                while written < size:
                    written += os.write(self._fd, rest[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            if error.errno not in segment.FULL:
                raise
            self._disk_full = True
            self.space.full()
            return False
        self._size += size
        self.space.written(size)
        self._disk_full = False
        return True


class _Syncer:
    """A thread that syncs what was written since the last time, and closes retired segments."""

    def __init__(self, interval_s: float) -> None:
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
