"""The server with its publisher: replays end to end, crashes, outages, and no bus at all."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tardis_machine.bronze import Origin
from tardis_machine.bronze.decoder import decode
from tardis_machine.messages import encode_line
from tardis_machine.server.app import TardisMachine
from tests.publish.promises import assert_all_arrived, assert_balanced, assert_received_arrived
from tests.support.arrivals import Arrival
from tests.support.brokers import Broker
from tests.support.command import Run
from tests.support.machines import MEMORY_MB, Machine, gone, large_options, logs_of, peak_mb
from tests.support.ports import free_ports as unused_ports
from tests.support.requests import query
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

OPTIONS = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:02",
    "dataTypes": ["trade", "book_change"],
}


def messages_of(arrivals: list[Arrival], transport: str) -> list[bytes]:
    """Turn what arrived of one response back into its lines, by position."""
    found = {}
    for arrival in arrivals:
        message, envelope = decode(arrival.value)
        if envelope.context.transport == transport:
            assert envelope.context.origin is Origin.REPLAY
            assert envelope.context.ingest_us is not None
            found[envelope.position] = encode_line(message)
    return [found[position] for position in range(len(found))]


async def test_both_replay_flows_arrive_as_the_clients_saw_them(
    broker: Broker, journal_dir: Path
) -> None:
    machine = TardisMachine(
        sample_data=True, journal={"dir": journal_dir}, **{broker.bus: broker.config}
    )
    await machine.start(0)
    http = f"http://127.0.0.1:{machine.port}/replay-normalized"
    ws = f"http://127.0.0.1:{machine.port + 1}/ws-replay-normalized"
    async with aiohttp.ClientSession() as client:
        async with client.get(http + query(OPTIONS)) as response:
            over_http = await response.read()
        opt_out = OPTIONS | {"publish": False}
        async with client.get(http + query(opt_out)) as response:
            assert await response.read() == over_http
        async with client.ws_connect(ws + query(OPTIONS)) as socket:
            over_ws = [message.data.encode() async for message in socket]
    report = await machine.stop()
    assert report is not None
    lines = over_http.splitlines()
    assert len(lines) > 1_000
    assert_balanced(report.buses[0].account, journalled=2 * len(lines), delivered=2 * len(lines))
    arrivals = await asyncio.to_thread(broker.arrived)
    assert messages_of(arrivals, "http") == lines
    # NATS drops what it has seen: the same message of another response has the same id.
    if broker.bus == "kafka":
        assert messages_of(arrivals, "ws") == lines
    assert [line for text in over_ws for line in text.splitlines()] == lines


@pytest.mark.faults
@pytest.mark.parametrize("drained_by", ["its publisher", "the command"])
def test_server_killed_under_load(
    broker: Broker, serve: Callable[..., Machine], run: Run, journal_dir: Path, drained_by: str
) -> None:
    server = serve(broker)
    options = large_options(30_000)
    whole = server.get("/replay-normalized", [each | {"publish": False} for each in options])
    publisher = server.publisher
    received = b""
    with in_small_pieces(server, options) as response:
        stop_after = random.randrange(len(whole) // 10, len(whole) // 2)
        while len(received) < stop_after:
            received += response.read1(65_536)
        server.process.kill()
        if drained_by == "the command":
            os.kill(publisher, signal.SIGKILL)
        received += rest(response)
    assert len(received) < len(whole)
    received = received[: received.rfind(b"\n") + 1]
    server.process.wait()
    if drained_by == "the command":
        done = run("publish", "--journal-dir", str(journal_dir), *broker.flags())
        assert done.returncode == 0, done.stderr
        assert " pending=0 " in done.stderr
    wait_until(lambda: not logs_of(journal_dir), "the journal is not drained")
    wait_until(lambda: gone(publisher), "the publisher does not leave")
    assert_received_arrived(received, whole, broker.arrived())


@contextmanager
def in_small_pieces(server: Machine, options: Any) -> Iterator[HTTPResponse]:
    """Get what the system holds little of, so that no server is done long before its client."""
    connection = HTTPConnection("127.0.0.1", server.port)
    with socket.socket() as connection.sock:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.sock.connect((connection.host, connection.port))
        connection.request("GET", f"/replay-normalized{query(options)}")
        with connection.getresponse() as response:
            yield response


def rest(response: Any) -> bytes:
    """Read what was on its way when the server died."""
    found = b""
    with suppress(OSError, ValueError, HTTPException):
        while piece := response.read1(65_536):
            found += piece
    return found


@pytest.mark.faults
def test_broker_dead_during_a_whole_replay(
    mortal: Broker, serve: Callable[..., Machine], journal_dir: Path
) -> None:
    mortal.server.kill()
    server = serve(mortal)
    body = server.get("/replay-normalized", large_options(200_000))
    count = body.count(b"\n")
    assert count >= 200_000
    wait_until(lambda: server.metric("pending", mortal.bus) == count, "not all is pending")
    assert peak_mb(server.pid) < MEMORY_MB
    mortal.server.start()
    wait_until(lambda: server.metric("pending", mortal.bus) == 0, "not all arrived")
    assert peak_mb(server.publisher) < MEMORY_MB
    assert server.metric("delivered_total", mortal.bus) == count
    assert server.stop(signal.SIGTERM) == 0
    assert_all_arrived(body, mortal.arrived())
    assert not logs_of(journal_dir)


@pytest.mark.faults
def test_one_bus_dead_while_the_other_goes_on(
    broker: Broker, serve: Callable[..., Machine], journal_dir: Path
) -> None:
    [port] = unused_ports(1)
    dead = {
        "nats": ("--nats-servers", f"nats://127.0.0.1:{port}", "--nats-subject", "x"),
        "kafka": ("--kafka-brokers", f"127.0.0.1:{port}", "--kafka-topic", "x"),
    }
    other = "nats" if broker.bus == "kafka" else "kafka"
    server = serve(broker, more=(*dead[other], "--retry-max", "1", "--drain-timeout-s", "1"))
    body = server.get("/replay-normalized", OPTIONS)
    count = body.count(b"\n")
    wait_until(lambda: server.metric("delivered_total", broker.bus) == count, "not delivered")
    wait_until(lambda: server.metric("bus_healthy", other) == 0, "the dead bus seems healthy")
    health = json.loads(server.get("/health-check"))
    assert health["status"] == "Degraded"
    assert health["unhealthy"] == [f"{other}: unhealthy"]
    assert server.metric("pending", other) == count
    assert server.stop(signal.SIGTERM) == 1
    assert f"journalled={count} " in server.wait_for(f"drained bus={other}")
    assert_all_arrived(body, broker.arrived())
    assert logs_of(journal_dir)


def test_publishing_off_leaves_no_trace(
    broker: Broker, serve: Callable[..., Machine], tmp_path: Path
) -> None:
    published = serve(broker).get("/replay-normalized", OPTIONS)
    state = tmp_path / "state"
    server = Machine(tmp_path / "server.log", XDG_STATE_HOME=str(state))
    assert server.get("/replay-normalized", OPTIONS) == published
    fields = {"status", "uptimeHours", "timestampMs", "memoryInfo"}
    assert set(json.loads(server.get("/health-check"))) == fields
    assert b"tardis_machine_publish" not in server.get("/metrics")
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    assert children == ""
    assert not state.exists()
    assert server.stop(signal.SIGTERM) == 0


def test_publishing_off_imports_no_bus_client() -> None:
    program = """
import asyncio, sys
from tardis_machine.server.app import TardisMachine

async def main():
    async with TardisMachine(sample_data=True, port=0):
        pass

asyncio.run(main())
print(sorted({"confluent_kafka", "nats", "tardis_machine.publish.publisher"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
