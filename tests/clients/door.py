"""A server process that clients connect to, and its metrics."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from tests.support.servers.machine import Machine
from tests.support.waiting import wait_until

START = "2024-03-01T00:00"
OPTIONS: dict[str, Any] = {
    "exchange": "bitmex",
    "from": START,
    "to": "2024-03-01T00:01",
    "dataTypes": ["trade", "book_change"],
}
ENDLESS: dict[str, Any] = OPTIONS | {
    "to": "2024-03-01T00:05",
    "dataTypes": [f"book_snapshot_{depth}_0ms" for depth in range(31, 51)],
}
"""A replay so large that its client always leaves before the server has sent all of it."""


class Door(Machine):
    """A server process with its addresses, log and metrics."""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags)
        self.log = folder / "machine.log"

    def http(self, path: str, options: Any = OPTIONS) -> str:
        return f"http://127.0.0.1:{self.port}{path}?options={quote(json.dumps(options))}"

    def ws(self, path: str, options: Any = OPTIONS) -> str:
        return f"ws://127.0.0.1:{self.port + 1}{path}?options={quote(json.dumps(options))}"

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the labels that are not given."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as response:
            text = response.read().decode()
        total = 0.0
        for found, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
            if all(f'{label}="{wanted}"' in found for label, wanted in labels.items()):
                total += float(value)
        return total

    def ended(self, outcome: str) -> float:
        """Return how many responses have ended that way."""
        return self.metric("tardis_machine_responses_total", outcome=outcome)

    def after(self, outcome: str) -> Callable[[], None]:
        """Return a function that waits until one more response than now has ended that way."""
        before = self.ended(outcome)
        return lambda: wait_until(lambda: self.ended(outcome) > before, f"none {outcome}")


Open = Callable[..., Door]
