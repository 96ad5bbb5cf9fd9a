"""Nothing that is sent to the server hurts it: 400 cases here, 10,000 in `make soak`."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from tests.clients import fuzz
from tests.clients.door import Door
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fuzz

_CASES: Final = int(os.environ.get("FUZZ_CASES", "100"))
_WARM_UP: Final = 50
_PEAK_MB: Final = 1_000
"""Far above what it needs, far below what a number in a request may stand for."""
_HEALTH_S: Final = 5.0
"""Of the server's own time: how busy the machine is otherwise is not its fault."""

fuzzed = settings(
    max_examples=_CASES,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # a case that hangs takes too long to shrink
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
warming = settings(fuzzed, max_examples=_WARM_UP)

WORKERS = min(32, (os.cpu_count() or 1) + 4)
"""Threads that asyncio starts, as they are needed, for what would block."""


class Holdings(NamedTuple):
    """What the server's process holds."""

    peak_mb: float
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Holdings":
        status = Path(f"/proc/{pid}/status").read_text()
        found = dict(line.split(":", 1) for line in status.splitlines())
        return cls(
            int(found["VmHWM"].split()[0]) / 1024,
            int(found["Threads"]),
            sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        )


def loop_s(pid: int) -> float:
    """The time that the event loop's thread has been computing."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def health_watched(door: Door) -> Iterator[list[float]]:
    """Ask for the server's health all the while; give what it computed before each answer."""
    took: list[float] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.01):
            before = loop_s(door.pid)
            with urlopen(f"http://127.0.0.1:{door.port}/health-check", timeout=60) as response:
                response.read()
            took.append(loop_s(door.pid) - before)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield took
        finally:
            over.set()
        asking.result()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    served = Door(tmp_path_factory.mktemp("fuzz"), "--sample-data", "--stall-timeout-s", "5")
    served.start()
    yield served
    served.stop()


def hold(door: Door, answered: Callable[..., None], *strategies: SearchStrategy[Any]) -> None:
    """Try many cases, some before to warm up; then nothing may be left of them."""
    warming(given(*strategies)(answered))()
    before = Holdings.of(door.pid)
    with health_watched(door) as took:
        fuzzed(given(*strategies)(answered))()
    wait_until(lambda: door.metric("tardis_machine_active_responses") == 0, "some go on")
    wait_until(lambda: Holdings.of(door.pid).descriptors <= before.descriptors, "files stay open")
    after = Holdings.of(door.pid)
    assert after.threads <= before.threads + WORKERS
    assert after.peak_mb < _PEAK_MB
    assert max(took, default=0.0) < _HEALTH_S
    assert "Traceback" not in door.log.read_text()


def test_options_get_an_answer(door: Door) -> None:
    def answered(path: str, query: str) -> None:
        fields = [(b"Host", b"localhost")]
        status = fuzz.http(door.port, b"GET", path + query, b"HTTP/1.1", fields)
        assert status in fuzz.ANSWERS

    hold(door, answered, fuzz.paths, fuzz.queries)


def test_options_over_websocket_get_an_answer(door: Door) -> None:
    def answered(path: str, query: str) -> None:
        answer = fuzz.websocket(door.port + 1, path + query, b"")
        assert fuzz.status(answer) in fuzz.ANSWERS | {101}
        if fuzz.status(answer) == 101:
            messages = answer.partition(b"\r\n\r\n")[2]
            assert fuzz.closes(messages) or len(messages) > 100_000

    hold(door, answered, fuzz.paths, fuzz.queries)


def test_frames_get_an_answer(door: Door) -> None:
    def answered(frames: bytes) -> None:
        answer = fuzz.websocket(door.port + 1, fuzz.GOOD, frames)
        assert answer.startswith(b"HTTP/1.1 101 ")

    hold(door, answered, fuzz.frames)


def test_headers_get_an_answer(door: Door) -> None:
    def answered(
        method: bytes, path: str, version: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        for port in (door.port, door.port + 1):
            assert fuzz.http(port, method, path, version, headers) in fuzz.ANSWERS

    hold(door, answered, fuzz.methods, fuzz.paths, fuzz.versions, fuzz.headers)
