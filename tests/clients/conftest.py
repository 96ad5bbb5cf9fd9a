"""The server as a process, and what its metrics tell a client's test."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from tests.clients.node import NODE
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
"""More than a client can have taken before the server has heard that it leaves."""


def pytest_report_header() -> str:
    if NODE is None:
        return "clients: no node and npm here, so there are no tests with Node's ws"
    return f"clients: Node's ws with {NODE}"


class Door(Machine):
    """A server that clients knock at."""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder, *flags)
        self.log = folder / "machine.log"

    def http(self, path: str, options: Any = OPTIONS) -> str:
        return f"http://127.0.0.1:{self.port}{path}?options={quote(json.dumps(options))}"

    def ws(self, path: str, options: Any = OPTIONS) -> str:
        return f"ws://127.0.0.1:{self.port + 1}{path}?options={quote(json.dumps(options))}"

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over the labels that are not given."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as response:
            text = response.read().decode()
        total = 0.0
        for found, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
            if all(f'{label}="{wanted}"' in found for label, wanted in labels.items()):
                total += float(value)
        return total

    def ended(self, outcome: str) -> float:
        return self.metric("tardis_machine_responses_total", outcome=outcome)

    def after(self, outcome: str) -> Callable[[], None]:
        """Make what waits until one more response has ended that way."""
        before = self.ended(outcome)
        return lambda: wait_until(lambda: self.ended(outcome) > before, f"none {outcome}")


Open = Callable[..., Door]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    served = Door(tmp_path_factory.mktemp("door"), "--sample-data")
    served.start()
    yield served
    served.stop()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Start servers with flags of their own."""
    doors: list[Door] = []

    def start(*flags: str) -> Door:
        folder = tmp_path / str(len(doors))
        folder.mkdir()
        doors.append(Door(folder, *flags))
        doors[-1].start()
        return doors[-1]

    yield start
    for each in doors:
        each.stop()


@pytest.fixture(scope="module")
def body(door: Door) -> bytes:
    """What every client must get."""
    with urlopen(door.http("/replay-normalized"), timeout=60) as response:
        whole: bytes = response.read()
    return whole
