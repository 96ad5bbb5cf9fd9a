"""The server itself, as a process of its own on free ports."""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from tests.server.conftest import free_ports
from tests.servers.process import ServerProcess

_START = "2024-03-01T00:00"
_END = "2024-03-01T00:02"


class Machine(ServerProcess):
    """`tardis-machine` with these flags; its journal, if it has one, in the folder."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.port = free_ports()
        super().__init__(
            [
                Path(sys.executable).with_name("tardis-machine"),
                *("--port", str(self.port)),
                *("--journal-dir", str(folder / "journal")),
                *flags,
            ],
            port=self.port,
            log=folder / "machine.log",
        )

    def replay(self, exchange: str, data_types: list[str]) -> list[dict[str, Any]]:
        """Replay two minutes of the sample data."""
        options = {"exchange": exchange, "from": _START, "to": _END, "dataTypes": data_types}
        path = f"/replay-normalized?options={quote(json.dumps(options))}"
        with urlopen(f"http://127.0.0.1:{self.port}{path}") as response:
            return [json.loads(line) for line in response]
