"""The cache on disk, in the layout of the official clients."""

import errno
import io
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from tardis_machine.config import open_directory, unlink_below, warn_once
from tardis_machine.history.blocks import verify
from tardis_machine.history.cache_limit import CacheLimit, Pins, SizeCounter, file_size, remove
from tardis_machine.history.errors import CacheError

log = logging.getLogger(__name__)

MINUTE: Final = 60_000_000
"""A minute in microseconds."""

LONGEST_SLICE: Final = 24 * 60
"""The most minutes of a slice."""

_UNFINISHED: Final = ".unfinished"
_OLD_PINS: Final = ".pins"
_OLD_PIN_FOLDER: Final = re.compile(r"\d+-[0-9a-f]{32}")
_ABANDONED_S: Final = 24 * 3600
_MAX_VERIFIED: Final = 10_000
_LOW_BYTES: Final = 1 << 30
_LOW_SHARE: Final = 0.05
"""Share of the disk: slices are not kept if less than this and than `_LOW_BYTES` is free."""

_NAME: Final = re.compile(r"([0-5]\d)(?:\.size-([1-9]\d{0,3}))?\.json\.(?:gz|zst)", re.ASCII)


class CachedSlice(NamedTuple):
    """A file in the cache with `minutes` minutes from minute `start` on (since the epoch)."""

    start: int
    minutes: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.minutes


class Cache:
    """Slices as files: `feeds/{exchange}/{key}/{year}/{month}/{day}/{hour}/{minute}…`.

    All threads of a process share a cache, and all processes of a user its directory. With
    `read_only` nothing is written to the directory. Slices are read and stored through symbolic
    links in it, but never removed through one.
    """

    def __init__(
        self, directory: Path, max_bytes: int | None = None, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._pins = Pins()
        self._read_only = read_only
        self._size_counter = SizeCounter(directory, _NAME)
        self._limit = None
        if max_bytes is not None:
            self._limit = CacheLimit(directory, max_bytes, _NAME, self._pins)
        self._delete_after_read: set[Path] = set()
        self._lock = threading.Lock()
        self._verified: dict[Path, tuple[int, int]] = {}
        self._swept = False

    def path(self, exchange: str, key: str, start: int, minutes: int, suffix: str) -> Path:
        """Return the path of a slice; `suffix` is `gz` or `zst`."""
        minute = datetime.fromtimestamp(start * 60, UTC)
        size = "" if minutes == 1 else f".size-{minutes}"
        return self._hour(exchange, key, start) / f"{minute:%M}{size}.json.{suffix}"

    def _hour(self, exchange: str, key: str, minute: int) -> Path:
        moment = datetime.fromtimestamp(minute * 60, UTC)
        return self.directory / "feeds" / exchange / key / f"{moment:%Y/%m/%d/%H}"

    def slices(self, exchange: str, key: str, hour: int) -> Iterator[CachedSlice]:
        """Yield the slices that start in an hour (counted since the epoch).

        A file whose name has more minutes than a slice may have is skipped.
        """
        directory = self._hour(exchange, key, hour * 60)
        try:
            names = os.listdir(directory)  # noqa: PTH208 - one object per file costs too much here
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise CacheError(directory, error, use="read") from None
        for name in names:
            if match := _NAME.fullmatch(name):
                minute, minutes = int(match[1]), int(match[2] or 1)
                if minutes <= LONGEST_SLICE:
                    yield CachedSlice(hour * 60 + minute, minutes, directory / name)

    def store(self, path: Path, chunks: Iterable[bytes]) -> int:
        """Write a slice to a temporary file, verify it, and rename it; return its size.

        The slice is pinned, and the caller unpins it. Raises CorruptSliceError if the chunks do
        not decompress, and CacheError if the directory cannot be written.
        """
        name = f"{os.getpid()}-{threading.get_ident()}-{path.name}"
        temporary = self.directory / _UNFINISHED / name
        with self._unfinished() as folder:
            try:
                with self._create(temporary, folder) as file:
                    for chunk in chunks:
                        self._write(file, chunk, temporary)
                verify(temporary)
                size, replaced = file_size(temporary), file_size(path)
                self._publish(temporary, folder, path)
            finally:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        try:
            self._account(size - replaced)
            if self._is_low():
                self._delete_after_read.add(path)
        except OSError as error:
            self.unpin(path)
            raise CacheError(Path(error.filename or path), error) from None
        return size

    @contextmanager
    def _unfinished(self) -> Iterator[int]:
        """Open the folder of temporary files; remove abandoned ones at the first call."""
        path = self.directory / _UNFINISHED
        try:
            path.mkdir(parents=True, exist_ok=True)
            folder = open_directory(path)
        except OSError as error:
            raise CacheError(path, error) from None
        try:
            if not self._swept:
                self._swept = True
                _sweep(folder)
                _remove_old_pins(self.directory / _OLD_PINS)
            yield folder
        finally:
            os.close(folder)

    def _create(self, path: Path, folder: int) -> io.FileIO:
        """Create a temporary file in an open folder; replace one that a killed process left."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=folder)
            return os.fdopen(os.open(path.name, flags, 0o666, dir_fd=folder), "wb", buffering=0)
        except OSError as error:
            raise CacheError(path, error) from None

    def _write(self, file: io.FileIO, chunk: bytes, path: Path) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise CacheError(path, error) from None

    def _publish(self, temporary: Path, folder: int, path: Path) -> None:
        """Pin a verified file and rename it to its path, where readers find it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.mark_verified(temporary, named=path)
            # Pinned before the rename: another thread could evict the file between both.
            self._pins.add(path, current_path=temporary)
        except OSError as error:
            raise CacheError(path, error) from None
        try:
            os.replace(temporary.name, path, src_dir_fd=folder)
        except OSError as error:
            self.unpin(path)
            raise CacheError(path, error) from None

    def _account(self, size: int) -> None:
        if self._limit is None:
            self._size_counter.add(size)
        else:
            self._limit.stored(size)

    def _is_low(self) -> bool:
        """Return whether the disk is so full that new slices are deleted once they are read."""
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize
        limit = min(_LOW_BYTES, int(disk.f_blocks * disk.f_frsize * _LOW_SHARE))
        if free >= limit:
            return False
        warn_once(
            self.directory,
            "the cache's disk is nearly full, slices are deleted once they are read",
            free_bytes=free,
            expected_bytes=limit,
            to_keep_them="free space on the disk, or set --cache-max-bytes",
        )
        return True

    def discard(self, path: Path) -> None:
        """Remove a corrupt file; one behind a symbolic link stays until a new one replaces it."""
        self._verified.pop(path, None)
        try:
            with suppress(FileNotFoundError):
                unlink_below(self.directory, path)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise CacheError(path, error) from None

    def clear(self) -> None:
        """Remove every slice; leave other files of the directory alone."""
        try:
            if self.directory.is_dir():
                self._remove_folders("feeds", _UNFINISHED)
            self._verified.clear()
            if self._limit is not None:
                self._limit.reset()
        except OSError as error:
            raise CacheError(self.directory, error, use="cleared") from None
        log.info("cache cleared", extra={"directory": str(self.directory)})

    def _remove_folders(self, *names: str) -> None:
        top = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                with suppress(FileNotFoundError):
                    shutil.rmtree(name, dir_fd=top)  # refuses a link
        finally:
            os.close(top)

    def mark_verified(self, path: Path, *, named: Path | None = None) -> None:
        """Record that a file, which a rename will call `named`, was read without an error."""
        status = path.stat()
        with self._lock:
            self._verified[named or path] = (status.st_size, status.st_mtime_ns)
            if len(self._verified) > _MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]

    def is_verified(self, path: Path) -> bool:
        """Return whether this process verified the file and it has not changed since."""
        verified = self._verified.get(path)
        if verified is None:
            return False
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        return verified == (status.st_size, status.st_mtime_ns)

    @property
    def pinned(self) -> int:
        """Number of slices that replays of this process are reading or will read next."""
        return len(self._pins)

    def pin(self, path: Path) -> None:
        """Keep this process from evicting a file until `unpin`; other processes still may."""
        self._pins.add(path)

    def unpin(self, path: Path) -> None:
        """Remove one pin; with the last, remove a file stored while the disk was nearly full."""
        if not self._pins.remove(path):
            return
        if path in self._delete_after_read:
            self._delete_after_read.discard(path)
            self._remove_read(path)
        elif self._limit is not None:
            self._limit.unpinned(path)

    def _remove_read(self, path: Path) -> None:
        try:
            status = path.lstat()
        except OSError:
            return
        if not remove(self.directory, path):
            return
        if self._limit is None:
            self._size_counter.add(-status.st_size)
        else:
            self._limit.removed(status.st_size)

    def total_bytes(self) -> int | None:
        """Return the bytes of all slices; None if they are not counted, or not yet."""
        if self._read_only:
            return None
        return self._size_counter.total() if self._limit is None else self._limit.total()

    def has_room(self, expected_bytes: int) -> bool:
        """Return whether this many bytes fit beside the pinned slices, which cannot be evicted."""
        return self.max_bytes is None or self._pins.bytes + expected_bytes <= self.max_bytes


class Coverage:
    """The cached files that cover the minutes of one replay; each hour is listed once."""

    def __init__(self, cache: Cache, exchange: str, keys: Sequence[str]) -> None:
        self._cache = cache
        self._exchange = exchange
        self._keys = keys
        self._listed_from = self._listed_to = 0
        self._covering: dict[int, list[CachedSlice]] = {}

    def add(self, cached: CachedSlice) -> None:
        """Add a file to every minute that it covers."""
        for minute in range(cached.start, cached.end):
            self._covering.setdefault(minute, []).append(cached)

    def remove(self, cached: CachedSlice) -> None:
        """Remove a file that is corrupt or was evicted."""
        for minute in range(cached.start, cached.end):
            self._covering[minute] = [file for file in self._files(minute) if file != cached]

    def drop_before(self, minute: int) -> None:
        """Drop the minutes before this one, so that a replay of years holds a day in memory."""
        for past in [covered for covered in self._covering if covered < minute]:
            del self._covering[past]

    def at(self, minute: int) -> CachedSlice | None:
        """Return the file that covers a minute and ends last; None if no file does."""
        return max(self._files(minute), key=_end, default=None)

    def starting(self, minute: int, limit: int | None = None) -> CachedSlice | None:
        """Return the file that starts with a minute and ends last, at `limit` or before."""
        files = [file for file in self._files(minute) if file.start == minute]
        if limit is not None:
            files = [file for file in files if file.end <= limit]
        return max(files, key=_end, default=None)

    def ending(self, minute: int, start: int) -> CachedSlice | None:
        """Return the shortest file that ends before a minute and does not begin before `start`."""
        files = [file for file in self._files(minute - 1) if file.end == minute]
        return max((file for file in files if file.start >= start), key=_start, default=None)

    def _files(self, minute: int) -> Sequence[CachedSlice]:
        hour = minute // 60
        if not self._listed_from <= hour < self._listed_to:
            self._list(hour)
        return self._covering.get(minute, ())

    def gap(self, minute: int, limit: int) -> int:
        """Return how many minutes from `minute` on no file covers, at most `limit`."""
        for length in range(limit):
            if self.at(minute + length) is not None:
                return length
        return limit

    def _list(self, hour: int) -> None:
        """List the slices that may cover an hour: those that start up to a day before it."""
        first = hour - LONGEST_SLICE // 60
        if self._listed_from <= hour and first < self._listed_to:
            first = self._listed_to
        else:
            self._listed_from = hour
        for listed_hour in range(first, hour + 1):
            for key in self._keys:
                for cached in self._cache.slices(self._exchange, key, listed_hour):
                    self.add(cached)
        self._listed_to = hour + 1


_start: Final = attrgetter("start")
_end: Final = attrgetter("end")


def _sweep(folder: int) -> None:
    """Remove temporary files that killed processes left behind."""
    for entry in list(os.scandir(folder)):
        with suppress(OSError):
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                os.unlink(entry.name, dir_fd=folder)


def _remove_old_pins(path: Path) -> None:
    """Remove the hard links with which earlier versions kept slices from eviction.

    Each keeps the disk space of an evicted slice in use. Folders of other names stay.
    """
    with suppress(OSError):  # no such folder, a link, or a folder with other files
        pins = open_directory(path)
        try:
            for name in [entry.name for entry in os.scandir(pins)]:
                if _OLD_PIN_FOLDER.fullmatch(name):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=pins)
        finally:
            os.close(pins)
        path.rmdir()
