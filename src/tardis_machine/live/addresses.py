"""Addresses of exchanges: the built-in ones, or those that the environment sets."""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit, urlunsplit

from tardis_machine.config.section import split_url
from tardis_machine.exchanges.base.dialect import DialectError, Endpoint


def variable(prefix: str, exchange: str, name: str = "") -> str:
    """Return the variable that overrides an address, such as WSS_URL_BINANCE_FUTURES_PUBLIC."""
    parts = [prefix, exchange, name] if name else [prefix, exchange]
    return "_".join(parts).upper().replace("-", "_")


def websocket_url(
    exchange: str,
    endpoint: Endpoint,
    endpoints: tuple[Endpoint, ...],
    environ: Mapping[str, str],
    *,
    with_secrets: bool = False,
) -> str:
    """Return an endpoint's WebSocket URL, from the environment where it sets one.

    WSS_URL_{EXCHANGE}_{ENDPOINT} is the URL itself. So is WSS_URL_{EXCHANGE} if it has a query or
    the exchange has one endpoint. If the exchange has several, WSS_URL_{EXCHANGE} is their base:
    parts at the end of its path that occur in an endpoint's path are cut off, and the path of this
    endpoint is appended.
    """
    built_in = (with_secrets and endpoint.with_secrets) or endpoint.url
    if endpoint.name:
        name = variable("WSS_URL", exchange, endpoint.name)
        if environ.get(name):
            return _checked(exchange, name, environ[name], ("ws", "wss"))
    name = variable("WSS_URL", exchange)
    override = environ.get(name)
    if not override:
        return built_in
    override = _checked(exchange, name, override, ("ws", "wss"))
    base = urlsplit(override)
    if len(endpoints) == 1 or base.query:
        return override
    known_parts = {part for other in endpoints for part in urlsplit(other.url).path.split("/")}
    path = base.path.split("/")
    while path and path[-1] in known_parts:
        path.pop()
    target = urlsplit(built_in)
    return urlunsplit((base.scheme, base.netloc, "/".join(path) + target.path, target.query, ""))


def is_set(exchange: str, endpoints: Iterable[Endpoint], environ: Mapping[str, str]) -> bool:
    """Return whether the environment sets a WebSocket URL of the exchange or an endpoint."""
    names = dict.fromkeys(("", *(endpoint.name for endpoint in endpoints)))
    return any(environ.get(variable("WSS_URL", exchange, name)) for name in names)


def rest_url(exchange: str, url: str, environ: Mapping[str, str]) -> str:
    """Return a REST URL, with scheme, host and base path of REST_URL_{EXCHANGE} if that is set."""
    name = variable("REST_URL", exchange)
    override = environ.get(name)
    if not override:
        return url
    base = urlsplit(_checked(exchange, name, override, ("http", "https")))
    target = urlsplit(url)
    path = base.path.rstrip("/") + target.path
    return urlunsplit((base.scheme, base.netloc, path, target.query, ""))


def _checked(exchange: str, name: str, url: str, schemes: tuple[str, ...]) -> str:
    expected = f"expected a URL with {' or '.join(f'{scheme}://' for scheme in schemes)}"
    parts = split_url(url)
    if parts is None:
        raise DialectError(exchange, f"invalid {name}: no URL, {expected}")
    if parts.scheme not in schemes or not parts.netloc:
        shown = f"{parts.scheme}://{parts.hostname or ''}"  # user, password and query may be secret
        raise DialectError(exchange, f"invalid {name}: {shown}, {expected}")
    return url
