"""Who may ask: header size, host, browser origin, bearer token, body; the same on both ports."""

import hmac
import logging
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from aiohttp import web

from tardis_machine.server.answers import failure
from tardis_machine.server.identity import EXPOSED
from tardis_machine.server.listener import MAX_HEADER_BYTES, headers_too_large
from tardis_machine.server.settings import ServerConfig, is_loopback

log = logging.getLogger(__name__)

_FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})
_OPEN_PATHS: Final = frozenset({"", "/health-check"})


class Address(NamedTuple):
    """Where a request says it goes to or comes from."""

    name: str
    port: int | None

    @classmethod
    def read(cls, url: str) -> Self | None:
        """Read a URL's; None if it has none that makes sense."""
        try:
            parts = urlsplit(url)
            return cls((parts.hostname or "").rstrip("."), parts.port) if parts.netloc else None
        except ValueError:
            return None


class Gate:
    """Answers those who may not pass.

    A web page can make its visitor's browser send requests to this server, which would spend
    the API key and publish. Such requests come from a foreign origin; or, when the page's name
    was made to point here, with a host that is not this server's.
    """

    def __init__(self, config: ServerConfig, port: int) -> None:
        self._token = None if config.auth_token is None else config.auth_token.encode()
        self._origins = frozenset(config.allow_origin)
        own = () if config.host is None else (config.host,)
        self._hosts = frozenset(name.lower() for name in (*own, *config.allow_host))
        self._ports = frozenset({port, port + 1})

    def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Return the answer to a request that is not to be served, None to one that is."""
        if _header_bytes(request) > MAX_HEADER_BYTES:
            return headers_too_large()
        foreign = self._foreign(request)
        if foreign is not None:
            log.warning("browser refused", extra={"why": foreign, "path": request.path[:200]})
            return failure(403, foreign)
        if not self._is_known(request):
            refused = failure(401, "expected the header Authorization: Bearer TOKEN")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if request.body_exists:
            return failure(413, "request has a body: expected none, options go into the URL")
        return None

    def sharing(self, request: web.BaseRequest) -> dict[str, str]:
        """Give the headers that let a named browser origin read the answer."""
        origin = request.headers.get("Origin")
        if origin is None or not self._allows(origin, request):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED,
            "Vary": "Origin",
        }

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

    def _is_known(self, request: web.BaseRequest) -> bool:
        """Return whether a request carries the token, where it needs one."""
        if self._token is None or request.path.rstrip("/") in _OPEN_PATHS:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        offered = given.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(offered, self._token)

    def _foreign(self, request: web.BaseRequest) -> str | None:
        """Say why a request may come from a foreign page."""
        host = request.headers.get("Host")
        if host is not None and not self._serves(host, request):
            return f"host {host[:200]} is not this server: see --allow-host"
        origin = request.headers.get("Origin")
        if origin is not None:
            if self._allows(origin, request):
                return None
            return f"origin {origin[:200]} is not allowed: see --allow-origin"
        site = request.headers.get("Sec-Fetch-Site", "").lower()
        if site in _FOREIGN_SITES and request.path != "/":  # a link to the start page is fine
            return f"{site} requests of browsers are not allowed: see --allow-origin"
        return None

    def _serves(self, host: str, request: web.BaseRequest) -> bool:
        if "*" in self._hosts:
            return True
        asked = Address.read(f"//{host}")
        if asked is None:
            return False
        if asked.name in self._hosts or is_loopback(asked.name):
            return True
        transport = request.transport
        own = None if transport is None else transport.get_extra_info("sockname")
        return own is not None and asked.name == own[0]

    def _allows(self, origin: str, request: web.BaseRequest) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        # The server's own pages; those of its HTTP port may connect to the other.
        asking = Address.read(origin)
        asked = Address.read(f"//{request.headers.get('Host', '')}")
        if asking is None or asked is None:
            return False
        return asking == asked or (asking.name == asked.name and asking.port in self._ports)


def _header_bytes(request: web.BaseRequest) -> int:
    lines = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    return len(request.method) + len(request.raw_path) + len(" HTTP/1.1\r\n") + 1 + lines
