"""Replays that wait for minutes that are yet to come, over real sockets."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tardis_machine.server import session
from tardis_machine.server.native import START_AFTER_S
from tests.support.bitmex import bitmex_trades
from tests.support.native import TRADES
from tests.support.native import replayed as read_native
from tests.support.served import Served, Start
from tests.support.servers.exchange import PATIENCE_S
from tests.support.servers.tardis_api import TardisApi
from tests.support.waiting import until

WAIT = "waitWhenDataNotYetAvailable"
ROUTES = ("/replay", "/replay-normalized", "/ws-replay-normalized", "/ws-replay")


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Serve with the kernel that is there: what it makes is not in question."""


class Edge:
    """Three minutes: two that are due, and one that will be in a few seconds."""

    def __init__(self, seconds: float = 1) -> None:
        now = time.time()
        self.last = int(now) // 60 - 8
        self.due_at = now + seconds
        self.lag = (self.due_at - 60 * self.last) / 60
        self.options = {
            "exchange": "bitmex",
            "from": iso(self.last - 2),
            "to": iso(self.last + 1),
            WAIT: self.lag,
        }


def iso(minute: int) -> str:
    return f"{datetime.fromtimestamp(60 * minute, UTC):%Y-%m-%dT%H:%M}"


def future(path: str) -> dict[str, Any]:
    """A range of which nothing is due in this test."""
    minute = int(time.time()) // 60
    kind = {"dataTypes": ["trade"]} if path.endswith("normalized") else {}
    span = {"from": iso(minute + 60), "to": iso(minute + 600)}
    return {"exchange": "bitmex", WAIT: True, **span, **kind}


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
def serve(start: Start, tardis_api: TardisApi, tmp_path: Path) -> Serve:
    """Start servers of an API."""
    tardis_api.lines = bitmex_trades

    async def started(**settings: Any) -> Served:
        where = {"sample_data": False, "endpoint": tardis_api.endpoint, "cache_dir": tmp_path}
        return await start(**where, **settings)

    return started


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


def waits(served: Served) -> int:
    assert served.machine._services is not None
    return len(served.machine._services.history._lag_timer._waits)


def active(served: Served, path: str) -> float:
    count: float = served.machine.metrics.active.labels(path)._value.get()
    return count


async def connect(served: Served, path: str, options: dict[str, Any]) -> Any:
    if path == "/ws-replay":
        query = {name: json.dumps(value).strip('"') for name, value in options.items()}
        socket = await served.client.ws_connect(
            served.ws(path), params=query, autoping=False, max_msg_size=0
        )
        await socket.send_json(TRADES)
        return socket
    return await served.client.ws_connect(served.ws(path, options), autoping=False)


async def read(served: Served, path: str, options: dict[str, Any]) -> list[str]:
    """All messages of a replay that ends well."""
    if not path.startswith("/ws"):
        async with served.client.get(served.http(path, options)) as response:
            assert response.status == 200
            return (await response.text()).splitlines()
    found = []
    socket = await connect(served, path, options)
    async with asyncio.timeout(PATIENCE_S):
        while (message := await socket.receive()).type is not WSMsgType.CLOSE:
            if message.type is WSMsgType.PING:
                await socket.pong()
            else:
                found.append(message.data)
    assert message.data == 1000
    await socket.close()
    return found


@pytest.mark.parametrize("path", ROUTES)
async def test_minute_is_fetched_when_it_is_due(
    served: Served, tardis_api: TardisApi, path: str
) -> None:
    edge = Edge(START_AFTER_S + 1 if path == "/ws-replay" else 1)
    asked_at = {}

    def lines(exchange: str, minute: int) -> bytes:
        asked_at[minute] = time.time()
        return bitmex_trades(exchange, minute)

    tardis_api.lines = lines
    options = edge.options | ({"dataTypes": ["trade"]} if path.endswith("normalized") else {})
    waited = await read(served, path, options)
    assert len(waited) == 3000
    assert asked_at.keys() == {edge.last - 2, edge.last - 1, edge.last}
    assert asked_at[edge.last] >= edge.due_at
    assert waited == await read(served, path, options | {WAIT: False})
    assert waits(served) == 0


@pytest.mark.parametrize("path", ["/replay", "/replay-normalized"])
async def test_answer_begins_while_nothing_is_due_and_ends_with_its_client(
    served: Served, tardis_api: TardisApi, path: str
) -> None:
    async with served.client.get(served.http(path, future(path))) as response:
        assert response.status == 200
        assert (waits(served), active(served, path)) == (1, 1)
        response.close()
    await until(lambda: (waits(served), active(served, path)) == (0, 0))
    assert not tardis_api.calls


@pytest.mark.parametrize("path", ["/ws-replay-normalized", "/ws-replay"])
async def test_websocket_is_pinged_while_nothing_is_due_and_leaves_at_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(session, "PING_S", 0.05)
    served = await serve(stall_timeout_s=0.1)
    socket = await connect(served, path, future(path))
    await until(lambda: waits(served) == 1)
    for _ in range(10):
        assert (await socket.receive()).type is WSMsgType.PING
        await socket.pong()
    assert active(served, path) == 1
    await socket.close()
    await until(lambda: (waits(served), active(served, path)) == (0, 0))


async def test_session_waits_for_the_minutes_of_all(served: Served) -> None:
    options = {
        name: json.dumps(value).strip('"')
        for name, value in Edge(START_AFTER_S + 1).options.items()
    }
    sockets = [
        await served.client.ws_connect(
            served.ws("/ws-replay"), params=options | {"session": "one"}, max_msg_size=0
        )
        for _ in range(2)
    ]
    for socket in sockets:
        await socket.send_json(TRADES)
    for found, code, _ in await asyncio.gather(*map(read_native, sockets)):
        assert (len(found), code) == (3000, 1000)


async def test_stopping_the_server_waits_for_no_minute(served: Served) -> None:
    path = "/replay-normalized"
    async with served.client.get(served.http(path, future(path))) as response:
        await served.machine.stop()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_merged_replays_wait_together(served: Served) -> None:
    options = Edge().options | {"dataTypes": ["trade"]}
    url = served.http("/replay-normalized", [options, options])
    async with served.client.get(url) as response:
        assert response.status == 200
        lines = (await response.text()).splitlines()
    times = [json.loads(line)["localTimestamp"] for line in lines]
    assert len(times) == 6000
    assert times == sorted(times)


async def test_error_of_what_is_due_keeps_its_status(served: Served, tardis_api: TardisApi) -> None:
    tardis_api.api_key = "another"
    options = Edge().options | {"dataTypes": ["trade"]}
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        assert response.status == 401


@pytest.mark.parametrize("value", ["soon", "-1", "1e9"])
async def test_native_replay_refuses_a_wait_that_is_none(served: Served, value: str) -> None:
    options = {"exchange": "bitmex", "from": "2024-03-01", "to": "2024-03-02", WAIT: value}
    socket = await served.client.ws_connect(served.ws("/ws-replay"), params=options)
    _, code, reason = await read_native(socket)
    assert code == 1011
    assert reason.startswith(f'invalid "{WAIT}": ')
