"""Server processes that clients of several kinds connect to."""

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.clients.door import Door, Open
from tests.clients.node import NODE


def pytest_report_header() -> str:
    if NODE is None:
        return "clients: no node and npm here, so there are no tests with Node's ws"
    return f"clients: Node's ws with {NODE}"


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
