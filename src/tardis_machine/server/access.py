"""Who may ask: header size, bearer token, browser origin; the same on both ports."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from tardis_machine.server.settings import ServerConfig

log = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 20_000
_MAX_HEADERS: Final = 1_000
_OPEN_PATHS: Final = frozenset({"", "/health-check"})

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(web.RequestHandler):
    """One connection: a header line beyond the limit is answered as such."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, LineTooLong):
            return _headers_too_large()
        if status < 500:
            log.debug("bad request", extra={"remote": request.remote, "error": message})
            refused = failure(status, message or "bad request")
            refused.force_close()
            return refused
        return super().handle_error(request, status, exc, message)


class Listener(web.Server):
    """aiohttp's server, with the header limits that clients of this API rely on."""

    def __init__(self, handler: Handler) -> None:
        self._settings: dict[str, Any] = {
            "max_line_size": MAX_HEADER_BYTES,
            "max_field_size": MAX_HEADER_BYTES,
            "max_headers": _MAX_HEADERS,
            "access_log": None,
        }
        super().__init__(handler, handler_cancellation=True)

    def __call__(self) -> web.RequestHandler:
        """Make the protocol of one connection."""
        return _Connection(self, loop=self._loop, **self._settings)


class Gate:
    """Answers those who may not pass."""

    def __init__(self, config: ServerConfig) -> None:
        self._token = None if config.auth_token is None else config.auth_token.encode()
        self._origins = frozenset(config.allow_origin)

    def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Return the answer to a request that is not to be served, None to one that is."""
        if _header_bytes(request) > MAX_HEADER_BYTES:
            return _headers_too_large()
        origin = request.headers.get("Origin")
        if origin is not None and not self._allows(origin):
            log.warning("origin refused", extra={"origin": origin[:200], "path": request.path})
            return failure(403, f"origin {origin[:200]} is not allowed: see --allow-origin")
        if self._token is None or request.path.rstrip("/") in _OPEN_PATHS:
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        offered = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "bearer" and hmac.compare_digest(offered, self._token):
            return None
        refused = failure(401, "expected the header Authorization: Bearer TOKEN")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused

    def sharing(self, request: web.BaseRequest) -> dict[str, str]:
        """Give the headers that let a named browser origin read the answer."""
        origin = request.headers.get("Origin")
        if origin is None or not self._allows(origin):
            return {}
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}

    def preflight(self, request: web.BaseRequest) -> web.Response | None:
        """Answer a browser that asks whether it may send its token."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        headers = self.sharing(request)
        if not headers:
            return None
        headers |= {
            "Access-Control-Allow-Methods": "GET",
            "Access-Control-Allow-Headers": "Authorization",
        }
        return web.Response(status=204, headers=headers)

    def _allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins


def failure(status: int, message: str, **details: object) -> web.Response:
    """Answer with a JSON body that says what was wrong."""
    body = {"message": message} | {
        name: value for name, value in details.items() if value is not None
    }
    return web.json_response(body, status=status)


def _headers_too_large() -> web.Response:
    refused = failure(431, f"expected at most {MAX_HEADER_BYTES} bytes of request headers")
    refused.force_close()
    return refused


def _header_bytes(request: web.BaseRequest) -> int:
    lines = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    return len(request.method) + len(request.raw_path) + len(" HTTP/1.1\r\n") + 1 + lines
