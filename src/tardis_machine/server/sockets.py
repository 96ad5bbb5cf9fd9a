"""The two ports, taken together or not at all."""

import contextlib
import errno
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


class PortTakenError(TardisMachineError):
    """An address that cannot be listened on."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        self.host = host
        self.port = port
        self.is_taken = cause.errno == errno.EADDRINUSE
        """Whether another port may be free, where this one is not."""
        super().__init__(f"cannot listen on {host}:{port}: {cause.strerror or cause}")


class Sockets(NamedTuple):
    """Listening sockets: HTTP on a port, WebSocket on the next."""

    http: tuple[socket.socket, ...]
    websocket: tuple[socket.socket, ...]

    def close(self) -> None:
        """Give both ports back."""
        for each in (*self.http, *self.websocket):
            each.close()


def listen(host: str, port: int) -> Sockets:
    """Listen on both ports; if one is taken the other is released.

    With port 0 the system chooses the HTTP port, such that the next one is free as well.
    """
    for _ in range(0 if port else _TRIES - 1):
        try:
            return _listen_on_both(host, port)
        except PortTakenError as error:
            if not error.is_taken:
                raise
    return _listen_on_both(host, port)


def _listen_on_both(host: str, port: int) -> Sockets:
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
