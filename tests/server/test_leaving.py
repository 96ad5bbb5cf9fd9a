"""Clients that leave while their response waits for the journal."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.publish.outbox import Outbox
from tests.server.replays import OPTIONS, library
from tests.support.brokers import nats_broker
from tests.support.events import lines
from tests.support.outbox import respond
from tests.support.requests import query
from tests.support.served import Served, Start
from tests.support.servers.nats import NatsServer
from tests.support.waiting import until

ROUTES = {"http": "/replay-normalized", "ws": "/ws-replay-normalized"}
CLIENTS = 4
SMALLEST = {"max_bytes": 1 << 20}
WITH_RING = {"max_bytes": 4 << 20, "ring_bytes": 1 << 20}

Leave = Callable[[], Awaitable[None]]


def outbox_of(served: Served) -> Outbox:
    outbox = served.machine._outbox
    assert outbox is not None
    return outbox


async def enter(served: Served, port: str, options: Any, *, resets: bool) -> Leave:
    """Ask for a replay; gives the way to leave."""
    if port == "http":
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        target = ROUTES[port] + query(options)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        async def leave() -> None:
            if resets:
                writer.transport.abort()
            writer.close()
    else:
        socket = await served.client.ws_connect(served.ws(ROUTES[port], options))

        async def leave() -> None:
            if resets:
                connection = socket._response.connection
                assert connection is not None
                assert connection.transport is not None
                connection.transport.abort()
            await socket.close()

    return leave


@asynccontextmanager
async def full_journal(served: Served, nats: NatsServer) -> AsyncIterator[None]:
    """Fill the journal by a response of the test's own, that waits and is written in the end."""
    outbox = outbox_of(served)
    journal = respond(outbox)
    tickets = [journal.append(lines(300), 300)]
    while outbox.scribe.writer.space._full_since is None:
        if tickets[-1].done:
            tickets.append(journal.append(lines(300), 300))
        await asyncio.sleep(0.001)
    yield
    nats.start()
    for ticket in tickets:
        await ticket


@pytest.mark.parametrize(
    ("journal", "port", "resets", "speed"),
    [
        pytest.param(SMALLEST, "http", True, None, id="http-reset"),
        pytest.param(SMALLEST, "ws", False, 1000, id="ws-close-paced"),
        pytest.param(WITH_RING, "http", False, 1000, id="ring-http-close-paced"),
        pytest.param(WITH_RING, "ws", True, None, id="ring-ws-reset"),
    ],
)
async def test_data_of_a_client_that_left_leaves_the_full_journals_queue(
    start: Start,
    start_nats: Callable[..., NatsServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    journal: dict[str, Any],
    port: str,
    resets: bool,
    speed: float | None,
) -> None:
    """And is not published; what others have journalled, or journal later, is."""
    monkeypatch.setattr("tardis_machine.journal.writer._RINGS_AT_LEAST", 2)
    nats = start_nats()
    broker = nats_broker(nats, "bronze")
    nats.stop()
    served = await start(
        **broker.buses,
        journal={"dir": tmp_path / "journal"} | journal,
        publish={"retry_max_s": 0.2},
    )
    scribe = outbox_of(served).scribe
    active = served.machine.metrics.active.labels(ROUTES[port])
    options = OPTIONS if speed is None else OPTIONS | {"speed": speed}
    async with full_journal(served, nats):
        leaving = [await enter(served, port, options, resets=resets) for _ in range(CLIENTS)]
        await until(lambda: scribe.queued > CLIENTS)
        written = scribe.writer.appended
        for leave in leaving:
            await leave()
        await until(lambda: active._value.get() == 0)
        assert scribe.queued == 1
        assert scribe.writer.appended == written
    async with served.client.get(served.http(ROUTES["http"], OPTIONS)) as response:
        stayed = response.headers["X-Request-Id"]
        assert await response.read() == library(OPTIONS)
    report = await served.machine.stop()
    assert report is not None
    assert report.pending == 0
    requests = {
        each.envelope.meta["request_id"] for each in await asyncio.to_thread(broker.arrived)
    }
    assert requests == {"request-1", stayed}
