"""A server process that publishes, its metrics and memory, and replays to ask it for."""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.command import environment
from tests.support.requests import query
from tests.support.servers.machine import port_said
from tests.support.waiting import wait_until

_COMMAND = Path(sys.executable).with_name("tardis-machine")
_PATIENCE_S = 90
MEMORY_MB = 300
"""The peak memory that a server or its publisher may reach."""
OPTIONS = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:01",
    "symbols": ["XBTUSD"],
    "dataTypes": ["trade"],
}
"""A replay of a minute of trades."""


class Machine:
    """`tardis-machine` with its log in a file, which its publisher may outlive."""

    def __init__(self, log: Path, *flags: str, **environ: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [_COMMAND, "--sample-data", "--port", "0", *flags],
                stdout=file,
                stderr=file,
                env=environment(**environ),
            )
        port = port_said(self.wait_for(" listening "))
        assert port is not None
        self.port = port

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def publisher(self) -> int:
        """The process id of the publisher that was started last."""
        return int(self.wait_for("publisher started").rsplit("pid=", 1)[1].split()[0])

    def wait_for(self, text: str) -> str:
        """Wait for a line of the log with this text."""
        found = ""

        def there() -> bool:
            nonlocal found
            lines = [line for line in self._log.read_text().splitlines() if text in line]
            found = lines[-1] if lines else ""
            return bool(found) or self.process.poll() is not None

        wait_until(there, text)
        assert found, self._log.read_text()
        return found

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=_PATIENCE_S)

    def url(self, path: str, options: Any = None) -> str:
        return f"http://127.0.0.1:{self.port}{path}{query(options)}"

    def get(self, path: str, options: Any = None) -> bytes:
        with urllib.request.urlopen(self.url(path, options), timeout=_PATIENCE_S) as response:
            body: bytes = response.read()
            return body

    def metric(self, name: str, bus: str) -> float | None:
        """Return a bus's metric: of a cluster the highest, since each process reports the whole."""
        sample = rf'^tardis_machine_publish_{name}{{bus="{bus}"(?:,process="\d+")?}} (\S+)$'
        values = re.findall(sample, self.get("/metrics").decode(), re.MULTILINE)
        return max(map(float, values), default=None)


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def large_options(messages: int) -> list[dict[str, Any]]:
    """Return replays of about so many messages: each change of three books, grouped many ways."""
    steps = range(1, 2 + messages // 9_000)
    return [
        {
            "exchange": exchange,
            "from": "2024-03-01",
            "to": "2024-03-01T00:05",
            "withDisconnectMessages": True,
            "dataTypes": ["trade", *(f"book_snapshot_1_grouped{n}_0ms" for n in steps)],
        }
        for exchange in ("bitmex", "deribit", "binance-futures")
    ]


def logs_of(journal: Path) -> list[Path]:
    """Return the descriptions of the logs in a journal directory."""
    return list(journal.glob("*/log.json"))
