"""The size limit of a cache, shared by the processes that use it, and its eviction."""

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from tardis_machine.config import unlink_below

with suppress(ModuleNotFoundError):  # on Windows, where `WindowsCache` serves
    import fcntl

    _OWN_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

log = logging.getLogger(__name__)

# An eviction goes down to this share of the limit: each one has to list every file.
_EVICT_TO: Final = 0.9
_RECOUNT_S: Final = 3600.0
_USAGE: Final = ".usage"


class Pins:
    """Files that replays of this process are about to read, which it does not evict.

    Another process may evict them; the reader then fetches them again.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection of a reader unpins its files, even while this lock is held.
        self._lock = threading.RLock()
        self._pinned: dict[Path, _Pin] = {}
        self.bytes = 0
        """Total size of the pinned files."""

    def __contains__(self, path: Path) -> bool:
        return path in self._pinned

    def __len__(self) -> int:
        return len(self._pinned)

    def add(self, path: Path, *, current_path: Path | None = None) -> None:
        """Pin a file, which is at `current_path` until a rename; each call needs one `remove`."""
        size = file_size(current_path or path)
        with self._lock:
            pin = self._pinned.get(path)
            if pin is None:
                pin = self._pinned[path] = _Pin(size)
                self.bytes += size
            pin.count += 1

    def remove(self, path: Path) -> bool:
        """Remove one pin of a file; return whether it was the last."""
        with self._lock:
            pin = self._pinned[path]
            pin.count -= 1
            if pin.count:
                return False
            del self._pinned[path]
            self.bytes -= pin.size
        return True


class _Pin:
    __slots__ = ("count", "size")

    def __init__(self, size: int) -> None:
        self.count = 0
        self.size = size


class CacheLimit:
    """A size limit for the cached files of these names; the oldest are evicted first.

    Every process adds the slices that it stores to one total, in a file under a lock. A process
    that finds the total above the limit lists every file, counts again, and removes files down to
    a share of the limit.
    """

    def __init__(self, directory: Path, max_bytes: int, names: re.Pattern[str], pins: Pins) -> None:
        self.max_bytes = max_bytes
        self._directory = directory
        self._names = names
        self._pins = pins
        # Held while every file is listed: a thread with an event loop must not wait for it.
        self._lock = threading.Lock()
        self._counted = False
        # Set if the last eviction ended above the limit, because all files left were pinned.
        self._over = False

    def stored(self, size: int) -> None:
        """Add a stored file to the total; evict files if the total exceeds the limit."""
        with self._lock, self._usage() as usage:
            total = usage.read()
            # The first call counts every file: other clients do not add slices to the total.
            if self._counted and total is not None and total + size <= self.max_bytes:
                usage.write(total + size)
                return
            usage.write(self._evict())
            self._counted = True

    def unpinned(self, path: Path) -> None:
        """Remove a file if the last eviction ended above the limit; never wait for a lock."""
        if self._over:
            self._adjust(partial(self._without, path))

    def removed(self, size: int) -> None:
        """Subtract a removed file from the total; never wait for a lock."""
        self._adjust(lambda total: total - size)

    def total(self) -> int | None:
        """Return the shared total in bytes; None if it is unknown."""
        with suppress(OSError):
            file = os.open(self._directory / _USAGE, os.O_RDONLY | _OWN_FILE)
            try:
                return _Usage(file).read()
            finally:
                os.close(file)
        return None

    def reset(self) -> None:
        """Mark the total as unknown, so that the next `stored` counts every file."""
        with self._lock, self._usage() as usage:
            usage.write(None)

    def _without(self, path: Path, total: int) -> int:
        """Remove a file if the total exceeds the limit; return the new total."""
        size = file_size(path)
        return total - size if total > self.max_bytes and remove(self._directory, path) else total

    def _adjust(self, change: Callable[[int], int]) -> None:
        """Change the total, unless a lock is taken: the eviction that holds it counts anew."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with suppress(BlockingIOError), self._usage(wait=False) as usage:
                total = usage.read()
                if total is not None:
                    usage.write(change(total))
        finally:
            self._lock.release()

    def _evict(self) -> int:
        """List every file, evict the oldest if they exceed the limit, and return the new total."""
        files = sorted(cached_files(self._directory, self._names))
        total = sum(size for _, size, _ in files)
        removed = 0
        if total > self.max_bytes:
            for _, size, name in files:
                path = Path(name)
                if path not in self._pins and remove(self._directory, path):
                    total -= size
                    removed += 1
                if total <= self.max_bytes * _EVICT_TO:
                    break
        self._over = total > self.max_bytes
        if removed:
            log.info("cache evicted", extra={"files": removed, "bytes": total})
        return total

    @contextmanager
    def _usage(self, *, wait: bool = True) -> "Iterator[_Usage]":
        self._directory.mkdir(parents=True, exist_ok=True)
        file = os.open(self._directory / _USAGE, os.O_RDWR | os.O_CREAT | _OWN_FILE, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield _Usage(file)
        finally:
            os.close(file)


class _Usage:
    """The file with the shared total in bytes; empty while the total is unknown."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self) -> int | None:
        text = os.pread(self._file, 32, 0)
        return int(text) if text.isdigit() else None

    def write(self, total: int | None) -> None:
        if total is None:
            os.ftruncate(self._file, 0)
        else:  # one write of fixed length, so that readers need no lock
            os.pwrite(self._file, b"%020d" % max(total, 0), 0)


class SizeCounter:
    """The total size of a cache without a limit, counted by a background thread once an hour."""

    def __init__(self, directory: Path, names: re.Pattern[str]) -> None:
        self._directory = directory
        self._names = names
        self._lock = threading.Lock()
        self._total: int | None = None
        self._since = 0
        self._due = 0.0

    def add(self, size: int) -> None:
        """Add a file that this process stored; a negative size is a removed file."""
        with self._lock:
            self._since += size

    def total(self) -> int | None:
        """Return the last count plus the files stored since; None before the first count."""
        with self._lock:
            total = None if self._total is None else max(0, self._total + self._since)
            is_due = time.monotonic() >= self._due
            if is_due:
                self._due = time.monotonic() + _RECOUNT_S
        if is_due:
            with suppress(RuntimeError):  # no thread can be started: tried again in an hour
                threading.Thread(target=self._count, name="tardis-tally", daemon=True).start()
        return total

    def _count(self) -> None:
        total = sum(size for _, size, _ in cached_files(self._directory, self._names))
        with self._lock:
            self._total, self._since = total, 0


def cached_files(directory: Path, names: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Yield modification time, size and path of each regular file with such a name.

    Symbolic links are not followed.
    """
    for parent, _, filenames in os.walk(directory):
        for name in filenames:
            if names.fullmatch(name):
                path = f"{parent}/{name}"
                with suppress(OSError):
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        yield status.st_mtime_ns, status.st_size, path


def remove(directory: Path, path: Path) -> bool:
    """Remove a slice; return False, with a warning, if a symbolic link or an error prevents it."""
    try:
        with suppress(FileNotFoundError):
            unlink_below(directory, path)
    except OSError as error:
        log.warning("cached slice cannot be evicted", extra={"path": path, "error": str(error)})
        return False
    return True


def file_size(path: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
