"""A server in the test's own process, and a client for it."""

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tardis_machine.server.app import TardisMachine
from tests.support.requests import query

Start = Callable[..., Awaitable["Served"]]


class Served:
    """A running server and a client session to reach it."""

    def __init__(self, machine: TardisMachine, port: int, client: aiohttp.ClientSession) -> None:
        self.machine = machine
        self.port = port
        self.client = client

    def http(self, path: str, options: Any = None) -> str:
        return f"http://127.0.0.1:{self.port}{path}{query(options)}"

    def ws(self, path: str, options: Any = None) -> str:
        return f"http://127.0.0.1:{self.port + 1}{path}{query(options)}"
