"""Long outages and random deaths, for `make soak`: minutes instead of seconds.

SOAK_S is how long the broker is away, and how long everything dies at random (default: 60).
"""

import math
import os
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.publish.promises import arrived_by_key, events_of, ids_by_key
from tests.support.arrivals import Arrival
from tests.support.brokers import Broker
from tests.support.machines import MEMORY_MB, Machine, gone, large_options, logs_of, peak_mb
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(3600)]

SOAK_S = float(os.environ.get("SOAK_S", "60"))
# The emulator of Kinesis takes 2,000 events a second: it must not be drained for an hour.
PAUSE_S = {"kinesis": 30.0}
STILL_S = 300.0


def wait_for_the_rest(server: Machine, bus: str) -> None:
    """Wait until nothing is pending, for as long as it becomes less."""
    least, moved = math.inf, time.monotonic()
    while (pending := server.metric("pending", bus)) != 0:
        if pending is not None and pending < least:
            least, moved = pending, time.monotonic()
        assert time.monotonic() < moved + STILL_S, f"{pending} messages stay pending"
        time.sleep(0.5)


def assert_complete(responses: int, body: bytes, arrivals: list[Arrival], bus: str) -> None:
    """Every response arrived whole, each key in order; NATS drops ids it has seen."""
    assert arrived_by_key(arrivals).keys() == ids_by_key(events_of(body)).keys()
    if bus == "nats":
        assert {a.headers["event-id"] for a in arrivals} == {e.event_id for e in events_of(body)}
        return
    positions: dict[str, set[int]] = {}
    for arrival in arrivals:
        envelope = arrival.envelope
        positions.setdefault(envelope.meta["request_id"], set()).add(envelope.position)
    assert len(positions) == responses
    count = body.count(b"\n")
    assert all(found == set(range(count)) for found in positions.values())


def test_a_long_outage(
    mortal: Broker,
    serve: Callable[..., Machine],
    journal_dir: Path,
) -> None:
    mortal.server.kill()
    server = serve(mortal)
    until = time.monotonic() + SOAK_S
    body = b""
    responses = 0
    while time.monotonic() < until:
        body = server.get("/replay-normalized", large_options(20_000))
        responses += 1
        time.sleep(PAUSE_S.get(mortal.bus, 2.0))
    total = responses * body.count(b"\n")
    wait_until(lambda: server.metric("pending", mortal.bus) == total, "not all is pending")
    assert peak_mb(server.pid) < MEMORY_MB
    mortal.server.start()
    wait_for_the_rest(server, mortal.bus)
    assert peak_mb(server.publisher) < MEMORY_MB
    assert server.stop(signal.SIGTERM) == 0
    assert_complete(responses, body, mortal.arrived(), mortal.bus)
    assert not logs_of(journal_dir)


@contextmanager
def deaths(broker: Broker, publisher: Callable[[], int]) -> Iterator[None]:
    """Kill and start the broker, and kill the publisher, at random."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(random.uniform(0.5, 3)):
            if random.random() < 0.5:
                with suppress(ProcessLookupError, AssertionError):
                    os.kill(publisher(), signal.SIGKILL)
            else:
                broker.server.kill()
                done.wait(random.uniform(0, 2))
                broker.server.start()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    """Servers started one after the other; what a failed test leaves running is killed."""
    started: list[Machine] = []
    yield started
    for machine in started:
        publisher = machine.publisher
        if machine.process.poll() is None:
            machine.stop(signal.SIGKILL)
        if not gone(publisher):
            os.kill(publisher, signal.SIGKILL)


def test_everything_dies_at_random(
    mortal: Broker, machines: list[Machine], tmp_path: Path, journal_dir: Path
) -> None:
    flags = ("--journal-dir", str(journal_dir), "--retry-max-s", "1", *mortal.flags())
    machines.append(Machine(tmp_path / "server-0.log", *flags))
    options = large_options(20_000)
    whole = machines[0].get("/replay-normalized", [o | {"publish": False} for o in options])
    received: list[bytes] = []
    with deaths(mortal, lambda: machines[-1].publisher):
        until = time.monotonic() + SOAK_S
        while time.monotonic() < until:
            server = machines[-1]
            body = b""
            stop_after = random.randrange(len(whole) * 2)
            with (
                suppress(OSError, ValueError, HTTPException),
                urllib.request.urlopen(server.url("/replay-normalized", options)) as response,
            ):
                while piece := response.read1(65_536):
                    body += piece
                    if len(body) > stop_after:
                        server.process.kill()
            received.append(body[: body.rfind(b"\n") + 1])
            if server.process.poll() is not None or random.random() < 0.3:
                server.stop(signal.SIGKILL)
                log = tmp_path / f"server-{len(machines)}.log"
                machines.append(Machine(log, *flags))
            time.sleep(random.uniform(0, PAUSE_S.get(mortal.bus, 1.0)))
    assert len(machines) > 1
    last = machines[-1]
    wait_for_the_rest(last, mortal.bus)
    wait_until(lambda: len(logs_of(journal_dir)) == 1, "logs are left")
    arrived = arrived_by_key(mortal.arrived())
    expected = ids_by_key(events_of(whole))
    for key, ids in arrived.items():
        assert set(ids) <= set(expected[key])
    for body in received:
        for key, ids in ids_by_key(events_of(body)).items():
            assert set(ids) <= set(arrived.get(key, ()))
    assert last.stop(signal.SIGTERM) == 0
    wait_until(lambda: all(gone(m.publisher) for m in machines), "publishers live on")
