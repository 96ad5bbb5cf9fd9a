"""Brokers, publishers and servers that die under load: nothing is lost and order is kept."""

import asyncio
import os
import signal
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.publish.accounts import Account
from tardis_machine.publish.outbox import Outbox
from tests.publish.promises import assert_all_arrived, assert_balanced
from tests.support.brokers import (
    Broker,
    kafka_broker,
    kinesis_broker,
    nats_broker,
    redis_broker,
    sqs_broker,
)
from tests.support.command import Process
from tests.support.events import lines
from tests.support.outbox import Start, respond, write
from tests.support.requests import query
from tests.support.servers.aws import FaultProxy
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.process import ServerProcess
from tests.support.servers.redis import RedisServer
from tests.support.waiting import until

_STEP = 100
_UNDER_WAY = 500

pytestmark = pytest.mark.faults


class Load:
    """A response that is journalled while a test kills something, and until `end` is called.

    So many of its messages at most are not delivered yet, and it waits for them, so that there is
    work under way at every moment, however fast the machine is.
    """

    def __init__(self, outbox: Outbox, bus: str) -> None:
        self._outbox = outbox
        self._bus = bus
        self._parts: list[bytes] = []
        self._ends = False
        self._writing = asyncio.create_task(self._write())

    @property
    def count(self) -> int:
        """The messages that were journalled so far."""
        return _STEP * len(self._parts)

    async def _write(self) -> None:
        journal = respond(self._outbox)
        while not self._ends:
            await write(journal, lines(_STEP, start=self.count))
            self._parts.append(lines(_STEP, start=self.count))
            await until(lambda: self._ends or self.count - self._delivered < _UNDER_WAY)

    @property
    def _delivered(self) -> int:
        return counted(self._outbox, self._bus).delivered

    async def progress(self) -> None:
        """Wait until more was delivered than was journalled when this was called."""
        count = self.count
        await until(lambda: self._writing.done() or self._delivered > count)
        assert not self._writing.done()

    async def end(self) -> bytes:
        """End the response; return it."""
        self._ends = True
        await self._writing
        return b"".join(self._parts)


async def test_broker_killed_and_started_again_under_load(
    publish: Start, any_mortal: Broker
) -> None:
    outbox = await publish(any_mortal.buses, drain_timeout_s=60.0, retry_max=2)
    load = Load(outbox, any_mortal.bus)
    for is_noticed in (False, True):
        await load.progress()
        any_mortal.server.kill()
        if is_noticed:
            await until(lambda: outbox.unhealthy() != [])
        await asyncio.to_thread(any_mortal.server.start)
    await load.progress()
    ndjson = await load.end()
    report = await outbox.stop()
    assert_all_arrived(ndjson, await asyncio.to_thread(any_mortal.arrived))
    assert_balanced(report.buses[0].account, journalled=load.count, delivered=load.count)


async def test_publisher_killed_under_load(publish: Start, any_broker: Broker) -> None:
    outbox = await publish(any_broker.buses, drain_timeout_s=60.0)
    load = Load(outbox, any_broker.bus)
    killed: set[int | None] = {None}
    for _ in range(2):
        await load.progress()
        await until(lambda: outbox.publisher_pid not in killed)
        pid = outbox.publisher_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    await load.progress()
    ndjson = await load.end()
    report = await outbox.stop()
    assert_all_arrived(ndjson, await asyncio.to_thread(any_broker.arrived))
    assert_balanced(report.buses[0].account, journalled=load.count, delivered=load.count)


@pytest.mark.kafka
@pytest.mark.parametrize("absent", ["kafka", "nats", "kinesis", "sqs", "redis"])
async def test_five_buses_at_once_and_one_of_them_away(
    request: pytest.FixtureRequest, publish: Start, name: str, tmp_path: Path, absent: str
) -> None:
    """The other four lose nothing, and the fifth gets all once its server is started."""

    def server(bus: str, make: Callable[[Path], ServerProcess]) -> Any:
        if bus != absent:
            return request.getfixturevalue(bus)
        made = make(tmp_path / bus)
        request.addfinalizer(made.kill)
        return made

    def proxy(bus: str) -> FaultProxy:
        made = FaultProxy(ministack.port)
        request.addfinalizer(made.kill)
        if bus != absent:
            made.start()
        return made

    ministack = request.getfixturevalue("ministack")
    brokers = {
        "kafka": kafka_broker(server("kafka", KafkaBroker), name),
        "nats": nats_broker(server("nats", NatsServer), name),
        "kinesis": kinesis_broker(proxy("kinesis"), ministack, name),
        "sqs": sqs_broker(proxy("sqs"), ministack, name),
        "redis": redis_broker(server("redis", RedisServer), name),
    }
    count = 500
    ndjson = lines(count)
    configs = {bus: broker.config for bus, broker in brokers.items()}
    outbox = await publish(configs, drain_timeout_s=120.0, retry_max=2)
    await write(respond(outbox), ndjson)
    others = [bus for bus in brokers if bus != absent]
    await until(lambda: all(counted(outbox, bus).delivered == count for bus in others))
    await until(lambda: outbox.unhealthy() == [f"{absent}: unhealthy"])
    assert counted(outbox, absent).pending == count
    await asyncio.to_thread(brokers[absent].server.start)
    report = await outbox.stop()
    assert report.pending == 0
    for broker in brokers.values():
        assert_all_arrived(ndjson, await asyncio.to_thread(broker.arrived))


def counted(outbox: Outbox, bus: str) -> Account:
    """Give the books of a bus as the publisher last told them."""
    snapshot = outbox._snapshot
    return Account() if snapshot is None else snapshot.buses[bus].account


@pytest.mark.parametrize("broker", ["nats", "redis"], indirect=True)
def test_a_cluster_publishes_as_one(
    broker: Broker, launch: Callable[..., Process], journal_dir: Path
) -> None:
    """Every process journals what it serves, and one publisher delivers all of it."""
    process = launch(
        *("--sample-data", "--cluster-mode", "--port", "0"),
        *("--journal-dir", str(journal_dir), *broker.flags()),
    )
    port = process.listening(os.cpu_count() or 1)
    options = {
        "exchange": "bitmex",
        "symbols": ["XBTUSD"],
        "from": "2024-03-01T00:00",
        "to": "2024-03-01T00:01",
        "dataTypes": ["trade", "book_change"],
        "withDisconnectMessages": False,
    }
    url = f"http://127.0.0.1:{port}/replay-normalized{query(options)}"

    def replay(_: int) -> bytes:
        with urllib.request.urlopen(url, timeout=60) as response:
            return bytes(response.read())

    with ThreadPoolExecutor(4) as pool:
        bodies = set(pool.map(replay, range(8)))
    assert process.stop(signal.SIGTERM) == 0, "\n".join(process.lines)

    [body] = bodies
    arrived = broker.arrived()
    assert_all_arrived(body, arrived)
    copies = 1 if broker.bus == "nats" else 8  # JetStream knows what it has already
    assert len(arrived) == copies * body.count(b"\n")
