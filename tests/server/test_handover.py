"""Connections that belong to another process of a cluster: given to it whole."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tardis_machine.server.handover import Handover

NAME = "together"


@asynccontextmanager
async def serving(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> AsyncIterator[int]:
    """Give the port of a server."""
    runner = web.ServerRunner(web.Server(handle, handler_cancellation=True))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_what_a_client_says_next_is_for_the_process_that_takes_its_connection(
    tmp_path: Path,
) -> None:
    """Which may be quicker to answer it than the one that gives is to let go."""
    handover = Handover(tmp_path)
    owner = tmp_path / "other"
    handover._claim(NAME).symlink_to(owner)

    def take(listening: socket.socket) -> bytes:
        giving, _ = listening.accept()
        with giving:
            length, [given], _, _ = socket.recv_fds(giving, 4, 1)
            giving.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            with socket.socket(fileno=given) as client:
                client.settimeout(10)
                client.sendall(b"welcome")
                time.sleep(0.2)
                said = client.recv(100)
            giving.sendall(b"\x06")
        return said

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert await handover.give(request, NAME)
        await asyncio.Event().wait()
        raise AssertionError

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(owner))
        listening.listen()
        taking = asyncio.create_task(asyncio.to_thread(take, listening))
        async with serving(handle) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            assert await reader.readexactly(7) == b"welcome"
            writer.write(b"subscribe")
            assert await taking == b"subscribe"
            writer.close()


async def test_no_other_connection_is_given_when_a_request_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handover = Handover(tmp_path)
    owner = tmp_path / "other"
    handover._claim(NAME).symlink_to(owner)
    ended = threading.Event()
    send = socket.send_fds

    def send_late(giving: socket.socket, data: list[bytes], given: list[int]) -> None:
        assert ended.wait(10)
        send(giving, data, given)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        giving = asyncio.create_task(handover.give(request, NAME))
        await asyncio.sleep(0.1)
        giving.cancel()
        await asyncio.wait((giving,))
        assert giving.cancelled()
        return web.Response()

    monkeypatch.setattr(socket, "send_fds", send_late)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(owner))
        listening.listen()
        async with (
            serving(handle) as port,
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/") as response,
        ):
            assert response.status == 200
            with socket.socket():  # which gets the first number that is free
                ended.set()
                giving, _ = await asyncio.to_thread(listening.accept)
                with giving:
                    _, [given], _, _ = socket.recv_fds(giving, 4, 1)
            with socket.socket(fileno=given) as found:
                assert found.getsockname() == ("127.0.0.1", port)
                assert found.getpeername()[1] != port


async def test_a_connection_that_nobody_takes_goes_on_here(tmp_path: Path) -> None:
    handover = Handover(tmp_path)
    handover._claim(NAME).symlink_to(tmp_path / "gone")

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert not await handover.give(request, NAME)
        response = web.WebSocketResponse()
        await response.prepare(request)
        await response.send_str(await response.receive_str())
        return response

    async with (
        serving(handle) as port,
        aiohttp.ClientSession() as client,
        client.ws_connect(f"http://127.0.0.1:{port}/") as connection,
    ):
        await connection.send_str("subscribe")
        assert await connection.receive_str(timeout=10) == "subscribe"
