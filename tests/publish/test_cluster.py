"""Several server processes on one journal: one publisher for all, and nothing lost by any."""

import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.publish.promises import arrived_by_key, events_of, ids_by_key
from tests.support.brokers import Broker, nats_broker
from tests.support.machines import OPTIONS, Machine, gone
from tests.support.servers.nats import NatsServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

RESPONSES = 8


@pytest.fixture
def broker(start_nats: Callable[..., NatsServer], name: str) -> Broker:
    return nats_broker(start_nats(), name)


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path, journal_dir: Path) -> Iterator[Machine]:
    flags = ("--cluster-mode", "--journal-dir", str(journal_dir), "--retry-max-s", "1")
    made = Machine(tmp_path / "server.log", *flags, *broker.flags())
    wait_until(lambda: len(workers(made)) == os.cpu_count(), "not all processes are there")
    yield made
    broker.server.resume()
    left = descendants(made.pid)
    if made.process.poll() is None:
        made.stop(signal.SIGKILL)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [int(each) for each in found]


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def workers(machine: Machine) -> list[int]:
    """Name the server processes that have their publisher: they serve."""
    return [pid for pid in children(machine.pid) if children(pid)]


def get_all(machine: Machine) -> list[bytes]:
    with ThreadPoolExecutor(RESPONSES) as pool:
        asked = [pool.submit(machine.get, "/replay-normalized", OPTIONS) for _ in range(RESPONSES)]
        return [each.result() for each in asked]


def test_all_processes_are_published_by_one(
    cluster: Machine, broker: Broker, journal_dir: Path
) -> None:
    bodies = get_all(cluster)
    assert len(set(bodies)) == 1
    count = RESPONSES * bodies[0].count(b"\n")
    wait_until(lambda: cluster.metric("delivered_total", broker.bus) == count, "not delivered")
    assert cluster.stop(signal.SIGTERM) == 0
    assert arrived_by_key(broker.arrived()) == ids_by_key(events_of(bodies[0]))
    assert not list(journal_dir.glob("log-*"))


def test_a_signal_to_every_process_at_once_drains_all(
    cluster: Machine, broker: Broker, journal_dir: Path
) -> None:
    """As systemd stops a service: parent, servers and publishers alike."""
    cluster.wait_for("bus connected")
    broker.server.pause()
    body = get_all(cluster)[0]
    everyone = [cluster.pid, *descendants(cluster.pid)]
    for pid in everyone:
        os.kill(pid, signal.SIGTERM)
    cluster.wait_for("stopping")
    broker.server.resume()
    assert cluster.process.wait(timeout=90) == 0
    wait_until(lambda: all(gone(pid) for pid in everyone), "some live on")
    assert arrived_by_key(broker.arrived()) == ids_by_key(events_of(body))
    assert not list(journal_dir.glob("log-*"))


def test_a_process_that_is_killed_loses_nothing_a_client_has(
    cluster: Machine, broker: Broker, journal_dir: Path
) -> None:
    whole = cluster.get("/replay-normalized", OPTIONS | {"publish": False})
    received: list[bytes] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            body = b""
            with (
                suppress(OSError, HTTPException),
                urllib.request.urlopen(cluster.url("/replay-normalized", OPTIONS)) as response,
            ):
                while piece := response.read1(65_536):
                    body += piece
            received.append(body[: body.rfind(b"\n") + 1])

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for each in asking:
        each.start()
    for _ in range(2):
        victim = workers(cluster)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(
            lambda victim=victim: (
                victim not in workers(cluster) and len(workers(cluster)) == os.cpu_count()
            ),
            "it is not started again",
        )
    done.set()
    for each in asking:
        each.join()
    wait_until(lambda: cluster.metric("pending", broker.bus) == 0, "not all arrived")
    assert cluster.stop(signal.SIGTERM) == 0
    arrived = arrived_by_key(broker.arrived())
    everything = ids_by_key(events_of(whole))
    assert sum(map(len, received)) > 0
    for body in received:
        for key, ids in ids_by_key(events_of(body)).items():
            assert set(ids) <= set(arrived.get(key, ()))
    for key, ids in arrived.items():
        assert set(ids) <= set(everything[key])
    wait_until(lambda: not list(journal_dir.glob("log-*")), "logs are left")
