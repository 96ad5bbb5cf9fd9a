"""Ports of this machine that tests can listen on."""

import contextlib
import random
import socket
import sys

import pytest

# Below those that systems give to outgoing connections: a client of another test could be given
# the port before its server has started, and would keep it for a minute after its own end. A node
# of a Redis cluster listens 10,000 higher as well.
_PORTS = range(10_000, 20_000)
_random = random.SystemRandom()
_reserved: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Reserve ports, one after the other, for servers that cannot choose theirs.

    On Linux they stay reserved until this process ends: a socket is bound to each and does not
    listen. Only a server that reuses addresses, as servers do, can listen there beside it; nothing
    else that looks for a port is given one of these, and until a server starts, connections to
    them are refused.
    """
    while True:
        first = _random.choice(_PORTS)
        ports = list(range(first, first + count))
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            made = [taken.enter_context(socket.socket()) for _ in ports]
            for port, reserving in zip(ports, made, strict=True):
                reserving.bind(("127.0.0.1", port))
                reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sys.platform == "linux":
                _reserved.extend(made)
                taken.pop_all()
            return ports


def has_ipv6_loopback() -> bool:
    """Return whether a server can listen on ::1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    """Return whether something accepts connections on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_port_pair() -> int:
    """Reserve two adjacent ports; return the first."""
    return free_ports(2)[0]


needs_ipv6 = pytest.mark.skipif(not has_ipv6_loopback(), reason="the system has no IPv6 loopback")
