"""A server program under test: started on ports of its own, killed and started again at will."""

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.ports import listens

_START_TIMEOUT_S = 60.0


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
