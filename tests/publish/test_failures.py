"""Brokers, publishers and servers that die under load: nothing is lost and order is kept."""

import asyncio
import os
import random
import signal

from tests.buses.events import lines
from tests.publish.brokers import Broker
from tests.publish.conftest import Start, respond, write
from tests.publish.promises import assert_all_arrived, assert_balanced


async def _load(journal, ndjson: bytes) -> None:
    """Journal a response over about two seconds."""
    parts = ndjson.splitlines(keepends=True)
    for start in range(0, len(parts), 100):
        await write(journal, b"".join(parts[start : start + 100]))
        await asyncio.sleep(2 * 100 / len(parts))


async def test_broker_killed_and_started_again_under_load(publish: Start, mortal: Broker) -> None:
    outbox = await publish(mortal.buses, drain_timeout_s=60.0)
    ndjson = lines(mortal.messages)
    load = asyncio.create_task(_load(respond(outbox), ndjson))
    for _ in range(2):
        await asyncio.sleep(random.uniform(0.2, 0.8))
        mortal.server.kill()
        await asyncio.sleep(random.uniform(0.0, 0.3))
        await asyncio.to_thread(mortal.server.start)
    await load
    report = await outbox.stop()
    assert_all_arrived(ndjson, await asyncio.to_thread(mortal.arrived))
    assert_balanced(report.buses[0].account, journalled=mortal.messages, delivered=mortal.messages)


async def test_publisher_killed_under_load(publish: Start, broker: Broker) -> None:
    outbox = await publish(broker.buses, drain_timeout_s=60.0)
    ndjson = lines(broker.messages)
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
    assert_all_arrived(ndjson, await asyncio.to_thread(broker.arrived))
    assert_balanced(report.buses[0].account, journalled=broker.messages, delivered=broker.messages)
