"""A cache's bound, shared by the processes that use it: how much is there, and what goes first."""

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

with suppress(ModuleNotFoundError):  # on Windows, where `PlainCache` serves
    import fcntl

    _OWN_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

log = logging.getLogger(__name__)

# Down to this share of the bound, so that the next look at every file is far away.
_LOW: Final = 0.9
_RECOUNT_S: Final = 3600.0
_USAGE: Final = ".usage"


class Pins:
    """Files that replays of this process are about to read: its own evictions leave them alone.

    Another process may evict them; the reader then fetches them again.
    """

    def __init__(self) -> None:
        # Reentrant: a reader that is garbage-collected unpins its files, at any allocation.
        self._lock = threading.RLock()
        self._pinned: dict[Path, _Pin] = {}
        self.bytes = 0
        """The sizes of the pinned files, summed up."""

    def __contains__(self, path: Path) -> bool:
        return path in self._pinned

    def __len__(self) -> int:
        return len(self._pinned)

    def add(self, path: Path, *, found_at: Path | None = None) -> None:
        """Pin a file, once more if it is pinned already; it may have another name as yet."""
        size = file_size(found_at or path)
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


class Bound:
    """Keeps the files of these names within `max_bytes`, the oldest go first.

    Every process adds what it stores to one total, kept in a file under a lock. Who finds it
    above the bound looks at every file, counts anew, and removes down to a share of it.
    """

    def __init__(self, directory: Path, max_bytes: int, names: re.Pattern[str], pins: Pins) -> None:
        self.max_bytes = max_bytes
        self._directory = directory
        self._names = names
        self._pins = pins
        # Held while every file is looked at: never wait for it where an event loop runs.
        self._lock = threading.Lock()
        self._counted = False
        # Set when the last eviction could not get below the bound: what is left is pinned.
        self._over = False

    def stored(self, size: int) -> None:
        """Account for a file that was stored; evict if that was too much."""
        with self._lock, self._usage() as usage:
            total = usage.read()
            # What other clients stored before this process began is in no total.
            if self._counted and total is not None and total + size <= self.max_bytes:
                usage.write(total + size)
                return
            usage.write(self._evict())
            self._counted = True

    def unpinned(self, path: Path) -> None:
        """Remove a file if the last eviction had to leave too much; does not wait."""
        if self._over:
            self._adjust(partial(self._without, path))

    def removed(self, size: int) -> None:
        """Account for a file that was removed; does not wait."""
        self._adjust(lambda total: total - size)

    def total(self) -> int | None:
        """Return the bytes of all slices, as processes with a bound count them; None if unknown."""
        with suppress(OSError):
            file = os.open(self._directory / _USAGE, os.O_RDONLY | _OWN_FILE)
            try:
                return _Usage(file).read()
            finally:
                os.close(file)
        return None

    def forget(self) -> None:
        """Count anew at the next store: files were removed."""
        with self._lock, self._usage() as usage:
            usage.write(None)

    def _without(self, path: Path, total: int) -> int:
        """Remove a file if there is too much; returns the total that is left."""
        size = file_size(path)
        return total - size if total > self.max_bytes and remove(self._directory, path) else total

    def _adjust(self, change: Callable[[int], int]) -> None:
        """Change the total unless that would have to wait: an eviction counts anew."""
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
        """Look at every file, remove as many as it takes; returns the total that is left."""
        files = sorted(cached_files(self._directory, self._names))
        total = sum(size for _, size, _ in files)
        removed = 0
        if total > self.max_bytes:
            for _, size, name in files:
                path = Path(name)
                if path not in self._pins and remove(self._directory, path):
                    total -= size
                    removed += 1
                if total <= self.max_bytes * _LOW:
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
    """The shared total, in bytes; None where it is not known."""

    def __init__(self, file: int) -> None:
        self._file = file

    def read(self) -> int | None:
        text = os.pread(self._file, 32, 0)
        return int(text) if text.isdigit() else None

    def write(self, total: int | None) -> None:
        if total is None:
            os.ftruncate(self._file, 0)
        else:  # always as long, so that it may be read meanwhile
            os.pwrite(self._file, b"%020d" % max(total, 0), 0)


class Tally:
    """The bytes of a cache without a bound: counted in the background, at most every hour."""

    def __init__(self, directory: Path, names: re.Pattern[str]) -> None:
        self._directory = directory
        self._names = names
        self._lock = threading.Lock()
        self._total: int | None = None
        self._since = 0
        self._due = 0.0

    def add(self, size: int) -> None:
        """Account for a file that this process stored or, with a negative size, removed."""
        with self._lock:
            self._since += size

    def total(self) -> int | None:
        """Return the bytes that were counted, with what was stored since; None at first."""
        with self._lock:
            total = None if self._total is None else max(0, self._total + self._since)
            is_due = time.monotonic() >= self._due
            if is_due:
                self._due = time.monotonic() + _RECOUNT_S
        if is_due:
            with suppress(RuntimeError):  # too many threads: the next hour will do
                threading.Thread(target=self._count, name="tardis-tally", daemon=True).start()
        return total

    def _count(self) -> None:
        total = sum(size for _, size, _ in cached_files(self._directory, self._names))
        with self._lock:
            self._total, self._since = total, 0


def cached_files(directory: Path, names: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Yield time, size and path of each regular file whose name matches; follow no link."""
    for parent, _, found in os.walk(directory):
        for name in found:
            if names.fullmatch(name):
                path = f"{parent}/{name}"
                with suppress(OSError):
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        yield status.st_mtime_ns, status.st_size, path


def remove(directory: Path, path: Path) -> bool:
    """Remove a slice, unless a link is on the way to it; tell whether it is gone."""
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
