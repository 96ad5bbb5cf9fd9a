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
from tardis_machine.history.cache_limit import Bound, Pins, Tally, file_size, remove
from tardis_machine.history.errors import CacheError

log = logging.getLogger(__name__)

MINUTE: Final = 60_000_000
"""A minute in microseconds; slices are counted in minutes since the epoch."""

LONGEST_SLICE: Final = 24 * 60
"""The most minutes of a slice, and how far before a minute a file that covers it may begin."""

_UNFINISHED: Final = ".unfinished"
_OLD_PINS: Final = ".pins"
_OLD_PIN_FOLDER: Final = re.compile(r"\d+-[0-9a-f]{32}")
_ABANDONED_S: Final = 24 * 3600
_MAX_VERIFIED: Final = 10_000
_LOW_BYTES: Final = 1 << 30
_LOW_SHARE: Final = 0.05
"""Of the disk: with less free than this, and than `_LOW_BYTES`, nothing more is to be kept."""

_NAME: Final = re.compile(r"([0-5]\d)(?:\.size-([1-9]\d{0,3}))?\.json\.(?:gz|zst)", re.ASCII)


class CachedSlice(NamedTuple):
    """A file that holds `minutes` minutes from minute `start` on."""

    start: int
    minutes: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.minutes


class Cache:
    """Slices as files: `feeds/{exchange}/{key}/{year}/{month}/{day}/{hour}/{minute}…`.

    Nothing at all is written to a directory that is `read_only`. Nothing is removed through
    symbolic links, though slices may be read and stored through those of the directory's owner.
    """

    def __init__(
        self, directory: Path, max_bytes: int | None = None, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._pins = Pins()
        self._read_only = read_only
        self._tally = Tally(directory, _NAME)
        self._bound = None
        if max_bytes is not None:
            self._bound = Bound(directory, max_bytes, _NAME, self._pins)
        self._passing: set[Path] = set()
        self._lock = threading.Lock()
        self._verified: dict[Path, tuple[int, int]] = {}
        self._swept = False

    def path(self, exchange: str, key: str, start: int, minutes: int, suffix: str) -> Path:
        """Where a slice is kept; `suffix` is `gz` or `zst`."""
        minute = datetime.fromtimestamp(start * 60, UTC)
        size = "" if minutes == 1 else f".size-{minutes}"
        return self._hour(exchange, key, start) / f"{minute:%M}{size}.json.{suffix}"

    def _hour(self, exchange: str, key: str, minute: int) -> Path:
        moment = datetime.fromtimestamp(minute * 60, UTC)
        return self.directory / "feeds" / exchange / key / f"{moment:%Y/%m/%d/%H}"

    def slices(self, exchange: str, key: str, hour: int) -> Iterator[CachedSlice]:
        """Yield the slices that start in an hour (counted since the epoch).

        A name with more minutes than a slice may have is no slice's.
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
        """Write a slice under a name that no reader looks at; rename it once it proved sound.

        Returns its size. The file is pinned: the replay that asked for it has yet to read it.
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
                self._passing.add(path)
        except OSError as error:
            self.unpin(path)
            raise CacheError(Path(error.filename or path), error) from None
        return size

    @contextmanager
    def _unfinished(self) -> Iterator[int]:
        """Open the directory of what is being written; the first time, what is old there goes."""
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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.mark_verified(temporary, named=path)
            # Before it can be seen, or it might be evicted between the two.
            self._pins.add(path, found_at=temporary)
        except OSError as error:
            raise CacheError(path, error) from None
        try:
            os.replace(temporary.name, path, src_dir_fd=folder)
        except OSError as error:
            self.unpin(path)
            raise CacheError(path, error) from None

    def _account(self, size: int) -> None:
        if self._bound is None:
            self._tally.add(size)
        else:
            self._bound.stored(size)

    def _is_low(self) -> bool:
        """Return whether so little of the disk is free that nothing more is to be kept."""
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize
        limit = min(_LOW_BYTES, int(disk.f_blocks * disk.f_frsize * _LOW_SHARE))
        if free >= limit:
            return False
        event = "the cache's disk is nearly full, slices are deleted once they are read"
        warn_once(self.directory, event, free_bytes=free, expected_bytes=limit)
        return True

    def discard(self, path: Path) -> None:
        """Remove a file that turned out to be bad; behind a link it stays, to be replaced."""
        self._verified.pop(path, None)
        try:
            with suppress(FileNotFoundError):
                unlink_below(self.directory, path)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise CacheError(path, error) from None

    def clear(self) -> None:
        """Remove every slice; what else the directory may hold is left alone."""
        try:
            if self.directory.is_dir():
                self._remove_folders("feeds", _UNFINISHED)
            self._verified.clear()
            if self._bound is not None:
                self._bound.forget()
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
        """Remember that a file was read to its end without a fault."""
        status = path.stat()
        with self._lock:
            self._verified[named or path] = (status.st_size, status.st_mtime_ns)
            if len(self._verified) > _MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]

    def is_verified(self, path: Path) -> bool:
        """Return whether this process has read exactly this file before."""
        known = self._verified.get(path)
        if known is None:
            return False
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        return known == (status.st_size, status.st_mtime_ns)

    @property
    def pinned(self) -> int:
        """How many slices replays of this process are about to read."""
        return len(self._pins)

    def pin(self, path: Path) -> None:
        """Keep a file from eviction by this process until its reader calls `unpin`."""
        self._pins.add(path)

    def unpin(self, path: Path) -> None:
        """Remove one pin; with the last, remove a file stored while the disk was nearly full."""
        if not self._pins.remove(path):
            return
        if path in self._passing:
            self._passing.discard(path)
            self._remove_read(path)
        elif self._bound is not None:
            self._bound.unpinned(path)

    def _remove_read(self, path: Path) -> None:
        try:
            status = path.lstat()
        except OSError:
            return
        if not remove(self.directory, path):
            return
        if self._bound is None:
            self._tally.add(-status.st_size)
        else:
            self._bound.removed(status.st_size)

    def total_bytes(self) -> int | None:
        """Return the bytes of all slices; None where they are not counted, or not yet."""
        if self._read_only:
            return None
        return self._tally.total() if self._bound is None else self._bound.total()

    def has_room(self, expected_bytes: int) -> bool:
        """Return whether so much can come without exceeding the bound, all that may go gone."""
        return self.max_bytes is None or self._pins.bytes + expected_bytes <= self.max_bytes


class Coverage:
    """Which cached files cover the minutes of one replay; each hour is listed once."""

    def __init__(self, cache: Cache, exchange: str, keys: Sequence[str]) -> None:
        self._cache = cache
        self._exchange = exchange
        self._keys = keys
        self._listed_from = self._listed_to = 0
        self._covering: dict[int, list[CachedSlice]] = {}

    def add(self, cached: CachedSlice) -> None:
        """Note a file."""
        for minute in range(cached.start, cached.end):
            self._covering.setdefault(minute, []).append(cached)

    def forget(self, cached: CachedSlice) -> None:
        """Drop a file that proved bad or is gone."""
        for minute in range(cached.start, cached.end):
            self._covering[minute] = [each for each in self._files(minute) if each != cached]

    def drop_before(self, minute: int) -> None:
        """Forget what lies behind, so that a replay of years holds a day."""
        for each in [each for each in self._covering if each < minute]:
            del self._covering[each]

    def at(self, minute: int) -> CachedSlice | None:
        """Return the file that covers a minute and reaches furthest."""
        return max(self._files(minute), key=_end, default=None)

    def starting(self, minute: int, limit: int | None = None) -> CachedSlice | None:
        """Return the file that starts with a minute and reaches furthest, up to a limit."""
        files = [each for each in self._files(minute) if each.start == minute]
        if limit is not None:
            files = [each for each in files if each.end <= limit]
        return max(files, key=_end, default=None)

    def ending(self, minute: int, start: int) -> CachedSlice | None:
        """Return the shortest file that ends before a minute and does not begin before `start`."""
        files = [each for each in self._files(minute - 1) if each.end == minute]
        return max((each for each in files if each.start >= start), key=_start, default=None)

    def _files(self, minute: int) -> Sequence[CachedSlice]:
        hour = minute // 60
        if not self._listed_from <= hour < self._listed_to:
            self._list(hour)
        return self._covering.get(minute, ())

    def gap(self, minute: int, limit: int) -> int:
        """How many minutes from `minute` on, at most `limit`, no file covers."""
        for length in range(limit):
            if self.at(minute + length) is not None:
                return length
        return limit

    def _list(self, hour: int) -> None:
        first = hour - LONGEST_SLICE // 60
        if self._listed_from <= hour and first < self._listed_to:
            first = self._listed_to
        else:
            self._listed_from = hour
        for each in range(first, hour + 1):
            for key in self._keys:
                for cached in self._cache.slices(self._exchange, key, each):
                    self.add(cached)
        self._listed_to = hour + 1


_start: Final = attrgetter("start")
_end: Final = attrgetter("end")


def _sweep(folder: int) -> None:
    """Remove what processes that were killed have left."""
    for entry in list(os.scandir(folder)):
        with suppress(OSError):
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                os.unlink(entry.name, dir_fd=folder)


def _remove_old_pins(path: Path) -> None:
    """Remove the hard links with which earlier versions kept slices from eviction.

    They occupy the disk of slices that are evicted. Folders of other names stay.
    """
    with suppress(OSError):  # there is none, it is a link, or other files are in it
        pins = open_directory(path)
        try:
            for name in [each.name for each in os.scandir(pins)]:
                if _OLD_PIN_FOLDER.fullmatch(name):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=pins)
        finally:
            os.close(pins)
        path.rmdir()
