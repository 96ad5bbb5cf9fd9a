"""Servers and publishers that are stopped or orphaned: what is journalled is still delivered."""

import contextlib
import http.client
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.publish.promises import assert_all_arrived
from tests.support.brokers import Broker, nats_broker
from tests.support.hanging_disk import StallingDisk
from tests.support.machines import OPTIONS, Machine, gone
from tests.support.servers.nats import NatsServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


@pytest.fixture
def broker(start_nats: Callable[..., NatsServer], name: str) -> Broker:
    return nats_broker(start_nats(), name)


@pytest.fixture
def machine(broker: Broker, tmp_path: Path, journal_dir: Path) -> Iterator[Machine]:
    """A server with something pending: its broker is paused."""
    flags = ("--journal-dir", str(journal_dir), "--retry-max-s", "1", *broker.flags())
    made = Machine(tmp_path / "server.log", *flags)
    publisher = made.publisher
    yield made
    broker.server.resume()
    if made.process.poll() is None:
        made.stop(signal.SIGKILL)
    if not gone(publisher):
        os.kill(publisher, signal.SIGKILL)


def pend(machine: Machine, broker: Broker) -> bytes:
    """Publish something that cannot arrive yet."""
    machine.wait_for("bus connected")
    broker.server.pause()
    body = machine.get("/replay-normalized", OPTIONS)
    count = body.count(b"\n")
    assert count
    wait_until(lambda: machine.metric("pending", broker.bus) == count, "nothing is pending")
    return body


def test_a_signal_to_all_processes_at_once_does_not_cut_the_drain_short(
    machine: Machine, broker: Broker
) -> None:
    """As systemd stops a service."""
    body = pend(machine, broker)
    os.kill(machine.publisher, signal.SIGTERM)
    os.kill(machine.pid, signal.SIGTERM)
    machine.wait_for("stopping")
    broker.server.resume()
    assert machine.process.wait(timeout=90) == 0
    assert " pending=0 " in machine.wait_for("drained bus=nats")
    assert_all_arrived(body, broker.arrived())


def test_a_signal_to_the_publisher_alone_changes_nothing(machine: Machine, broker: Broker) -> None:
    body = pend(machine, broker)
    os.kill(machine.publisher, signal.SIGTERM)
    broker.server.resume()
    wait_until(lambda: machine.metric("pending", broker.bus) == 0, "it does not go on")
    assert machine.stop(signal.SIGTERM) == 0
    assert_all_arrived(body, broker.arrived())


def test_an_orphan_drains_though_somebody_once_waited_for_its_lock(
    machine: Machine, broker: Broker, journal_dir: Path
) -> None:
    body = pend(machine, broker)
    publisher = machine.publisher
    (journal_dir / "publisher.waiting").touch()
    machine.stop(signal.SIGKILL)
    broker.server.resume()
    wait_until(lambda: gone(publisher), "the publisher does not leave")
    assert_all_arrived(body, broker.arrived())
    assert not list(journal_dir.glob("log-*"))


def test_an_orphan_that_is_told_to_stop_drains_in_its_time(
    machine: Machine, broker: Broker, journal_dir: Path
) -> None:
    body = pend(machine, broker)
    publisher = machine.publisher
    machine.stop(signal.SIGKILL)
    os.kill(publisher, signal.SIGTERM)
    broker.server.resume()
    wait_until(lambda: gone(publisher), "the publisher does not leave")
    assert_all_arrived(body, broker.arrived())
    assert not list(journal_dir.glob("log-*"))


@pytest.mark.parametrize("stopping", [False, True])
def test_a_publisher_that_cannot_be_started_is_tried_again(
    machine: Machine, broker: Broker, *, stopping: bool
) -> None:
    """The server has no descriptor left when its publisher dies."""
    body = pend(machine, broker)
    publisher = machine.publisher
    enough = resource.prlimit(machine.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(machine.pid, resource.RLIMIT_NOFILE, (5, enough[1]))
    if stopping:
        os.kill(machine.pid, signal.SIGTERM)
        machine.wait_for("stopping")
    os.kill(publisher, signal.SIGKILL)
    machine.wait_for("publisher cannot be started")
    resource.prlimit(machine.pid, resource.RLIMIT_NOFILE, enough)
    broker.server.resume()
    wait_until(lambda: machine.publisher != publisher, "there is no publisher")
    assert (machine.process.wait(90) if stopping else machine.stop(signal.SIGTERM)) == 0
    assert " pending=0 " in machine.wait_for("drained bus=nats")
    assert_all_arrived(body, broker.arrived())


def test_a_drain_whose_publisher_dies_is_not_a_drain(machine: Machine, broker: Broker) -> None:
    """Its exit code alone says nothing: another one finishes the work."""
    body = pend(machine, broker)
    publisher = machine.publisher
    os.kill(machine.pid, signal.SIGTERM)
    machine.wait_for("stopping")
    os.kill(publisher, signal.SIGKILL)
    machine.wait_for("publisher died, it is started again")
    broker.server.resume()
    assert machine.process.wait(timeout=90) == 0
    assert_all_arrived(body, broker.arrived())


@pytest.mark.skipif(sys.platform != "linux", reason="the library that stalls is made for Linux")
@pytest.mark.parametrize("fsync", ["never", "interval:100ms", "batch"])
def test_sigterm_ends_the_server_though_its_journal_hangs(
    tmp_path: Path, journal_dir: Path, fsync: str
) -> None:
    disk = StallingDisk(tmp_path)
    events = tmp_path / "events.ndjson"
    flags = (
        *("--journal-dir", str(journal_dir), "--journal-ring-bytes", "0"),
        *("--journal-fsync", fsync, "--file-path", str(events)),
    )
    machine = Machine(tmp_path / "server.log", *flags, **disk.environ)
    publisher = machine.publisher
    try:
        body = machine.get("/replay-normalized", OPTIONS)
        count = body.count(b"\n")
        wait_until(lambda: machine.metric("delivered_total", "file") == count, "delivered")
        disk.stalled.touch()
        reading = threading.Thread(target=cut, args=(machine,))
        reading.start()
        wait_until(disk.reached.exists, "the journal hangs")
        machine.stop(signal.SIGTERM)
        reading.join()
        machine.wait_for("journal cannot be ended: its disk hangs")
        assert f"delivered={count} " in machine.wait_for("drained")
        wait_until(lambda: gone(publisher), "the publisher has ended")
    finally:
        disk.stalled.unlink(missing_ok=True)
        if machine.process.poll() is None:
            machine.stop(signal.SIGKILL)
    assert events.read_bytes().count(b"\n") == count


def cut(machine: Machine) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        machine.get("/replay-normalized", OPTIONS)
