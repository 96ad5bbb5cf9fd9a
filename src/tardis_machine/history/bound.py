"""A cache's bound, shared by the processes that use it: how much is there, and what goes first."""

import fcntl
import itertools
import logging
import os
import re
import shutil
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

# Down to this share of the bound, so that the next look at every file is far away.
_LOW: Final = 0.9
_USAGE: Final = ".usage"
_PINS: Final = ".pins"


class Pins:
    """Files about to be read: none of them is evicted, by this or any other process.

    A pinned file has a second name in a folder of this process, so that whoever evicts sees the
    link. The folder's lock ends with the process, and what a dead one left is removed.
    """

    def __init__(self, directory: Path, *, links: bool = True) -> None:
        self._directory = directory / _PINS
        self._links = links
        # Reentrant: a reader that is collected lets go of its files, at any allocation.
        self._lock = threading.RLock()
        self._held: dict[Path, _Held] = {}
        self._numbers = itertools.count()
        self._own: Path | None = None
        self._end: weakref.finalize[..., Pins] | None = None
        self.bytes = 0
        """The sizes of the pinned files, summed up."""

    def __contains__(self, path: Path) -> bool:
        return path in self._held

    def __len__(self) -> int:
        return len(self._held)

    def add(self, path: Path, *, found_at: Path | None = None) -> None:
        """Pin a file, once more if it is pinned already; it may have another name as yet."""
        with self._lock:
            held = self._held.get(path)
            if held is None:
                file = found_at or path
                held = self._held[path] = _Held(_size(file), self._link(file))
                self.bytes += held.size
            held.count += 1

    def remove(self, path: Path) -> bool:
        """Take one pin away; tell whether it was the last."""
        with self._lock:
            held = self._held[path]
            held.count -= 1
            if held.count:
                return False
            del self._held[path]
            self.bytes -= held.size
        if held.link is not None:
            with suppress(OSError):
                held.link.unlink()
        return True

    def close(self) -> None:
        """Let other processes evict everything."""
        with self._lock:
            self._own = None
            if self._end is not None:
                self._end()

    def sweep(self) -> None:
        """Remove what dead processes have left."""
        with suppress(FileNotFoundError):
            for folder in self._directory.iterdir():
                if folder != self._own and (lock := _try_lock(folder)) is not None:
                    _discard(folder, lock)

    def _link(self, path: Path) -> Path | None:
        if not self._links:
            return None
        # A file system without links, or a file that is gone: then it is pinned for us alone.
        with suppress(OSError):
            link = self._folder() / str(next(self._numbers))
            os.link(path, link)
            return link
        return None

    def _folder(self) -> Path:
        while self._own is None:
            folder = self._directory / f"{os.getpid()}-{uuid.uuid4().hex}"
            folder.mkdir(parents=True, exist_ok=True)
            lock = _try_lock(folder)
            if lock is None:  # another process swept it before it was locked
                continue
            self._own = folder
            self._end = weakref.finalize(self, _discard, folder, lock)
        return self._own


class _Held:
    __slots__ = ("count", "link", "size")

    def __init__(self, size: int, link: Path | None) -> None:
        self.count = 0
        self.size = size
        self.link = link


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
        self._in_the_way: frozenset[Path] = frozenset()

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
        """Remove a file at once that stood in the way of an eviction; does not wait."""
        if path not in self._in_the_way or not self._lock.acquire(blocking=False):
            return
        try:
            with suppress(BlockingIOError), self._usage(wait=False) as usage:
                total, size = usage.read(), _size(path)
                if total is not None and total > self.max_bytes and _remove(path):
                    usage.write(total - size)
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Count anew at the next store: files were removed."""
        with self._lock, self._usage() as usage:
            usage.write(None)

    def _evict(self) -> int:
        """Look at every file, remove as many as it takes; returns the total that is left."""
        self._pins.sweep()
        files = sorted(self._files())
        total = sum(size for _, size, _, _ in files)
        removed = 0
        in_the_way = []
        if total > self.max_bytes:
            for _, size, links, name in files:
                path = Path(name)
                if links > 1 or path in self._pins:
                    in_the_way.append(path)
                elif _remove(path):
                    total -= size
                    removed += 1
                if total <= self.max_bytes * _LOW:
                    break
        self._in_the_way = frozenset(in_the_way if total > self.max_bytes else ())
        if removed:
            log.info("cache evicted", extra={"files": removed, "bytes": total})
        return total

    def _files(self) -> Iterator[tuple[int, int, int, str]]:
        for parent, _, names in os.walk(self._directory):
            for name in names:
                if self._names.fullmatch(name):
                    path = f"{parent}/{name}"
                    with suppress(OSError):
                        status = os.stat(path)  # noqa: PTH116 - too many for an object each
                        yield status.st_mtime_ns, status.st_size, status.st_nlink, path

    @contextmanager
    def _usage(self, *, wait: bool = True) -> "Iterator[_Usage]":
        self._directory.mkdir(parents=True, exist_ok=True)
        file = os.open(self._directory / _USAGE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
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
        os.ftruncate(self._file, 0)
        if total is not None:
            os.pwrite(self._file, b"%d" % max(total, 0), 0)


def _remove(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cached slice cannot be evicted", extra={"path": path, "error": str(error)})
        return False
    return True


def _try_lock(folder: Path) -> int | None:
    """Lock a folder as long as the file that is returned stays open; None if another has it."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()  # it may have been removed before it was locked
    except OSError:
        os.close(file)
        return None
    return file


def _discard(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
