"""Brokers, publishers and servers that die under load: nothing is lost and order is kept."""

import asyncio
import os
import random
import signal
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tardis_machine.publish.accounts import Account
from tardis_machine.publish.outbox import Outbox
from tests.buses.events import lines
from tests.cli.conftest import Process
from tests.publish.brokers import (
    Broker,
    kafka_broker,
    kinesis_broker,
    nats_broker,
    redis_broker,
    sqs_broker,
)
from tests.publish.conftest import Start, respond, write
from tests.publish.promises import assert_all_arrived, assert_balanced
from tests.server.conftest import free_ports, query
from tests.servers.aws import FaultProxy

pytestmark = pytest.mark.faults


async def _load(journal, ndjson: bytes) -> None:
    """Journal a response over about two seconds."""
    parts = ndjson.splitlines(keepends=True)
    for start in range(0, len(parts), 100):
        await write(journal, b"".join(parts[start : start + 100]))
        await asyncio.sleep(2 * 100 / len(parts))


async def test_broker_killed_and_started_again_under_load(
    publish: Start, any_mortal: Broker
) -> None:
    outbox = await publish(any_mortal.buses, drain_timeout_s=60.0)
    ndjson = lines(any_mortal.messages)
    load = asyncio.create_task(_load(respond(outbox), ndjson))
    for _ in range(2):
        await asyncio.sleep(random.uniform(0.2, 0.8))
        any_mortal.server.kill()
        await asyncio.sleep(random.uniform(0.0, 0.3))
        await asyncio.to_thread(any_mortal.server.start)
    await load
    report = await outbox.stop()
    assert_all_arrived(ndjson, await asyncio.to_thread(any_mortal.arrived))
    assert_balanced(
        report.buses[0].account, journalled=any_mortal.messages, delivered=any_mortal.messages
    )


async def test_publisher_killed_under_load(publish: Start, any_broker: Broker) -> None:
    outbox = await publish(any_broker.buses, drain_timeout_s=60.0)
    ndjson = lines(any_broker.messages)
    load = asyncio.create_task(_load(respond(outbox), ndjson))
    killed = set()
    for _ in range(2):
        await asyncio.sleep(random.uniform(0.5, 1.5))
        pid = outbox.publisher_pid
        assert pid is not None
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        while outbox.publisher_pid in killed:  # noqa: ASYNC110 - the supervisor's own state
            await asyncio.sleep(0.02)
    await load
    report = await outbox.stop()
    assert_all_arrived(ndjson, await asyncio.to_thread(any_broker.arrived))
    assert_balanced(
        report.buses[0].account, journalled=any_broker.messages, delivered=any_broker.messages
    )


@pytest.mark.kafka
@pytest.mark.parametrize("dead", ["kafka", "nats", "kinesis", "sqs", "redis"])
async def test_five_buses_at_once_and_one_of_them_dead(
    request: pytest.FixtureRequest, publish: Start, name: str, dead: str
) -> None:
    """Nothing of the other four is late or lost, and the dead one gets all when it is back."""
    ministack = request.getfixturevalue("ministack")
    mortal = request.getfixturevalue("start_kafka") if dead == "kafka" else None
    kafka = request.getfixturevalue("kafka") if mortal is None else mortal()
    proxies = {bus: FaultProxy(ministack.port) for bus in ("kinesis", "sqs")}
    for proxy in proxies.values():
        proxy.start()
        request.addfinalizer(proxy.kill)
    brokers = {
        "kafka": kafka_broker(kafka, name),
        "nats": nats_broker(request.getfixturevalue("start_nats")(), name),
        "kinesis": kinesis_broker(proxies["kinesis"], ministack, name),
        "sqs": sqs_broker(proxies["sqs"], ministack, name),
        "redis": redis_broker(request.getfixturevalue("start_redis")(), name),
    }
    count = 2_000
    ndjson = lines(count)
    await asyncio.to_thread(brokers[dead].server.kill)
    configs = {bus: broker.config for bus, broker in brokers.items()}
    outbox = await publish(configs, drain_timeout_s=120.0, retry_max=2)
    await _load(respond(outbox), ndjson)
    for _ in range(900):
        accounts = {bus: counted(outbox, bus) for bus in brokers}
        others = all(a.delivered == count for bus, a in accounts.items() if bus != dead)
        if others and outbox.unhealthy():
            break
        await asyncio.sleep(0.1)

    assert {bus: a.delivered for bus, a in accounts.items()} == {
        bus: 0 if bus == dead else count for bus in brokers
    }
    assert accounts[dead].pending == count
    assert outbox.unhealthy() == [f"{dead}: unhealthy"]
    await asyncio.to_thread(brokers[dead].server.start)
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
    port = free_ports()
    process = launch(
        *("--sample-data", "--cluster-mode", "--port", str(port)),
        *("--journal-dir", str(journal_dir), *broker.flags()),
    )
    process.wait_for("listening", os.cpu_count() or 1)
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
