"""The queue of fetches: bounded for a history, shared by replays, served round robin."""

import threading
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from tardis_machine.history.cache import Cache
from tardis_machine.history.client import Abort, Client, FetchedSlice, SliceRequest
from tardis_machine.history.errors import HistoryError, ReaderClosedError

MAX_FETCHES: Final = 60

_IDLE_S: Final = 5.0


class Fetch:
    """Slices that one thread fetches one after the other, for one or more replays."""

    def __init__(
        self, requests: Sequence[SliceRequest], key: tuple[SliceRequest, ...], expected_bytes: int
    ) -> None:
        self.requests = requests
        self.key = key
        self.expected_bytes = expected_bytes
        self.future: Future[list[FetchedSlice]] = Future()
        # A running future cannot be cancelled, so one waiter cannot end it for the others.
        self.future.set_running_or_notify_cancel()
        self.abort = Abort()
        self.users = 1
        self.kept: list[FetchedSlice] = []
        """The fetched slices, pinned until the last replay releases the fetch."""

    def complete(self, outcome: list[FetchedSlice] | BaseException) -> None:
        """Set the future's result or exception, unless it has one."""
        with suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


class Fetches:
    """At most `limit` threads, started as needed, that serve the fetches of all replays in turn."""

    def __init__(self, client: Client, cache: Cache, limit: int = MAX_FETCHES) -> None:
        self._client = client
        self._cache = cache
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, deque[Fetch]] = {}
        self._shared: dict[tuple[SliceRequest, ...], Fetch] = {}
        self._queued = 0
        self._threads = 0
        self._idle = 0
        self._closed = False

    def submit(
        self, replay: Hashable, requests: Sequence[SliceRequest], expected_bytes: int = 0
    ) -> Fetch:
        """Queue slices for a replay, or share the fetch of another replay for the same slices.

        Each call needs one `release`. Raises ReaderClosedError after `close`, and HistoryError if
        no thread runs and none can be started.
        """
        # A slice does not depend on the origin, so replays of other origins share it.
        key = tuple(request._replace(origin=0) for request in requests)
        with self._changed:
            if self._closed:
                raise ReaderClosedError("the history was closed")
            if (shared := self._shared.get(key)) is not None:
                shared.users += 1
                return shared
            fetch = self._shared[key] = Fetch(requests, key, expected_bytes)
            if self._queued < self._idle:
                self._changed.notify()
            elif self._threads < self._limit:
                try:
                    threading.Thread(target=self._work, name="tardis-fetch", daemon=True).start()
                except RuntimeError as error:
                    if not self._threads:  # nothing would serve the queue
                        self._forget(fetch)
                        raise HistoryError(f"no thread to fetch with: {error}") from None
                else:
                    self._threads += 1
            self._waiting.setdefault(replay, deque()).append(fetch)
            self._queued += 1
            return fetch

    def expected_bytes(self) -> int:
        """Return the estimated bytes that the fetches under way will add to the cache."""
        with self._changed:
            # A copy: a reader that is garbage-collected here removes its fetches.
            return sum(fetch.expected_bytes for fetch in list(self._shared.values()))

    def release(self, fetch: Fetch) -> None:
        """Release one use of a fetch; with the last, abort it and unpin its slices."""
        with self._changed:
            fetch.users -= 1
            if fetch.users:
                return
            self._forget(fetch)
            kept, fetch.kept = fetch.kept, []
        fetch.abort.set()
        fetch.complete(ReaderClosedError("the replay was closed before its end"))
        self._unpin(kept)

    def close(self) -> None:
        """Abort every fetch; the futures raise ReaderClosedError."""
        with self._changed:
            self._closed = True
            fetches = list(self._shared.values())
            self._waiting.clear()
            self._queued = 0
            self._shared.clear()
            self._changed.notify_all()
        for fetch in fetches:
            fetch.abort.set()
            fetch.complete(ReaderClosedError("the history was closed"))

    def _forget(self, fetch: Fetch) -> None:
        if self._shared.get(fetch.key) is fetch:
            del self._shared[fetch.key]

    def _work(self) -> None:
        """Serve queued fetches in a thread of its own, until `_next` returns None."""
        while (fetch := self._next()) is not None:
            fetched: list[FetchedSlice] = []
            try:
                fetched.extend(
                    self._client.fetch(request, fetch.abort) for request in fetch.requests
                )
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is read
                with self._changed:
                    self._forget(fetch)
                fetch.complete(error)
                self._unpin(fetched)
            else:
                with self._changed:
                    self._forget(fetch)
                    wanted = fetch.users > 0
                    fetch.kept = fetched if wanted else []
                fetch.complete(fetched)
                if not wanted:
                    self._unpin(fetched)

    def _unpin(self, fetched: Sequence[FetchedSlice]) -> None:
        for fetched_slice in fetched:
            self._cache.unpin(fetched_slice.cached.path)

    def _next(self) -> Fetch | None:
        """Return the next fetch, of each replay in turn; None if the thread must end.

        It ends after `_IDLE_S` seconds without a fetch, or after `close`.
        """
        with self._changed:
            while not self._waiting:
                self._idle += 1
                woken = self._changed.wait(_IDLE_S)
                self._idle -= 1
                if self._closed or (not woken and not self._waiting):
                    self._threads -= 1
                    return None
            replay, queue = next(iter(self._waiting.items()))
            # To the end of the queue, so that a long replay does not starve a short one.
            del self._waiting[replay]
            fetch = queue.popleft()
            self._queued -= 1
            if queue:
                self._waiting[replay] = queue
            return fetch
