"""Where exchanges are reached: their own addresses, or what the environment says instead."""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit, urlunsplit

from tardis_machine.config.section import split_url
from tardis_machine.exchanges.base.dialect import DialectError, Endpoint


def variable(prefix: str, exchange: str, name: str = "") -> str:
    """Name the variable that overrides an address, such as WSS_URL_BINANCE_FUTURES_PUBLIC."""
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
    """Give an endpoint's URL.

    An endpoint's own variable, or a URL with a query, is taken as it is; so is that of an exchange
    with one endpoint. Of an exchange with several, WSS_URL_{EXCHANGE} is the base of them all: the
    parts of its path that are the exchange's are cut off and the endpoint's path is appended.
    """
    own = (with_secrets and endpoint.with_secrets) or endpoint.url
    if endpoint.name:
        name = variable("WSS_URL", exchange, endpoint.name)
        if environ.get(name):
            return _checked(exchange, name, environ[name], ("ws", "wss"))
    name = variable("WSS_URL", exchange)
    given = environ.get(name)
    if not given:
        return own
    given = _checked(exchange, name, given, ("ws", "wss"))
    base = urlsplit(given)
    if len(endpoints) == 1 or base.query:
        return given
    its_parts = {part for each in endpoints for part in urlsplit(each.url).path.split("/")}
    path = base.path.split("/")
    while path and path[-1] in its_parts:
        path.pop()
    at = urlsplit(own)
    return urlunsplit((base.scheme, base.netloc, "/".join(path) + at.path, at.query, ""))


def is_set(exchange: str, endpoints: Iterable[Endpoint], environ: Mapping[str, str]) -> bool:
    """Tell whether the environment has a WebSocket URL for the exchange or one of its endpoints."""
    names = dict.fromkeys(("", *(endpoint.name for endpoint in endpoints)))
    return any(environ.get(variable("WSS_URL", exchange, name)) for name in names)


def rest_url(exchange: str, url: str, environ: Mapping[str, str]) -> str:
    """Give a REST URL: REST_URL_{EXCHANGE} stands for its scheme and host."""
    name = variable("REST_URL", exchange)
    given = environ.get(name)
    if not given:
        return url
    base = urlsplit(_checked(exchange, name, given, ("http", "https")))
    at = urlsplit(url)
    return urlunsplit((base.scheme, base.netloc, base.path.rstrip("/") + at.path, at.query, ""))


def _checked(exchange: str, name: str, url: str, schemes: tuple[str, ...]) -> str:
    expected = f"expected a URL with {' or '.join(f'{each}://' for each in schemes)}"
    parts = split_url(url)
    if parts is None:
        raise DialectError(exchange, f"invalid {name}: no URL, {expected}")
    if parts.scheme not in schemes or not parts.netloc:
        shown = f"{parts.scheme}://{parts.hostname or ''}"  # user, password and query may be secret
        raise DialectError(exchange, f"invalid {name}: {shown}, {expected}")
    return url
