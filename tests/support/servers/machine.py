"""The server itself, as a process of its own on ports that the system chose."""

import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from tests.support.servers.process import ServerProcess

_START = "2024-03-01T00:00"
_END = "2024-03-01T00:02"


def port_said(log: str) -> int | None:
    """Find the HTTP port that a server says in its log; None if it does not listen yet."""
    found = re.search(r" listening http=\S+:(\d+) ws=", log)
    return None if found is None else int(found[1])


class Machine(ServerProcess):
    """`tardis-machine` with these flags; its journal, if it has one, in the folder."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.port = 0
        self._read = 0
        super().__init__(
            [
                Path(sys.executable).with_name("tardis-machine"),
                *("--port", "0"),
                *("--journal-dir", str(folder / "journal")),
                *flags,
            ],
            port=None,
            log=folder / "machine.log",
        )

    def start(self) -> None:
        """Start it and wait until it says where it listens."""
        self._read = self._log.stat().st_size if self._log.exists() else 0
        super().start()

    def _is_up(self) -> bool:
        said = port_said(self._log.read_bytes()[self._read :].decode())
        self.port = said or 0
        return said is not None

    def replay(self, exchange: str, data_types: list[str]) -> list[dict[str, Any]]:
        """Replay two minutes of the sample data."""
        options = {"exchange": exchange, "from": _START, "to": _END, "dataTypes": data_types}
        path = f"/replay-normalized?options={quote(json.dumps(options))}"
        with urlopen(f"http://127.0.0.1:{self.port}{path}") as response:
            return [json.loads(line) for line in response]
