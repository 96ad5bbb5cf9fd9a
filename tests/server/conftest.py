"""A running server per test, on free ports, over real sockets."""

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tardis_machine.server.app import TardisMachine

Start = Callable[..., Awaitable["Served"]]


class Served:
    """A server under test and a client for it."""

    def __init__(self, machine: TardisMachine, port: int, client: aiohttp.ClientSession) -> None:
        self.machine = machine
        self.port = port
        self.client = client

    def http(self, path: str, options: Any = None) -> str:
        return f"http://127.0.0.1:{self.port}{path}{query(options)}"

    def ws(self, path: str, options: Any = None) -> str:
        return f"http://127.0.0.1:{self.port + 1}{path}{query(options)}"


def query(options: Any) -> str:
    if options is None:
        return ""
    text = options if isinstance(options, str) else json.dumps(options)
    return f"?options={quote(text)}"


def free_ports() -> int:
    """Find two adjacent ports that are free now."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start servers with the given settings; stop them after the test."""
    async with AsyncExitStack() as stack:

        async def started(**settings: Any) -> Served:
            machine = TardisMachine(**({"sample_data": True} | settings))
            port = free_ports()
            await machine.start(port)
            stack.push_async_callback(machine.stop)
            client = await stack.enter_async_context(
                aiohttp.ClientSession(max_line_size=30_000, max_field_size=30_000)
            )
            return Served(machine, port, client)

        yield started


@pytest.fixture
async def served(start: Start) -> Served:
    return await start()
