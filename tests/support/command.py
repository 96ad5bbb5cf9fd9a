"""The `tardis-machine` command as a process: run to its end, or left running."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tardis_machine.engine.choice import VARIABLE
from tests.support.servers.machine import port_said

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Launch = Callable[..., "Process"]

# A machine that runs other tests beside takes ten times as long to start a process.
_PATIENCE_S = 240
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from tardis_machine.cli import main; sys.exit(main())",
)
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}
"""Environment variables for a locale whose encoding is ASCII."""


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without the server's settings, but with the kernel that is tested.

    Workers of xdist have a terminal's width, which the help would be fitted into.
    """
    ours = {"PORT", "COLUMNS", "LINES"}
    kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith("TM_")}
    if VARIABLE in os.environ:
        kept[VARIABLE] = os.environ[VARIABLE]
    return kept | changes


class Process:
    """A command that keeps running, and what it says on standard error."""

    def __init__(self, arguments: tuple[str, ...], environ: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, text: str, count: int = 1) -> str:
        """Wait for lines that contain a text; give the last of them."""

        def found() -> list[str]:
            return [line for line in self.lines if text in line]

        with self._changed:
            self._changed.wait_for(
                lambda: len(found()) >= count or not self._reader.is_alive(), timeout=_PATIENCE_S
            )
            assert len(found()) >= count, "\n".join(self.lines)
            return found()[-1]

    def listening(self, count: int = 1) -> int:
        """Wait until so many of its processes listen; return the HTTP port that they share."""
        port = port_said(self.wait_for(" listening ", count))
        assert port is not None
        return port

    def stop(self, number: int) -> int:
        self.popen.send_signal(number)
        code = self.popen.wait(timeout=_PATIENCE_S)
        self._reader.join(timeout=10)
        return code

    def end(self) -> None:
        """Leave nothing behind."""
        if self.popen.poll() is None:
            self.stop(signal.SIGKILL)
        assert self.popen.stderr is not None
        self.popen.stderr.close()


@pytest.fixture
def run() -> Run:
    """Run the command to its end."""

    def ran(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
            env=environment(**environ),
        )

    return ran


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start the command and leave it running until the test's end."""
    with ExitStack() as stack:

        def launched(*arguments: str, **environ: Any) -> Process:
            process = Process(arguments, environment(**environ))
            stack.callback(process.end)
            return process

        yield launched
