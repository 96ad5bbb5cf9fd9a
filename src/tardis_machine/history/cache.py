"""The cache on disk, in the layout of the official clients."""

import io
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tardis_machine.history.bound import Bound, Pins
from tardis_machine.history.errors import CacheError
from tardis_machine.history.pieces import verify

log = logging.getLogger(__name__)

MINUTE: Final = 60_000_000
"""A minute in microseconds; slices are counted in minutes since the epoch."""

LONGEST_SLICE: Final = 24 * 60
"""The most minutes of a slice, and how far before a minute a file that covers it may begin."""

_UNFINISHED: Final = ".unfinished"
_ABANDONED_S: Final = 24 * 3600
_MAX_VERIFIED: Final = 10_000

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

    Nothing at all is written to a directory that is `read_only`.
    """

    def __init__(
        self, directory: Path, max_bytes: int | None = None, *, read_only: bool = False
    ) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._pins = Pins(directory, links=not read_only)
        self._bound = None
        if max_bytes is not None:
            self._bound = Bound(directory, max_bytes, _NAME, self._pins)
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
        """Write a slice under a name nobody looks at; give it its own once it proved sound.

        Returns its size. The file is pinned: whoever asked for it has yet to read it.
        """
        unique = f"{os.getpid()}-{threading.get_ident()}"
        temporary = self.directory / _UNFINISHED / f"{unique}-{path.name}"
        try:
            with self._create(temporary) as file:
                for chunk in chunks:
                    self._write(file, chunk)
            verify(temporary)
            size, replaced = _size(temporary), _size(path)
            self._publish(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink()
        if self._bound is not None:
            try:
                self._bound.stored(size - replaced)
            except OSError as error:
                self.unpin(path)
                raise CacheError(path, error) from None
        return size

    def _create(self, path: Path) -> io.FileIO:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self._swept:
                self._swept = True
                _sweep(path.parent)
            return path.open("wb", buffering=0)
        except OSError as error:
            raise CacheError(path, error) from None

    def _write(self, file: io.FileIO, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            raise CacheError(Path(str(file.name)), error) from None

    def _publish(self, temporary: Path, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.mark_verified(temporary, named=path)
            # Before it can be seen, or it might be evicted between the two.
            self._pins.add(path, found_at=temporary)
        except OSError as error:
            raise CacheError(path, error) from None
        try:
            temporary.replace(path)
        except OSError as error:
            self.unpin(path)
            raise CacheError(path, error) from None

    def discard(self, path: Path) -> None:
        """Remove a file that turned out to be bad."""
        self._verified.pop(path, None)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(path, error) from None

    def clear(self) -> None:
        """Remove every slice; what else the directory may hold is left alone."""
        try:
            for directory in (self.directory / "feeds", self.directory / _UNFINISHED):
                if directory.is_dir() and not directory.is_symlink():
                    shutil.rmtree(directory)
            self._verified.clear()
            if self._bound is not None:
                self._bound.forget()
        except OSError as error:
            raise CacheError(self.directory, error, use="cleared") from None
        log.info("cache cleared", extra={"directory": str(self.directory)})

    def mark_verified(self, path: Path, *, named: Path | None = None) -> None:
        """Remember that a file was read to its end without a fault."""
        status = path.stat()
        with self._lock:
            self._verified[named or path] = (status.st_size, status.st_mtime_ns)
            if len(self._verified) > _MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]

    def is_verified(self, path: Path) -> bool:
        """Tell whether this process has read exactly this file before."""
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
        """How many slices replays of this process keep from eviction."""
        return len(self._pins)

    def pin(self, path: Path) -> None:
        """Keep a file from eviction, by any process, until a reader is done with it."""
        self._pins.add(path)

    def unpin(self, path: Path) -> None:
        """Let go of a file."""
        if self._pins.remove(path) and self._bound is not None:
            self._bound.unpinned(path)

    def has_room(self, expected_bytes: int) -> bool:
        """Tell whether so much can come without exceeding the bound, all that may go gone."""
        return self.max_bytes is None or self._pins.bytes + expected_bytes <= self.max_bytes

    def close(self) -> None:
        """Let go of every file."""
        self._pins.close()


class Coverage:
    """Which cached files cover the minutes of one replay; each hour is listed once."""

    def __init__(self, cache: Cache, exchange: str, keys: Sequence[str]) -> None:
        self._cache = cache
        self._exchange = exchange
        self._keys = keys
        self._listed_from = self._listed_to = 0
        self._covering: dict[int, CachedSlice] = {}

    def add(self, cached: CachedSlice) -> None:
        """Note a file; of several that cover a minute the one that reaches furthest counts."""
        for minute in range(cached.start, cached.end):
            known = self._covering.get(minute)
            if known is None or known.end < cached.end:
                self._covering[minute] = cached

    def forget(self, cached: CachedSlice) -> None:
        """Drop a file that proved bad or is gone."""
        for minute in range(cached.start, cached.end):
            if self._covering.get(minute) == cached:
                del self._covering[minute]

    def drop_before(self, minute: int) -> None:
        """Forget what lies behind, so that a replay of years holds a day."""
        for each in [each for each in self._covering if each < minute]:
            del self._covering[each]

    def at(self, minute: int) -> CachedSlice | None:
        """Return the file that covers a minute and reaches furthest."""
        hour = minute // 60
        if not self._listed_from <= hour < self._listed_to:
            self._list(hour)
        return self._covering.get(minute)

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


def _sweep(directory: Path) -> None:
    """Remove what processes that were killed have left."""
    for path in directory.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
