"""What is too much: each limit refuses, names itself and is counted."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import WSMsgType

from tardis_machine.server.app import TardisMachine
from tests.server.replays import OPTIONS, frames
from tests.support.served import Served, Start
from tests.support.waiting import until

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


@contextlib.asynccontextmanager
async def idle(served: Served, port: int, count: int) -> AsyncIterator[list[socket.socket]]:
    """Connections on which nothing is asked."""
    listener = served.machine._listeners[port]
    before = len(listener.connections)
    with contextlib.ExitStack() as opened:
        where = ("127.0.0.1", served.port + port)
        made = [opened.enter_context(socket.create_connection(where)) for _ in range(count)]
        await until(lambda: len(listener.connections) == before + count)
        yield made


@pytest.mark.parametrize("path", ["/", "/replay-normalized", "/replay", "/nope", "/metrics/more"])
async def test_connection_beyond_limit_is_told_so(start: Start, path: str) -> None:
    served = await start(max_connections=3)
    listener = served.machine._listeners[0]
    async with idle(served, 0, 3):
        async with served.client.get(served.http(path, OPTIONS)) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "5"
            assert response.headers["Connection"] == "close"
            assert "3 connections" in (await response.json())["message"]
        assert limited(served, "max_connections") == 1
    await until(lambda: not listener.connections)
    async with served.client.get(served.http("/metrics")) as response:
        assert 'tardis_machine_connections{port="http"} 1.0' in await response.text()


@pytest.mark.parametrize("path", ["/health-check", "/health-check/", "/metrics"])
async def test_health_and_metrics_are_answered_beyond_connection_limit(
    start: Start, path: str
) -> None:
    served = await start(max_connections=1, auth_token="t")
    async with idle(served, 0, 1):
        for _ in range(30):
            headers = {"Authorization": "Bearer t"}
            async with served.client.get(served.http(path), headers=headers) as response:
                assert response.status == 200
                assert response.headers["Connection"] == "close"
                await response.read()
        async with served.client.get(served.http("/metrics")) as response:
            assert response.status == 401


async def test_spare_connections_are_refused_after_twenty(start: Start) -> None:
    served = await start(max_connections=1, idle_timeout_s=60)
    async with idle(served, 0, 1), idle(served, 0, 20):
        async with served.client.get(served.http("/health-check")) as response:
            assert response.status == 503
        # Those that ask nothing are closed soon, and others take their place.
        listener = served.machine._listeners[0]
        await until(lambda: len(listener.connections) == 1)
        async with served.client.get(served.http("/health-check")) as response:
            assert response.status == 200


async def test_refused_connections_leave_room_for_health_checks(start: Start) -> None:
    served = await start(max_connections=1)
    async with idle(served, 0, 1), idle(served, 0, 20) as spare, idle(served, 0, 50):
        spare[0].close()
        listener = served.machine._listeners[0]
        await until(lambda: len(listener._spare & listener._connections.keys()) < 20)
        async with served.client.get(served.http("/health-check")) as response:
            assert response.status == 200


async def test_flood_of_connections_is_closed_without_answer(start: Start) -> None:
    served = await start(max_connections=1)
    async with idle(served, 1, 1), idle(served, 1, 100):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port + 1)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_websockets_have_no_spare_connections(start: Start) -> None:
    served = await start(max_connections=1)
    async with idle(served, 1, 1):
        for path in ("/health-check", "/ws-replay-normalized"):
            async with served.client.get(served.ws(path)) as response:
                assert response.status == 503


def test_limits_beyond_open_files_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    with caplog.at_level(logging.WARNING):
        TardisMachine(max_connections=100)
        assert "open files" not in caplog.text
        TardisMachine(max_connections=1000)
    assert "the limits need 3540 open files, beyond the process's limit of 1024" in caplog.text
    assert "or lower --max-connections" in caplog.text


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
    kept = socket.create_connection(("127.0.0.1", served.port + 1))
    try:
        await until(lambda: len(served.machine._listeners[1].connections) == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port + 1)
        await until(lambda: limited(served, "max_connections") == 1)
        writer.write(b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.05)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    finally:
        kept.close()
