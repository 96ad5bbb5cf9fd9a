"""A running server per test, on free ports, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from tardis_machine.server.app import TardisMachine
from tests.support.servers import process


@pytest.fixture(autouse=True, scope="module")
def _each_kernel(each_kernel: str) -> None:
    """Serve with one kernel after the other."""


needs_ipv6 = pytest.mark.skipif(
    not process.has_ipv6_loopback(), reason="the system has no IPv6 loopback"
)

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


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task brings about; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - nothing to wait on: it is the server's own state
        await asyncio.sleep(0.01)


def free_ports() -> int:
    """Find two adjacent ports that are free now."""
    return process.free_ports(2)[0]


def bitmex_trades(exchange: str, minute: int) -> bytes:
    """Enough trades a minute to fill several writes, as bitmex sends them."""
    assert exchange == "bitmex"
    lines = []
    for number in range(1000):
        moment = datetime.fromtimestamp(minute * 60 + number * 0.06, UTC)
        stamp = moment.isoformat(timespec="microseconds").removesuffix("+00:00")
        trade = {
            "timestamp": f"{stamp[:23]}Z",
            "symbol": "XBTUSD",
            "side": "Buy",
            "size": 100 + number,
            "price": 61_000.5,
            "trdMatchID": f"{minute}-{number}",
        }
        inserted = {"table": "trade", "action": "insert", "data": [trade]}
        message = json.dumps(inserted, separators=(",", ":"))
        lines.append(f"{stamp}0Z {message}\n")
    return "".join(lines).encode()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start servers with the given settings; stop them after the test."""
    async with AsyncExitStack() as stack:

        async def started(**settings: Any) -> Served:
            machine = TardisMachine(**({"sample_data": True} | settings))
            await machine.start(0)
            stack.push_async_callback(machine.stop)
            client = await stack.enter_async_context(
                aiohttp.ClientSession(max_line_size=30_000, max_field_size=30_000)
            )
            return Served(machine, machine.port, client)

        yield started


@pytest.fixture
async def served(start: Start) -> Served:
    return await start()
