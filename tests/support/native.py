"""Clients of `/ws-replay`, and the recorded messages that it replays."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType

from tardis_machine.history import History
from tardis_machine.history.filters import Filter
from tardis_machine.history.recorded_lines import MESSAGE
from tardis_machine.history.sample import SAMPLE
from tardis_machine.replays.requests import parse_time
from tests.support.served import Served
from tests.support.servers.exchange import PATIENCE_S

FROM, TO = "2024-03-01T00:00", "2024-03-01T00:02"
TRADES = {"op": "subscribe", "args": ["trade:XBTUSD"]}
Socket = aiohttp.ClientWebSocketResponse[bool]


def url(served: Served, exchange: str = "bitmex", **more: str) -> str:
    """Return the address of a native replay of the sample data's first two minutes."""
    query = urlencode({"exchange": exchange, "from": FROM, "to": TO, **more})
    return f"http://127.0.0.1:{served.port + 1}/ws-replay?{query}"


async def connect(served: Served, *messages: Any, **query: str) -> Socket:
    """Connect and send these messages; other than strings, as JSON."""
    socket = await served.client.ws_connect(url(served, **query), max_msg_size=0)
    for message in messages:
        if isinstance(message, str):
            await socket.send_str(message)
        else:
            await socket.send_json(message)
    return socket


async def replayed(socket: Socket) -> tuple[list[bytes], int, str]:
    """Read to the end; return the messages, and the code and reason of the close."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            found.append(message.data.encode())
    assert message.type is WSMsgType.CLOSE
    await socket.close()
    return found, message.data, message.extra or ""


def recorded(exchange: str, *filters: Filter, first: bytes = b"", end: bytes = b"~") -> list[bytes]:
    """Return the messages as the exchange sent them, of lines from `first` up to before `end`."""
    from_, to = parse_time(FROM, "from"), parse_time(TO, "to")
    with History(source=SAMPLE) as history:
        data = b"".join(history.read(exchange, filters, from_, to))
    return [line[MESSAGE:] for line in data.splitlines() if line and first <= line < end]
