"""REST requests to one exchange, within its rate limit and through the system's proxy."""

import asyncio
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from tardis_machine.exchanges.base.dialect import Budget
from tardis_machine.live.errors import RateLimitError, RestError

_TIMEOUT_S: Final = 10.0
_MINUTE_S: Final = 60.0
_MAX_BYTES: Final = 64 * 1024 * 1024
_OK: Final = 200
_TOO_MANY: Final = 429
_BANNED: Final = 418
_WAIT_S: Final = {_TOO_MANY: 16.0, _BANNED: 120.0}
_MAX_WAIT_S: Final = 3 * 86_400.0
"""The longest wait that an answer can impose: the longest ban of any exchange."""
_LIKE_HTTP: Final = {"ws": "http", "wss": "https"}


def proxy_of(url: str) -> str | None:
    """Return the system's proxy for a URL; a WebSocket uses the one of HTTP or HTTPS."""
    target = URL(url)
    if target.host is None or proxy_bypass(f"{target.host}:{target.port}"):
        return None
    proxies = getproxies()
    like = _LIKE_HTTP.get(target.scheme, target.scheme)
    return proxies.get(target.scheme) or proxies.get(like) or proxies.get("all")


def retry_after(header: str | None, status: int) -> float:
    """Return the seconds to wait that a Retry-After header says, or the default of the status.

    The header is a number of seconds or a date. The default holds if it is missing or in the past.
    """
    fallback = _WAIT_S.get(status, 0.0)
    if not header:
        return fallback
    try:
        wait = float(header)
    except ValueError:
        try:
            wait = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return fallback
    return min(wait, _MAX_WAIT_S) if wait > 0 else fallback


class Rest:
    """REST client of one exchange; it waits where the exchange's rate limit demands it."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        address: Callable[[str], str],
        budget: Budget | None,
        *,
        window_s: float = _MINUTE_S,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._http = http
        self._address = address
        self._budget = budget
        self._window_s = window_s
        self._max_bytes = max_bytes
        self._limit: int | None = None
        self._window = 0
        self._used = 0
        self._blocked_until = 0.0
        self._limits = 0
        self._learning = asyncio.Lock()

    async def get(self, url: str, *, weight: int = 1, method: str = "GET") -> bytes:
        """Return the body of an answer with status 200; wait first until the rate limit permits it.

        Raises RestError for any other answer, RateLimitError for a status 418 or 429.
        """
        await self._wait_for_limit(weight)
        return await self._request(self._address(url), method)

    async def _wait_for_limit(self, weight: int) -> None:
        budget = self._budget
        if budget is not None and self._limit is None:
            async with self._learning:
                if self._limit is None:
                    self._limit = await self._fetch_limit(budget)
        while True:
            blocked = self._blocked_until - time.monotonic()
            if blocked > 0:
                await asyncio.sleep(blocked)
                continue
            if budget is None or self._limit is None:
                return
            window = int(time.time() // self._window_s)
            if window != self._window:
                self._window, self._used = window, 0
            spent = self._used + weight + budget.reserve
            if spent <= self._limit or self._used == 0:  # a low limit must not block for ever
                self._used += weight
                return
            await asyncio.sleep((window + 1) * self._window_s - time.time())

    async def _fetch_limit(self, budget: Budget) -> int:
        if not budget.info or budget.read is None:
            return budget.per_minute
        try:
            answer = await self._request(self._address(budget.info), "GET")
            return budget.read(msgspec.json.decode(answer)) or budget.per_minute
        except (RestError, msgspec.MsgspecError, ValueError):
            return budget.per_minute

    async def _request(self, url: str, method: str) -> bytes:
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self._http.request(
                    method, url, proxy=proxy_of(url), allow_redirects=False
                ) as answer,
            ):
                self._count_usage(answer)
                if answer.status in _WAIT_S:
                    raise self._rate_limit_error(url, answer)
                body = await self._body(url, answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise RestError(_shown(url), str(error) or type(error).__name__) from None
        if answer.status != _OK:
            reason = f"status {answer.status}: {body[:200].decode(errors='replace')}"
            raise RestError(_shown(url), reason, answer.status)
        self._limits = 0
        return body

    async def _body(self, url: str, answer: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > self._max_bytes:
                raise RestError(_shown(url), f"an answer of more than {self._max_bytes} bytes")
        return bytes(body)

    def _count_usage(self, answer: aiohttp.ClientResponse) -> None:
        budget = self._budget
        if budget is not None and budget.header:
            used = answer.headers.get(budget.header, "")
            if used.isdigit():
                self._used = max(self._used, int(used))

    def _rate_limit_error(self, url: str, answer: aiohttp.ClientResponse) -> RateLimitError:
        self._limits += 1
        header = answer.headers.get("Retry-After")
        wait = retry_after(header, answer.status)
        if not header and answer.status == _TOO_MANY:
            wait *= self._limits
        self._blocked_until = max(self._blocked_until, time.monotonic() + wait)
        return RateLimitError(_shown(url), answer.status, wait)


def _shown(url: str) -> str:
    """Return a URL without the credentials that an override may contain."""
    return str(URL(url).with_user(None))
