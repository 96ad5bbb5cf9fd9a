"""`HistoryReader`: the lines of one replay in order, from cached slices and fetched ones."""

import errno
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypeVar

from tardis_machine.history.blocks import read_blocks, verify
from tardis_machine.history.borders import served_minutes
from tardis_machine.history.cache import Cache, CachedSlice, Coverage
from tardis_machine.history.client import FetchedSlice, SliceRequest
from tardis_machine.history.errors import (
    CacheError,
    CorruptSliceError,
    EvictedSliceError,
    HistoryError,
    ReaderClosedError,
)
from tardis_machine.history.fetches import MAX_FETCHES, Fetch, Fetches
from tardis_machine.history.lag import Lag, LagWait
from tardis_machine.history.recorded_lines import (
    StampRange,
    count_stamped,
    first_stamp,
    last_stamp,
    minute_of,
    skip,
    stamp_of,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

SliceFault = CorruptSliceError | EvictedSliceError
"""The reason why a slice in the cache cannot be read and is fetched again."""

Select = Callable[[bytes], bytes]
"""A function that keeps the lines of a block that a replay's filters ask for."""

_VERIFY_AHEAD: Final = 3
_MAX_CORRUPT: Final = 2
_MOST_DELIVERED_BYTES: Final = 4 << 20
_HOUR: Final = 60
_DAY: Final = 24 * _HOUR
# ESTALE: another machine removed a file on NFS while it was open.
_REMOVED: Final = frozenset({errno.ENOENT, errno.ESTALE})
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _Segment:
    """Minutes that one file serves, a cached one or one that is being fetched.

    `fallback` is the wider cached file that serves them if the fetch fails.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        cached: CachedSlice | None = None,
        fetch: Fetch | None = None,
        fallback: CachedSlice | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.cached = cached
        self.fetch = fetch
        self.fallback = fallback
        self.verification: Future[SliceFault | None] | None = None
        self.served: Future[tuple[int, int]] | None = None
        """The minutes that the file can serve, if it is wider than the replay's range."""
        self.corrupt_files = 0
        self.delivered = _Delivered()


class _Delivered:
    """The position in a segment up to which lines were delivered to the replay.

    A segment whose file is corrupt is fetched again. Reading goes on in the new file after the
    last delivered line: the position is that line's stamp and the number of lines with that stamp.
    """

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._bytes = 0
        # A stamp, and the lines with it whose blocks are no longer kept.
        self._counted = (b"", 0)

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, block: bytes) -> None:
        """Add a delivered block of whole lines; reduce many blocks of one stamp to a count."""
        last = last_stamp(block)
        if not last:
            return
        if first_stamp(block) != last:
            self._counted = (b"", 0)
            self._blocks.clear()
            self._bytes = 0
        elif self._bytes > _MOST_DELIVERED_BYTES:
            self._counted = (self.stamp, self.lines())
            self._blocks.clear()
            self._bytes = 0
        self._blocks.append(block)
        self._bytes += len(block)

    @property
    def stamp(self) -> bytes:
        """Stamp of the last line."""
        return last_stamp(self._blocks[-1])

    def lines(self) -> int:
        """Return the number of delivered lines with the last stamp."""
        stamp, (counted, count) = self.stamp, self._counted
        return count_stamped(self._blocks, stamp) + (count if counted == stamp else 0)


class HistoryReader:
    """An iterator over a replay's blocks of whole lines.

    `History.read` returns it. One thread at a time uses it; any thread may close it. It reads
    ahead in three steps: plan segments, verify or fetch their files, read the first.
    """

    def __init__(
        self,
        request: SliceRequest,
        end: int,
        *,
        keys: tuple[str, ...],
        cache: Cache,
        fetches: Fetches | None,
        workers: ThreadPoolExecutor,
        select: Select | None = None,
        max_slices: int = MAX_FETCHES,
        lag: Lag | None = None,
    ) -> None:
        self._request = request
        self._end = end
        self._keys = keys
        self._cache = cache
        self._fetches = fetches
        self._workers = workers
        self._select = select
        self._max_slices = max_slices
        self._lag = lag
        self._due: LagWait | None = None
        self._coverage = self._list_coverage()
        self._slice_minutes = 1
        self._bytes_per_minute = 0
        self._segments: deque[_Segment] = deque()
        self._planned = self._done = request.start
        self._blocks: Iterator[bytes] | None = None
        self._stamp_range: StampRange | None = None
        self._skip = 0
        # Another thread may close the reader at any time: pins and fetches change under this lock.
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._complete = False
        self._failure: HistoryError | None = None
        self._probed = False
        self._fetches_borders = fetches is not None
        self._probe: Fetch | None = None
        self._opening: Future[None] = _run_in_background(workers, self._open)

    @property
    def total_minutes(self) -> int:
        """Number of minutes that the replay spans."""
        return self._end - self._request.start

    @property
    def done_minutes(self) -> int:
        """Number of minutes that were read to their end."""
        return self._done - self._request.start

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At exit the fetching threads are gone, and a lock that one of them held is never released.
        if not sys.is_finalizing():
            self.close()

    def pending(self) -> Future[object] | None:
        """Return the future that `__next__` would wait for; None if it would not wait.

        It is a fetch or a check of a file, or a `LagWait` if the minute is not due yet. An
        exception in it is raised by `__next__`.
        """
        if self._closed.is_set() or self._blocks is not None or self._failure is not None:
            return None
        try:
            return self._next_wait()
        except HistoryError as error:
            self._failure = error
            return None

    def __next__(self) -> bytes:
        """Return the next block; block while its slice is fetched.

        It does not block right after `pending` returned None: instead it may return an empty
        block. Raises HistoryError, and ReaderClosedError if the reader was closed before the end.
        """
        while not self._closed.is_set():
            try:
                if self._blocks is None:
                    while (waits := self.pending()) is not None:
                        waits.exception()
                    if self._closed.is_set():
                        break
                    self._raise_failure()
                    if self._is_complete():
                        self.close()
                        break
                    self._open_segment(self._segments[0])
                segment = self._segments[0]
                block = self._read(segment)
                if block or not segment.delivered or self.pending() is not None:
                    return block
            except Exception:
                if self._closed.is_set():
                    break  # the error follows from another thread's close()
                self.close()
                raise
        if not self._complete:
            raise ReaderClosedError("the replay was closed before its end")
        raise StopIteration

    def _is_complete(self) -> bool:
        with self._lock:
            if not self._closed.is_set() and not self._segments:
                self._complete = True
        return self._complete

    def close(self) -> None:
        """Abort the fetches and unpin the slices. Further calls do nothing."""
        with self._lock:
            self._closed.set()
            self._blocks = None
            probe, self._probe = self._probe, None
            due, self._due = self._due, None
            segments = list(self._segments)
            self._segments.clear()
        if due is not None and self._lag is not None:
            self._lag.cancel(due)
        if probe is not None:
            self._release(probe)
        for segment in segments:
            self._release_segment(segment)

    # Opening: the first and the last missing minute are fetched before any block is returned, so
    # that a wrong key or a day without data fails before a response begins.

    def _open(self) -> None:
        """Start the fetch of the first and last missing minute, if any; runs in the pool."""
        end = self._end_due()
        first = self._first_missing(end)
        if first is None:
            return
        if self._fetches is None:
            raise HistoryError(
                f"no data for {self._request.exchange} at {_iso(first)}",
                status=404,
                exchange=self._request.exchange,
            )
        minutes = dict.fromkeys((self._last_missing(first, end), first))
        requests = [self._slice_request(minute, 1)._replace(first=True) for minute in minutes]
        probe = self._submit(requests)
        with self._lock:
            if not self._closed.is_set():
                self._probe = probe
                return
        self._release(probe)

    def _list_coverage(self) -> Coverage:
        return Coverage(self._cache, self._request.exchange, self._keys)

    def _first_missing(self, end: int) -> int | None:
        coverage = self._list_coverage()
        minute = self._request.start
        while minute < end:
            cached = coverage.at(minute)
            if cached is None:
                return minute
            minute = cached.end
            if minute % _DAY == 0:
                coverage.drop_before(minute)
        return None

    def _last_missing(self, first: int, end: int) -> int:
        """Return the last minute before `end` that no file covers; `first` is known to be one."""
        minute = end - 1
        while minute > first:
            # A day at a time bounds the memory of a replay of years that is mostly cached.
            coverage, border = self._list_coverage(), max(first, minute - _DAY)
            coverage.at(border)
            while minute > border and (cached := coverage.at(minute)) is not None:
                minute = cached.start - 1
            if minute > border:
                return minute
        return first

    def _next_wait(self) -> Future[object] | None:
        """Advance without waiting; return the future that the next block waits for, if any."""
        waits: Future[object]
        if not self._opening.done():
            waits = self._opening  # type: ignore[assignment]
            return waits
        if self._opening.exception() is not None:
            return None
        probe = self._probe
        if probe is not None and not self._probed:
            waits = probe.future  # type: ignore[assignment]
            if not waits.done():
                return waits
            if waits.exception() is not None:
                return None
            self._probed = True
            fetched = probe.future.result()
            for fetched_slice in fetched:
                self._coverage.add(fetched_slice.cached)
                self._record_size(fetched_slice)
            self._slice_minutes = min(map(self._suggested, fetched))
        self._plan()
        if self._segments:
            return self._advance(self._segments[0])
        return self._wait_until_due() if self._planned < self._end else None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._opening.result()
        probe = self._probe
        if probe is not None:
            probe.future.result()

    # Planning: which file serves which minutes, and which slices are fetched ahead.

    def _end_due(self) -> int:
        """Return the end of the minutes that can be fetched by now (exclusive)."""
        return self._end if self._lag is None else min(self._end, self._lag.end())

    def _wait_until_due(self) -> LagWait | None:
        """Return a wait for the next minute to plan; None without a lag, or after `close`."""
        due = self._due
        if self._lag is None or (due is not None and not due.done()):
            return due
        if due is None:
            extra = {"exchange": self._request.exchange, "minute": _iso(self._planned)}
            log.info("replay waits for data that is not due yet", extra=extra)
        due = self._lag.wait(self._planned)
        with self._lock:
            if not self._closed.is_set():
                self._due = due
                return due
        self._lag.cancel(due)
        return None

    def _plan(self) -> None:
        """Plan segments up to `max_slices` ahead, and start to verify the files of the first."""
        end_due = self._end_due()
        while self._planned < self._end and len(self._segments) < self._max_slices:
            cached = self._coverage.at(self._planned)
            if cached is not None:
                segment = self._cached_segment(cached)
            else:
                if self._planned >= end_due:
                    break
                limit = min(self._slice_minutes, end_due - self._planned)
                minutes = self._coverage.gap(self._planned, limit)
                if self._segments and not self._has_room(minutes):
                    break
                fetch = self._submit([self._slice_request(self._planned, minutes)])
                segment = _Segment(self._planned, self._planned + minutes, fetch=fetch)
            self._add_segment(segment, len(self._segments))
            self._planned = segment.end
        for segment in islice(self._segments, 1 + _VERIFY_AHEAD):
            cached = segment.cached
            if cached is not None and segment.verification is None and segment.fetch is None:
                segment.verification = self._verify(cached)
                segment.served = self._find_served(segment, cached)

    def _cached_segment(self, furthest: CachedSlice) -> _Segment:
        """Return a segment of the file that ends last or, at a border, of one that fits it."""
        start, cached = self._planned, furthest
        if start == self._request.start:
            cached = self._coverage.starting(start) or furthest
        end = min(self._end, cached.end)
        if cached.end > self._end:
            last = self._coverage.ending(self._end, self._request.start)
            if last is not None and last.start > start:
                end = last.start
            elif last is not None:
                cached = last
        return self._pinned_segment(start, end, cached)

    def _pinned_segment(self, start: int, end: int, cached: CachedSlice) -> _Segment:
        self._cache.pin(cached.path)
        return _Segment(start, end, cached=cached)

    def _find_served(
        self, segment: _Segment, cached: CachedSlice
    ) -> Future[tuple[int, int]] | None:
        whole = self._request.start, self._end
        if not self._fetches_borders or (whole[0] <= cached.start and cached.end <= whole[1]):
            return None
        minutes = segment.start, segment.end
        return _run_in_background(self._workers, lambda: served_minutes(cached, minutes, whole))

    def _split(self, segment: _Segment, first: int, last: int) -> None:
        """Limit the first segment to minutes `first` to `last`; narrower files serve its others."""
        segment.served = None
        cached, start, end = segment.cached, segment.start, segment.end
        if cached is None or (first, last) == (start, end):
            return
        if first < last:
            segment.start, segment.end = first, last
            segments = [
                *self._narrow_segments(start, first, cached),
                segment,
                *self._narrow_segments(last, end, cached),
            ]
        else:
            segments = self._narrow_segments(start, end, cached)
        with self._lock:
            if not self._closed.is_set():
                self._segments.popleft()
                self._segments.extendleft(reversed(segments))
                segments = []
        if segment not in self._segments:
            self._release_segment(segment)
        for unused in segments:
            self._release_segment(unused)

    def _narrow_segments(self, start: int, end: int, cut: CachedSlice) -> list[_Segment]:
        """Return segments of files without other minutes; fetch minutes that the cache lacks."""
        segments: list[_Segment] = []
        while start < end:
            cached = self._coverage.starting(start, end)
            if cached is not None:
                segment = self._pinned_segment(start, cached.end, cached)
            elif self._fetches_borders:
                segment = self._fetched_segment(start, end, cut)
            else:
                segment = self._pinned_segment(start, end, cut)
            segments.append(segment)
            start = segment.end
        return segments

    def _fetched_segment(self, start: int, end: int, cut: CachedSlice) -> _Segment:
        fetch = self._submit([self._slice_request(start, end - start)._replace(optional=True)])
        self._cache.pin(cut.path)
        return _Segment(start, end, fetch=fetch, fallback=cut)

    def _fall_back(self, segment: _Segment, error: HistoryError) -> None:
        """Serve a border from its wider file after a failed fetch; fetch no further borders."""
        log.warning(
            "disconnect at the border of a cached slice cannot be checked, it is kept",
            extra={
                "exchange": self._request.exchange,
                "minute": _iso(segment.start),
                "error": str(error),
            },
        )
        self._fetches_borders = False
        with self._lock:
            fetch, segment.fetch = segment.fetch, None
            segment.cached, segment.fallback = segment.fallback, None
        if fetch is not None:
            self._release(fetch)

    def _add_segment(self, segment: _Segment, at: int) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._segments.insert(at, segment)
                return
        self._release_segment(segment)
        raise ReaderClosedError("the replay was closed before its end")

    def _has_room(self, minutes: int) -> bool:
        """Return whether the cache's limit leaves room to fetch more minutes ahead."""
        if self._fetches is None or self._cache.max_bytes is None:
            return True
        expected = self._fetches.expected_bytes() + minutes * self._bytes_per_minute
        return self._cache.has_room(expected)

    def _advance(self, segment: _Segment) -> Future[object] | None:
        """Advance a segment without waiting; return the future it waits for, if any."""
        waits: Future[object]
        if segment.fetch is not None:
            if segment.cached is None:
                waits = segment.fetch.future  # type: ignore[assignment]
                if not waits.done():
                    return waits
                error = waits.exception()
                if error is None:
                    self._use_fetched(segment, segment.fetch)
                elif segment.fallback is not None and isinstance(error, HistoryError):
                    self._fall_back(segment, error)
            return None
        if segment.verification is not None:
            waits = segment.verification  # type: ignore[assignment]
            if not waits.done():
                return waits
            if (fault := segment.verification.result()) is not None:
                self._refetch(segment, fault)
                return self._advance(segment)
        if segment.served is not None:
            waits = segment.served  # type: ignore[assignment]
            if not waits.done():
                return waits
            self._split(segment, *segment.served.result())
            return self._next_wait()
        return None

    def _use_fetched(self, segment: _Segment, fetch: Fetch) -> None:
        """Set a segment's file from its fetch; add a segment for minutes that the file lacks."""
        fetched = fetch.future.result()[0]
        segment.cached = fetched.cached
        if fetched.cached.end < segment.end:
            # The slice has fewer minutes than requested: the rest becomes a segment of its own.
            start, end = fetched.cached.end, segment.end
            segment.end = start
            if segment.fallback is not None:
                rest = self._fetched_segment(start, end, segment.fallback)
            else:
                fetch = self._submit([self._slice_request(start, end - start)])
                rest = _Segment(start, end, fetch=fetch)
            self._add_segment(rest, 1)
        self._record_size(fetched)
        self._slice_minutes = self._suggested(fetched)

    def _record_size(self, fetched: FetchedSlice) -> None:
        per_minute = fetched.bytes // fetched.cached.minutes
        self._bytes_per_minute = max(self._bytes_per_minute, per_minute)

    def _suggested(self, fetched: FetchedSlice) -> int:
        """Return the minutes of the next request: 1 without filters, else the API's suggestion."""
        if self._request.filters == "[]":
            return 1
        return fetched.suggested_minutes or self._slice_minutes

    def _verify(self, cached: CachedSlice) -> Future[SliceFault | None]:
        if self._cache.is_verified(cached.path):
            verified: Future[SliceFault | None] = Future()
            verified.set_result(None)
            return verified
        return _run_in_background(self._workers, lambda: self._verify_file(cached))

    def _verify_file(self, cached: CachedSlice) -> SliceFault | None:
        try:
            verify(cached.path)
            self._cache.mark_verified(cached.path)
        except CorruptSliceError as error:
            return error
        except OSError as error:
            return _fault(cached.path, error)
        return None

    def _slice_request(self, start: int, minutes: int) -> SliceRequest:
        return self._request._replace(start=start, minutes=minutes)

    def _submit(self, requests: list[SliceRequest]) -> Fetch:
        if self._fetches is None:
            raise HistoryError(
                f"no data for {self._request.exchange} at {_iso(requests[0].start)}",
                status=404,
                exchange=self._request.exchange,
            )
        expected = sum(request.minutes for request in requests) * self._bytes_per_minute
        return self._fetches.submit(self, requests, expected)

    def _release(self, fetch: Fetch) -> None:
        if self._fetches is not None:
            self._fetches.release(fetch)

    # Reading: the blocks of the first segment.

    def _open_segment(self, segment: _Segment) -> None:
        """Start to read a segment's file, after the lines that were delivered already."""
        if segment.cached is None:
            if segment.fetch is not None:
                segment.fetch.future.result()
            raise ReaderClosedError("the replay was closed before its end")
        cached = segment.cached
        self._blocks = read_blocks(cached.path)
        self._stamp_range = None
        self._skip = 0
        if segment.delivered:
            self._stamp_range = StampRange(segment.delivered.stamp, stamp_of(segment.end))
            self._skip = segment.delivered.lines()
        elif (segment.start, segment.end) != (cached.start, cached.end):
            self._stamp_range = StampRange(stamp_of(segment.start), stamp_of(segment.end))

    def _read(self, segment: _Segment) -> bytes:
        """Return the next block of a segment, maybe empty; finish the segment at its end.

        A file that cannot be read is fetched again.
        """
        if self._blocks is None:
            return b""
        try:
            block = next(self._blocks, None)
        except CorruptSliceError as error:
            self._refetch(segment, error)
            return b""
        except OSError as error:
            path = segment.cached.path if segment.cached else self._cache.directory
            self._refetch(segment, _fault(path, error))
            return b""
        ended = block is None
        if self._stamp_range is not None:
            block = self._stamp_range.rest() if block is None else self._stamp_range.cut(block)
            if self._skip:
                block, self._skip = skip(block, self._skip)
        if ended or (self._stamp_range is not None and self._stamp_range.passed):
            with self._lock:
                if self._segments:
                    self._segments.popleft()
            self._release_segment(segment)
            self._blocks = None
            self._done = segment.end
            if self._done % _HOUR == 0:
                self._coverage.drop_before(self._done)
        if not block:
            return b""
        segment.delivered.add(block)
        return block if self._select is None else self._select(block)

    def _refetch(self, segment: _Segment, fault: SliceFault) -> None:
        """Fetch a segment again whose file is corrupt or was evicted; deliver no line twice.

        A corrupt file is removed from the cache. Raises HistoryError at the third corrupt file, or
        if the history has a source and no API. Evictions are not counted: the evicted file was not
        corrupt, and fetching it again is expected to succeed.
        """
        self._blocks = None
        cached = segment.cached
        extra = {
            "exchange": self._request.exchange,
            "minute": _iso(segment.start),
            "path": str(fault.path),
        }
        if isinstance(fault, CorruptSliceError):
            segment.corrupt_files += 1
            extra["reason"] = fault.reason
            log.warning("slice corrupt, fetching it again", extra=extra)
        else:
            log.info("slice evicted before it was read, fetching it again", extra=extra)
        if self._fetches is None or segment.corrupt_files > _MAX_CORRUPT:
            raise HistoryError(
                f"{fault} ({self._request.exchange}, {_iso(segment.start)})",
                exchange=self._request.exchange,
            )
        if cached is not None:
            self._coverage.remove(cached)
            if isinstance(fault, CorruptSliceError):
                self._cache.discard(cached.path)
        self._release_segment(segment)
        if segment.delivered:
            # Minutes before the last delivered line are not needed again.
            segment.start = max(segment.start, minute_of(segment.delivered.stamp))
        again = self._slice_request(segment.start, segment.end - segment.start)
        is_first = self._done == self._request.start and not segment.delivered
        fetch = self._submit([again._replace(first=is_first)])
        with self._lock:
            if not self._closed.is_set():
                segment.fetch = fetch
                return
        self._release(fetch)
        raise ReaderClosedError("the replay was closed before its end")

    def _release_segment(self, segment: _Segment) -> None:
        """Release a segment's fetch, or unpin its file."""
        with self._lock:
            fetch, cached, fallback = segment.fetch, segment.cached, segment.fallback
            segment.fetch = segment.cached = segment.fallback = None
            segment.verification = segment.served = None
        if fetch is not None:
            self._release(fetch)
        elif cached is not None:
            self._cache.unpin(cached.path)
        if fallback is not None:
            self._cache.unpin(fallback.path)


def _run_in_background(workers: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """Run work in a thread of the pool and return a future that its waiters cannot cancel.

    The future raises ReaderClosedError if the pool is shut down before the work begins.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def done(inner: Future[T]) -> None:
        if inner.cancelled():
            future.set_exception(ReaderClosedError("the history was closed"))
        elif (error := inner.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(inner.result())

    try:
        workers.submit(work).add_done_callback(done)
    except RuntimeError:
        raise ReaderClosedError("the history was closed") from None
    return future


def _fault(path: Path, error: OSError) -> SliceFault:
    """Return the fault of a file that raised an error when it was read.

    Raises CacheError if this process lacks file descriptors or memory: the file may be intact and
    must not be removed.
    """
    if error.errno in _SHORTAGES:
        raise CacheError(path, error, use="read") from None
    if error.errno in _REMOVED:
        return EvictedSliceError(path)
    return CorruptSliceError(path, str(error.strerror))


def _iso(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M}Z"
