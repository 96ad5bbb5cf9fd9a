"""aiohttp's server with this one's limits: header sizes, no bodies, connections at once."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Container
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from prometheus_client import Counter

from tardis_machine.server.answers import failure

log = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 20_000
SPARE_CONNECTIONS: Final = 20
"""Connections beyond the limit on which an operator may still ask how the server is."""
MAX_REFUSALS: Final = 100
"""Connections that are told at once that there are too many; further ones are only closed."""
_MAX_HEADERS: Final = 1_000
_GOODBYE_S: Final = 2.0
_BUSY: Final = "busy: {} connections are open, try again later (--max-connections)"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(web.RequestHandler):
    """One connection: a header line beyond the limit is answered as such."""

    __slots__ = ()

    def hurry(self) -> None:
        """Have the first request come soon; called before it is waited for."""
        self._keepalive_timeout = min(self._keepalive_timeout, _GOODBYE_S)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, LineTooLong):
            return headers_too_large()
        if status < 500:
            log.debug("bad request", extra={"remote": request.remote, "error": message})
            refused = failure(status, message or "bad request")
            refused.force_close()
            return refused
        return super().handle_error(request, status, exc, message)


class Listener(web.Server):
    """Answers the connections of one port, so many at once and no more.

    Of the connections beyond, 20 may each ask for one of `spare_paths`; none if there are none.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        max_connections: int,
        idle_s: float,
        limited: Counter,
        spare_paths: Container[str] = (),
    ) -> None:
        self._settings: dict[str, Any] = {
            "max_line_size": MAX_HEADER_BYTES,
            "max_field_size": MAX_HEADER_BYTES,
            "max_headers": _MAX_HEADERS,
            "access_log": None,
            # No endpoint reads a body: unpacking one would only cost the server time.
            "auto_decompress": False,
            # A close before the client has read the answer could reset it away.
            "lingering_time": _GOODBYE_S,
            # It counts from the connection on: a request that never ends is not waited for, either.
            "keepalive_timeout": idle_s,
        }
        self._max_connections = max_connections
        self._spare_paths = spare_paths
        self._spare: set[web.RequestHandler] = set()
        self._refused: set[web.RequestHandler] = set()
        self._limited = limited
        self._handler = handler
        super().__init__(self._answer, handler_cancellation=True)

    def __call__(self) -> web.RequestHandler:
        """Make the protocol of one connection."""
        return _Connection(self, loop=self._loop, **self._settings)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection, or tell it that there are enough."""
        super().connection_made(handler, transport)
        if len(self._connections) <= self._max_connections:
            return
        # Those that are gone by now leave here.
        self._spare &= self._connections.keys()
        self._refused &= self._connections.keys()
        beyond = len(self._spare) + len(self._refused)
        if len(self._connections) - beyond <= self._max_connections:
            return
        self._limited.labels("max_connections").inc()
        if self._spare_paths and len(self._spare) < SPARE_CONNECTIONS:
            self._spare.add(handler)
            assert isinstance(handler, _Connection)
            handler.hurry()
            return
        is_flood = len(self._refused) >= MAX_REFUSALS
        self._refused.add(handler)
        handler.close()  # its requests are not read
        if is_flood:
            transport.abort()
            return
        transport.write(_enough(self._max_connections))
        transport.write_eof()
        # At once would be a reset, if its request is on the way: the answer would be lost.
        self._loop.call_later(_GOODBYE_S, transport.abort)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Have a request answered, as the last one of its connection where that is spare.

        The same holds for one with a body.
        """
        is_spare = request.protocol in self._spare
        if not is_spare and not request.body_exists:
            return await self._handler(request)
        request.protocol.close()  # the rest of a body is dropped, not parsed
        if is_spare and request.path.removesuffix("/") not in self._spare_paths:
            response: web.StreamResponse = _busy(self._max_connections)
        else:
            response = await self._handler(request)
        response.force_close()
        return response


def headers_too_large() -> web.Response:
    """Answer more headers than are taken."""
    refused = failure(431, f"expected at most {MAX_HEADER_BYTES} bytes of request headers")
    refused.force_close()
    return refused


def _busy(connections: int) -> web.Response:
    refused = failure(503, _BUSY.format(connections))
    refused.headers["Retry-After"] = "5"
    return refused


def _enough(connections: int) -> bytes:
    body = json.dumps({"message": _BUSY.format(connections)})
    return (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    ).encode()
