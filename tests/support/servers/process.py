"""A server program under test: started on ports of its own, killed and started again at will."""

import contextlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_START_TIMEOUT_S = 60.0
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


def _stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}


class ServerProcess:
    """A program that listens on a port and writes a log."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        port: int | None,
        log: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`port` is None where a subclass tells in another way that the program is up."""
        self._command = command
        self._environ = environ
        self._port = port
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it listens."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environ
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = self._log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self._command[0]} did not start:\n{tail}")
            time.sleep(0.02)

    def _is_up(self) -> bool:
        """Return whether it can be used; asked again and again by `start`."""
        assert self._port is not None
        return listens(self._port)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an operator would."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        while not all(_stopped(task) for task in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None
