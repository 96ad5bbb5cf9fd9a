"""`History`: cached and fetched slices, shared by all replays of a process."""

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
from tardis_machine.history.errors import HistoryError, ReaderClosedError
from tardis_machine.history.fetches import MAX_FETCHES, Fetches
from tardis_machine.history.filters import Filter, cache_keys, normalize, to_json
from tardis_machine.history.lag import Clock, Lag, LagTimer, system_clock
from tardis_machine.history.reader import HistoryReader, Select
from tardis_machine.history.windows_cache import HAS_FILE_LOCKS, WindowsCache

log = logging.getLogger(__name__)

_DEFAULT: Final = DefaultDirectory("XDG_CACHE_HOME", ".cache", "slices")
_EXCHANGE: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


class Source(Protocol):
    """Unfiltered slices on disk that a history reads instead of the API and the cache.

    `History` calls the methods in `read`, in the thread of its caller. An exception reaches that
    caller.
    """

    @property
    def directory(self) -> Path:
        """Directory of the slices, in the cache's layout."""

    def available(self, exchange: str, start: int, end: int) -> tuple[int, int] | None:
        """Return the part of a range (microseconds) with data of an exchange; None if none."""

    def description(self) -> str:
        """Return its exchanges and times as a text for headers, errors and logs."""

    def selection(self, exchange: str, filters: Sequence[Filter]) -> Select | None:
        """Return a function that keeps the lines of a block that filters ask for; None if all."""


class History:
    """Slices of exchanges' messages, read from a cache on disk and fetched if it lacks them.

    Threads may share it. With a `source` the network is never used: minutes outside of it are
    empty, and a range without any data is an error. A replay fetches or finds at most `max_slices`
    slices ahead of its client, and keeps these from eviction. A replay without data yet fails if
    no connection to the API can be made for `api_wait_s` seconds.
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
        self._closed = self._warned = False
        self._max_slices = max_slices
        if source is None:
            cache_class = Cache if HAS_FILE_LOCKS else WindowsCache
            self.cache = cache_class(claim_cache_dir(cache_dir, "cache_dir"), cache_max_bytes)
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
        self._lag_timer = LagTimer(clock)
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
        """Return a reader of an exchange's lines from `start` to before `end`.

        Both are microseconds since 1970, cut to minutes; a reader of an empty range fetches
        nothing. `readers` is the number of readers that share a replay and its `max_slices`. With
        `lag_minutes` each minute is fetched once it is that far behind the clock, so that `end`
        may be in the future. The caller closes the reader. Raises HistoryError if the request is
        invalid or the source has no such data.
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
            available = source.available(exchange, first * MINUTE, last * MINUTE)
            if available is None:
                raise HistoryError(
                    f"there is only {source.description()}", status=404, exchange=exchange
                )
            if available != (first * MINUTE, last * MINUTE):
                self._warn_of_empty_minutes(source)
            first, last = (time // MINUTE for time in available)
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
            lag=None if lag_minutes is None else Lag(lag_minutes, self._lag_timer),
        )
        self._readers.add(reader)
        return reader

    @property
    def source(self) -> str | None:
        """Description of the source; None if history comes from the API."""
        return None if self._source is None else self._source.description()

    def _warn_of_empty_minutes(self, source: Source) -> None:
        """Log, once for a history, that a request exceeds the source."""
        if not self._warned:
            self._warned = True
            log.warning(
                "request goes beyond the available data, minutes outside of it have no messages",
                extra={"available": source.description()},
            )

    def clear_cache(self) -> None:
        """Remove every cached slice; do nothing with a source."""
        if self._source is None:
            self.cache.clear()

    def close(self) -> None:
        """Close every reader and abort every fetch; their callers get ReaderClosedError."""
        self._closed = True
        for reader in list(self._readers):
            reader.close()
        self._fetches.close()
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._client.close()


def default_cache_dir() -> Path:
    """Return the directory of the cache if the settings name none."""
    return _DEFAULT.path("cache_dir")


def claim_cache_dir(cache_dir: Path | str | None, flag: str) -> Path:
    """Return the cache directory, created if it is missing; the default one for None.

    Raises ConfigError, which names `flag`, if other users could write slices to it.
    """
    if not HAS_FILE_LOCKS:
        return Path(cache_dir) if cache_dir else default_cache_dir()
    if cache_dir:
        return claim(flag, Path(cache_dir))
    path = _DEFAULT.claim(flag)
    older = Path(tempfile.gettempdir(), ".tardis-cache")
    if older.is_dir() and older.lstat().st_uid == os.geteuid():
        warn_once(
            older,
            "the cache directory of earlier versions is not used any more",
            now=str(path),
            to_use_it=f"--cache-dir {older}",
        )
    return path
