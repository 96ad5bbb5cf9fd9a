"""The HTTP client of the Tardis API: fetches slices into the cache, with retries."""

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProxyError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse

from tardis_machine import __version__
from tardis_machine.config.section import without_password
from tardis_machine.history.cache import LONGEST_SLICE, Cache, CachedSlice
from tardis_machine.history.errors import (
    CorruptSliceError,
    HistoryError,
    ReaderClosedError,
    RetriesExhaustedError,
)
from tardis_machine.history.settings import KEY_EXPECTED, is_key

log = logging.getLogger(__name__)

DEFAULT_ENDPOINT: Final = "https://api.tardis.dev/v1"
MAX_TRIES: Final = 30
API_WAIT_S: Final = 15.0

_FINAL_STATUSES: Final = frozenset({400, 401, 403, 404})
_BAD_GATEWAY: Final = 502
_MAX_DELAY_S: Final = 120.0
_THROTTLED_EXTRA_S: Final = 60.0
_CHUNK_BYTES: Final = 1 << 16
_MAX_ERROR_BYTES: Final = 4096
_TIMEOUT: Final = urllib3.Timeout(connect=15, read=60)
_OBJECT: Final = re.compile(r"\w+\(host=[^)]*\): ")
_COUNT: Final = re.compile(r"0*[1-9][0-9]{0,8}")
_NO_CONNECTION: Final = (NewConnectionError, ConnectTimeoutError, ProxyError, SSLError)


class SliceRequest(NamedTuple):
    """A request to the API for `minutes` minutes of `exchange` from minute `start` on.

    `first` requests belong to a replay that has delivered nothing yet: without a connection they
    fail after `api_wait_s`. `optional` ones fail at the first try without a connection, since the
    cache has another file for these minutes.
    """

    exchange: str
    key: str
    filters: str
    origin: int
    start: int
    minutes: int
    first: bool = False
    optional: bool = False


class FetchedSlice(NamedTuple):
    """A slice that was fetched into the cache, and the API's suggestion for the next request."""

    cached: CachedSlice
    bytes: int
    suggested_minutes: int | None


class Abort:
    """A switch with which another thread ends a fetch at once, in a pause or while it reads."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()
        self._connection: _AbortableConnection | None = None

    def use_connection(self, connection: "_AbortableConnection | None") -> None:
        """Set the connection that `set` shuts down; None once the fetch has ended.

        Called by the thread that fetches.
        """
        with self._lock:
            self._connection = connection

    def set(self) -> None:
        """End the fetch: wake it from a pause and shut its connection down."""
        self.event.set()
        with self._lock:
            connection = self._connection
            # A connection that was read to its end may serve another fetch by now.
            if connection is not None and connection.abort is self and connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def raise_if_set(self) -> None:
        if self.event.is_set():
            raise ReaderClosedError("the replay was closed before its data was fetched")


_current: Final = threading.local()
"""The `abort` of this thread's fetch, for the connection that it gets from the pool."""


class _AbortableConnection(HTTPConnection):
    """A connection that registers with the `Abort` of the fetch that uses it."""

    abort: Abort | None = None

    def connect(self) -> None:
        super().connect()
        self._register()

    def request(self, *args: object, **options: object) -> None:
        self._register()
        super().request(*args, **options)  # type: ignore[arg-type]

    def _register(self) -> None:
        abort: Abort = _current.abort
        self.abort = abort
        abort.use_connection(self)
        abort.raise_if_set()


class _AbortableHTTPSConnection(_AbortableConnection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _AbortableConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _AbortableHTTPSConnection


class Client:
    """A client of the API that fetches slices into a cache.

    Threads share it; each call blocks its thread.
    """

    def __init__(
        self,
        cache: Cache,
        *,
        endpoint: str = DEFAULT_ENDPOINT,
        api_key: str = "",
        max_tries: int = MAX_TRIES,
        api_wait_s: float = API_WAIT_S,
        max_connections: int = 1,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._cache = cache
        if not is_key(api_key or ""):
            raise HistoryError(f"api_key: {KEY_EXPECTED}", status=400)
        self._endpoint = endpoint.rstrip("/")
        self._api_key = api_key
        self._max_tries = max_tries
        self._api_wait_s = api_wait_s
        self._sleep = sleep
        self._headers = {
            "Accept-Encoding": "zstd, gzip",
            "User-Agent": f"tardis-machine-python/{__version__}",
        }
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._pools = _abortable_pools(self._endpoint, max_connections)

    def close(self) -> None:
        """Close idle connections."""
        self._pools.clear()

    def fetch(self, request: SliceRequest, abort: Abort) -> FetchedSlice:
        """Fetch a slice into the cache; try at most `max_tries` times.

        `first` and `optional` requests fail sooner without a connection. Raises HistoryError for
        an answer that does not change, RetriesExhaustedError, CacheError if the slice cannot be
        written, and ReaderClosedError if `abort` was set.
        """
        began = time.monotonic()
        for attempt in range(1, self._max_tries + 1):
            abort.raise_if_set()
            try:
                return self._try(request, abort)
            except _TransientError as error:
                abort.raise_if_set()
                delay = error.delay(attempt)
                ends = time.monotonic() - began + delay
                gives_up = error.connecting and (
                    request.optional or (request.first and ends > self._api_wait_s)
                )
                if attempt == self._max_tries or gives_up:
                    tries = f"{attempt} tries" if attempt > 1 else "one try"
                    raise RetriesExhaustedError(
                        f"{error} ({request.exchange}, {_iso(request.start)}, "
                        f"given up after {tries})",
                        status=_BAD_GATEWAY if error.connecting else error.status,
                        exchange=request.exchange,
                    ) from None
                log.warning(
                    "slice fetch failed",
                    extra={
                        "exchange": request.exchange,
                        "minute": _iso(request.start),
                        "attempt": attempt,
                        "retry_in_s": delay,
                        "error": str(error),
                    },
                )
                self._pause(delay, abort)
        raise AssertionError("max_tries is below 1")

    def _pause(self, delay: float, abort: Abort) -> None:
        if self._sleep is None:
            abort.event.wait(delay)
        else:
            self._sleep(delay)

    def _try(self, request: SliceRequest, abort: Abort) -> FetchedSlice:
        _current.abort = abort
        try:
            response = self._pools.request(
                "GET",
                self._url(request),
                headers=self._headers,
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=_TIMEOUT,
            )
            try:
                if response.status != 200:
                    raise self._error(request, response)
                return self._store(request, response, abort)
            finally:
                # A connection that was read to its end is in the pool already; any other is closed.
                response.close()
                response.release_conn()
        except CorruptSliceError as error:
            raise _TransientError(f"the API sent a bad slice: {error.reason}") from None
        except (HTTPError, OSError) as error:
            abort.raise_if_set()
            raise _TransientError(
                self._redact(_describe(error, self._endpoint)),
                connecting=isinstance(error, _NO_CONNECTION),
            ) from None
        finally:
            abort.use_connection(None)

    def _url(self, request: SliceRequest) -> str:
        url = (
            f"{self._endpoint}/data-feeds/{request.exchange}?from={_iso(request.origin)}"
            f"&offset={request.start - request.origin}&compression=zstd"
        )
        if request.minutes > 1:
            url += f"&sliceSize={request.minutes}"
        if request.filters != "[]":
            url += f"&filters={quote(request.filters, safe='')}"
        return url

    def _store(
        self, request: SliceRequest, response: BaseHTTPResponse, abort: Abort
    ) -> FetchedSlice:
        minutes = _count(response.headers.get("x-slice-size"))
        if minutes is None or minutes > LONGEST_SLICE:
            raise HistoryError(
                f"the API's answer for {request.exchange} lacks a valid x-slice-size header "
                f"(1 to {LONGEST_SLICE}), without which it is not known which minutes it holds",
                status=502,
                exchange=request.exchange,
            )
        encoding = response.headers.get("content-encoding", "gzip").strip().lower()
        if encoding not in {"gzip", "zstd"}:
            raise HistoryError(
                f"the API's answer for {request.exchange} has content-encoding {encoding}; "
                "gzip and zstd are understood",
                status=502,
                exchange=request.exchange,
            )
        suffix = "zst" if encoding == "zstd" else "gz"
        path = self._cache.path(request.exchange, request.key, request.start, minutes, suffix)
        size = self._cache.store(path, _body(response, abort))
        suggested = _count(response.headers.get("x-suggested-slice-size"))
        return FetchedSlice(
            CachedSlice(request.start, minutes, path),
            size,
            None if suggested is None else min(suggested, LONGEST_SLICE),
        )

    def _error(self, request: SliceRequest, response: BaseHTTPResponse) -> Exception:
        status = response.status
        body = response.read(_MAX_ERROR_BYTES, decode_content=True).decode(errors="replace")
        text = self._redact(_message(body)) or response.reason or "no further information"
        described = f"the Tardis API answered {status}: {text}"
        if (status in _FINAL_STATUSES or 300 <= status < 400) and not (
            status == 400 and "ISO 8601 format" in body
        ):
            return HistoryError(
                f"{described} ({request.exchange}, {_iso(request.start)})",
                status=status,
                exchange=request.exchange,
            )
        return _TransientError(described, status, _count(response.headers.get("retry-after")))

    def _redact(self, text: str) -> str:
        return text.replace(self._api_key, "***") if self._api_key else text


class _TransientError(Exception):
    """A failure that a retry may cure; `connecting` if no connection could be made."""

    def __init__(
        self,
        text: str,
        status: int | None = None,
        wait_s: int | None = None,
        *,
        connecting: bool = False,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.connecting = connecting
        self._wait_s = wait_s

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt: 2^attempt, at most 120.

        After status 429 it is a minute more, or `retry-after` up to ten minutes if that is longer;
        after status 500 it is doubled.
        """
        delay: float = min(2.0**attempt, _MAX_DELAY_S)
        if self.status == 429:
            return max(delay + _THROTTLED_EXTRA_S, min(self._wait_s or 0, 600.0))
        return delay * 2 if self.status == 500 else delay


def _body(response: BaseHTTPResponse, abort: Abort) -> Iterator[bytes]:
    for chunk in response.stream(_CHUNK_BYTES, decode_content=False):
        abort.raise_if_set()
        yield chunk


def _abortable_pools(endpoint: str, max_connections: int) -> urllib3.PoolManager:
    pools = pool_manager(endpoint, maxsize=max_connections)
    pools.pool_classes_by_scheme = {"http": _Pool, "https": _HTTPSPool}
    return pools


def pool_manager(endpoint: str, **settings: Any) -> urllib3.PoolManager:
    """Return connection pools for an endpoint, through the environment's proxy if it has one."""
    scheme = endpoint.partition(":")[0]
    proxy = getproxies().get(scheme)
    host = urllib3.util.parse_url(endpoint).host
    if proxy and host and not proxy_bypass(host):
        return urllib3.ProxyManager(proxy, **settings)
    return urllib3.PoolManager(**settings)


def _iso(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M}:00.000Z"


def _count(text: str | None) -> int | None:
    """Return a header's number, from 1 to nine digits; None for any other text."""
    return int(text) if text and _COUNT.fullmatch(text) else None


def _message(body: str) -> str:
    with suppress(msgspec.MsgspecError):
        decoded = msgspec.json.decode(body)
        if isinstance(decoded, dict):
            for name in ("message", "error", "title"):
                if isinstance(text := decoded.get(name), str):
                    return text
    return " ".join(body.split())[:500]


def _describe(error: Exception, endpoint: str) -> str:
    endpoint = without_password(endpoint)
    if isinstance(error, _NO_CONNECTION):
        # urllib3 begins its texts with the object that could not connect.
        return f"{endpoint} cannot be reached: {_OBJECT.sub('', str(error))}"
    return f"{endpoint} could not be read: {type(error).__name__}: {error}"
