"""The door to history: one per process, shared by every replay in it."""

import logging
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, Self

from tardis_machine.config import DefaultDirectory, claim, warn_once
from tardis_machine.history.cache import MINUTE, Cache
from tardis_machine.history.client import (
    API_WAIT_S,
    DEFAULT_ENDPOINT,
    MAX_TRIES,
    Client,
    SliceRequest,
)
from tardis_machine.history.due import Clock, DueTimes, Lag, system_clock
from tardis_machine.history.errors import HistoryError, ReaderClosedError
from tardis_machine.history.fetches import MAX_FETCHES, Fetches
from tardis_machine.history.filters import Filter, cache_keys, normalize, to_json
from tardis_machine.history.plain import HAS_POSIX, PlainCache
from tardis_machine.history.reader import HistoryReader, Select

log = logging.getLogger(__name__)

_DEFAULT: Final = DefaultDirectory("XDG_CACHE_HOME", ".cache", "slices")
_EXCHANGE: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class Source(Protocol):
    """Slices on disk, without filters, that are all there is: nothing is fetched or written."""

    @property
    def directory(self) -> Path:
        """Where they are, in the cache's layout."""

    def part(self, exchange: str, start: int, end: int) -> tuple[int, int] | None:
        """Tell what it has between two times (in microseconds) of this exchange."""

    def description(self) -> str:
        """Name the exchanges and times in it, for headers, errors and logs."""

    def selection(self, exchange: str, filters: Sequence[Filter]) -> Select | None:
        """Keep the lines of a block that filters ask for; None if they ask for all."""


class History:
    """Slices of exchanges' messages: cached on disk, fetched where they are missing.

    With a `source` that is all there is, and the network is never used: what is asked for beyond
    it is empty, if any of it is there at all. A replay keeps at most `max_slices` from eviction:
    those it has fetched or found ahead of its client. One that has yet to begin is given up when
    the API could not be connected to for `api_wait_s`.
    """

    def __init__(
        self,
        *,
        endpoint: str = DEFAULT_ENDPOINT,
        api_key: str = "",
        cache_dir: Path | str | None = None,
        cache_max_bytes: int | None = None,
        source: Source | None = None,
        max_fetches: int = MAX_FETCHES,
        max_slices: int = MAX_FETCHES,
        max_tries: int = MAX_TRIES,
        api_wait_s: float = API_WAIT_S,
        sleep: Callable[[float], None] | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._source = source
        self._closed = self._told = False
        self._max_slices = max_slices
        if source is None:
            make = Cache if HAS_POSIX else PlainCache
            self.cache = make(claim_cache_dir(cache_dir, "cache_dir"), cache_max_bytes)
        else:
            self.cache = Cache(source.directory, read_only=True)
        self._client = Client(
            self.cache,
            endpoint=endpoint,
            api_key=api_key,
            max_tries=max_tries,
            api_wait_s=api_wait_s,
            max_connections=max_fetches,
            sleep=sleep,
        )
        self._fetches = Fetches(self._client, self.cache, max_fetches)
        self._due_times = DueTimes(clock)
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="tardis-cache")
        self._readers: weakref.WeakSet[HistoryReader] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(
        self,
        exchange: str,
        filters: Sequence[Filter],
        start: int,
        end: int,
        *,
        readers: int = 1,
        lag_minutes: float | None = None,
    ) -> HistoryReader:
        """Read an exchange's lines from `start` to before `end` (microseconds, cut to minutes).

        There are none where both are the same; nothing is fetched then.
        `readers` is how many of them share a replay, and the slices it may keep. With
        `lag_minutes` each minute is fetched when it is so far behind the clock: `end` may lie in
        the future.
        """
        if self._closed:
            raise ReaderClosedError("the history is closed")
        # The name becomes part of a path and of a URL.
        if not _EXCHANGE.fullmatch(exchange):
            raise HistoryError(f"not an exchange's name: {exchange!r}", status=400)
        first, last = start // MINUTE, end // MINUTE
        if first >= last and start != end:
            raise HistoryError("from must be at least a minute before to", status=400)
        normalized = normalize(filters)
        keys, select = cache_keys(normalized), None
        source = self._source
        if source is not None and first < last:
            part = source.part(exchange, first * MINUTE, last * MINUTE)
            if part is None:
                raise HistoryError(
                    f"there is only {source.description()}", status=404, exchange=exchange
                )
            if part != (first * MINUTE, last * MINUTE):
                self._tell(source)
            first, last = (each // MINUTE for each in part)
            keys, select = cache_keys([]), source.selection(exchange, normalized)
        request = SliceRequest(exchange, keys[0], to_json(normalized), first, first, 1)
        reader = HistoryReader(
            request,
            last,
            keys=keys,
            cache=self.cache,
            fetches=None if source is not None else self._fetches,
            workers=self._workers,
            select=select,
            max_slices=max(1, self._max_slices // readers),
            lag=None if lag_minutes is None else Lag(lag_minutes, self._due_times),
        )
        self._readers.add(reader)
        return reader

    @property
    def source(self) -> str | None:
        """Tell what there is, if that is all."""
        return None if self._source is None else self._source.description()

    def _tell(self, source: Source) -> None:
        """Say, the first time, that what is missing is empty."""
        if not self._told:
            self._told = True
            log.warning("more is asked for than there is", extra={"has": source.description()})

    def clear_cache(self) -> None:
        """Remove every cached slice; those of a source stay."""
        if self._source is None:
            self.cache.clear()

    def close(self) -> None:
        """End every replay and every fetch at once."""
        self._closed = True
        for reader in list(self._readers):
            reader.close()
        self._fetches.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._client.close()


def default_cache_dir() -> Path:
    """Return the directory of a cache for which none is named."""
    return _DEFAULT.path("cache_dir")


def claim_cache_dir(cache_dir: Path | str | None, flag: str) -> Path:
    """Make the cache directory if need be and return it; None is the default one.

    ConfigError, about `flag`, if other users could plant slices in it.
    """
    if not HAS_POSIX:
        return Path(cache_dir) if cache_dir else default_cache_dir()
    if cache_dir:
        return claim(flag, Path(cache_dir))
    path = _DEFAULT.claim(flag)
    older = Path(tempfile.gettempdir(), ".tardis-cache")
    if older.is_dir() and older.lstat().st_uid == os.geteuid():
        warn_once(
            older,
            "the default cache is elsewhere by now, this older one is not used",
            now=str(path),
            to_use_it=f"--cache-dir {older}",
        )
    return path
