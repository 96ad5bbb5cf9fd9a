"""What is too much: each limit refuses, names itself and is counted."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from aiohttp import WSMsgType

from tests.server.conftest import Served, Start, until
from tests.server.test_http import OPTIONS
from tests.server.test_websocket import frames

LONG = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}


def limited(served: Served, limit: str) -> float:
    count: float = served.machine.metrics.limited.labels(limit)._value.get()
    return count


@pytest.mark.parametrize(
    ("limit", "settings", "just", "too_much", "part"),
    [
        (
            "max_depth",
            {"max_depth": 10},
            {"dataTypes": ["book_snapshot_10_1m", "quote"]},
            {"dataTypes": ["book_snapshot_11_1m"]},
            "depth 11 of book_snapshot_11_1m, expected at most 10 (--max-depth)",
        ),
        (
            "max_depth",
            {},
            {"dataTypes": ["book_snapshot_5000_1m"]},
            {"dataTypes": ["book_snapshot_5001_1m"]},
            "at most 5000",
        ),
        (
            "max_levels",
            {"max_levels": 10},
            {"dataTypes": ["book_snapshot_5_1m", "book_snapshot_5_2m"]},
            {"dataTypes": ["book_snapshot_5_1m", "book_snapshot_6_1m"]},
            "11 levels in one request, expected at most 10 (--max-levels)",
        ),
        (
            "max_data_types",
            {"max_data_types": 2},
            {"dataTypes": ["trade", "trade", "quote"]},
            {"dataTypes": ["trade", "quote", "book_change"]},
            "3 types in one request, expected at most 2 (--max-data-types)",
        ),
    ],
)
async def test_what_one_request_may_ask_for(
    start: Start,
    limit: str,
    settings: dict[str, Any],
    just: dict[str, Any],
    too_much: dict[str, Any],
    part: str,
) -> None:
    served = await start(**settings)
    async with served.client.get(served.http("/replay-normalized", OPTIONS | just)) as response:
        assert response.status == 200
    async with served.client.get(served.http("/replay-normalized", OPTIONS | too_much)) as response:
        assert response.status == 400
        assert part in (await response.json())["message"]
    _, code, reason = await frames(served, OPTIONS | too_much)
    assert code == 1011
    assert part[:80] in reason
    assert limited(served, limit) == 2


async def test_streams_of_one_request(start: Start) -> None:
    served = await start(max_streams=2)
    async with served.client.get(served.http("/replay-normalized", [OPTIONS] * 2)) as response:
        assert response.status == 200
    async with served.client.get(served.http("/replay-normalized", [OPTIONS] * 3)) as response:
        assert response.status == 400
        assert "3 streams, expected at most 2 (--max-streams)" in (await response.json())["message"]
    assert limited(served, "max_streams") == 1


async def test_replays_at_once(start: Start) -> None:
    served = await start(max_replays=2)
    url = served.http("/replay-normalized", LONG)
    async with (
        served.client.get(url) as first,
        served.client.ws_connect(served.ws("/ws-replay-normalized", LONG)) as second,
    ):
        assert first.status == 200
        assert (await second.receive()).type is WSMsgType.TEXT
        for path in ("/replay-normalized", "/replay"):
            async with served.client.get(served.http(path, LONG)) as response:
                assert response.status == 503
                assert response.headers["Retry-After"] == "5"
                assert "2 replays" in (await response.json())["message"]
        _, code, reason = await frames(served, LONG)
        assert code == 1013
        assert reason.startswith("busy: 2 replays are being served, try again later")
        async with served.client.get(served.http("/health-check")) as response:
            assert response.status == 200
    assert limited(served, "max_replays") == 3
    active = served.machine.metrics.active
    routes = ("/replay-normalized", "/ws-replay-normalized")
    await until(lambda: sum(active.labels(each)._value.get() for each in routes) == 0)
    async with served.client.get(url) as response:
        assert response.status == 200


async def test_connections_at_once(start: Start) -> None:
    served = await start(max_connections=3)
    listener = served.machine._listeners[0]
    idle = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(3)]
    try:
        await until(lambda: len(listener.connections) == 3)
        async with served.client.get(served.http("/health-check")) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "5"
            assert "3 connections" in (await response.json())["message"]
        assert limited(served, "max_connections") == 1
    finally:
        for each in idle:
            each.close()
    await until(lambda: not listener.connections)
    async with served.client.get(served.http("/metrics")) as response:
        assert 'tardis_machine_connections{port="http"} 1.0' in await response.text()


@pytest.mark.parametrize("port", [0, 1])
async def test_hundreds_that_come_at_once_wait_for_a_busy_server(start: Start, port: int) -> None:
    served = await start()
    where = ("127.0.0.1", served.port + port)
    with contextlib.ExitStack() as waiting:
        # The server runs where this does, and cannot take one before all have come. One that the
        # system has no place for tries again after a second.
        for _ in range(200):
            waiting.enter_context(socket.create_connection(where, timeout=0.5))
        await until(lambda: len(served.machine._listeners[port].connections) == 200)


@pytest.mark.parametrize("port", [0, 1])
@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
async def test_a_connection_without_a_request_is_not_kept(
    start: Start, port: int, sent: bytes
) -> None:
    served = await start(idle_timeout_s=0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port + port)
    writer.write(sent)
    async with asyncio.timeout(30):
        await reader.read(-1)
    writer.close()


async def test_a_refused_connection_may_take_its_time(start: Start) -> None:
    served = await start(max_connections=1)
    kept = socket.create_connection(("127.0.0.1", served.port))
    try:
        await until(lambda: len(served.machine._listeners[0].connections) == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await until(lambda: limited(served, "max_connections") == 1)
        writer.write(b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.05)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    finally:
        kept.close()
