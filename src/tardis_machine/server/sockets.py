"""The two ports, taken together or not at all."""

import contextlib
import errno
import logging
import socket
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from tardis_machine.errors import TardisMachineError
from tardis_machine.server.settings import is_loopback

BACKLOG: Final = 1024
"""How many connections may wait until they are accepted."""
_UNPACED: Final = b"reno"
"""The one congestion control that every Linux has."""
_TRIES: Final = 100
"""How many free ports are tried for port 0 until one is found whose next port is free, too."""
LAST_PORT: Final = 65_535

log = logging.getLogger(__name__)


class PortTakenError(TardisMachineError):
    """An address that cannot be listened on."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        self.host = host
        self.port = port
        self.is_taken = cause.errno == errno.EADDRINUSE
        """Whether another port may be free, where this one is not."""
        super().__init__(
            f"cannot listen on {spelled_address(host, port)}: {cause.strerror or cause}"
        )


class Sockets(NamedTuple):
    """Listening sockets: HTTP on a port, WebSocket on the next."""

    http: tuple[socket.socket, ...]
    websocket: tuple[socket.socket, ...]

    def close(self) -> None:
        """Give both ports back."""
        for each in (*self.http, *self.websocket):
            each.close()


def spelled_address(host: str, port: int) -> str:
    """Return an address as it stands in a URL: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str | None, port: int) -> Sockets:
    """Listen on both ports; if one is taken the other is released.

    Without a host these are the ports of 127.0.0.1, and of ::1 where both are free there: clients
    may resolve `localhost` to either. With port 0 the system chooses the HTTP port, such that the
    next one is free as well.
    """
    if host is None:
        return _listen_on_loopback(port, tries=1 if port else _TRIES)
    for _ in range(0 if port else _TRIES - 1):
        try:
            return _pair(host, port)
        except PortTakenError as error:
            if not error.is_taken:
                raise
    return _pair(host, port)


def _listen_on_loopback(port: int, *, tries: int) -> Sockets:
    first = listen("127.0.0.1", port)
    try:
        second = _pair("::1", port_of(first.http))
    except PortTakenError as error:
        if error.is_taken and tries > 1:
            first.close()
            return _listen_on_loopback(port, tries=tries - 1)
        # Without IPv6 no client gets there; where a port is taken, `localhost` may be its holder.
        level = logging.INFO if error.is_taken else logging.DEBUG
        log.log(level, "not listening over IPv6", extra={"error": str(error)})
        return first
    return Sockets(first.http + second.http, first.websocket + second.websocket)


def _pair(host: str, port: int) -> Sockets:
    with contextlib.ExitStack() as taken:
        http = _listen(host, port, taken)
        websocket = _listen(host, port_of(http) + 1, taken)
        taken.pop_all()
    return Sockets(http, websocket)


def port_of(listening: tuple[socket.socket, ...]) -> int:
    """Return the port of sockets that listen on one port of several addresses."""
    port: int = listening[0].getsockname()[1]
    return port


def _listen(host: str, port: int, taken: contextlib.ExitStack) -> tuple[socket.socket, ...]:
    try:
        return tuple(_bound(host, port, taken))
    except OSError as error:
        raise PortTakenError(host, port, error) from None


def _bound(host: str, port: int, taken: contextlib.ExitStack) -> Iterator[socket.socket]:
    if port > LAST_PORT:
        raise OSError(errno.EADDRINUSE, f"there is no port above {LAST_PORT}")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        made = taken.enter_context(socket.socket(family, kind, protocol))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address[0], port, *address[2:]))
        port = made.getsockname()[1]  # if it was 0, the other addresses need the same one
        if is_loopback(str(address[0])):
            _send_unpaced(made)
        made.listen(BACKLOG)
        made.setblocking(False)
        yield made


def _send_unpaced(listener: socket.socket) -> None:
    """Have what clients on this machine are sent not spread out over time.

    Nothing can be congested there. Where the system's choice is BBR, its timers took a tenth of the
    processor's time of a large replay.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # whatever the system has chosen will do
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)
