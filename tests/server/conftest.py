"""A running server per test, on free ports, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from tardis_machine.server.app import TardisMachine
from tests.support.served import Served, Start


@pytest.fixture(autouse=True, scope="module")
def _each_kernel(each_kernel: str) -> None:
    """Serve with one kernel after the other."""


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
