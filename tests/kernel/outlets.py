"""Response outlets connected to a client; the client returns bytes without their framing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

from tardis_machine.replays.normalizer import Framing
from tardis_machine.server.outlet import Outlet


def unchunked(body: bytes) -> bytes:
    """Return the content of chunks, each of which has to be whole."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        assert length > 0
        parts.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        body = rest[length + 2 :]
    return b"".join(parts)


def unframed(sent: bytes) -> bytes:
    """Return the messages of whole frames, a line each."""
    lines = []
    at = 0
    while at < len(sent):
        assert sent[at] == 0x81
        size, start = sent[at + 1], at + 2
        if size >= 126:
            start = at + (4 if size == 126 else 10)
            size = int.from_bytes(sent[at + 2 : start], "big")
        at = start + size
        assert at <= len(sent)
        lines.append(sent[start:at])
    return b"".join(line + b"\n" for line in lines)


UNFRAMED: dict[Framing, Callable[[bytes], bytes]] = {
    "nothing": bytes,
    "chunks": unchunked,
    "frames": unframed,
}
"""The function that takes each framing off."""


@contextlib.asynccontextmanager
async def connected(before: bytes = b"") -> AsyncIterator[tuple[Outlet, asyncio.StreamReader]]:
    """Yield an outlet that has these bytes still to send, and its client's end."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
    server = await asyncio.start_server(
        lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0
    )
    async with server:
        address = server.sockets[0].getsockname()
        reader, theirs = await asyncio.open_connection(*address, limit=1 << 16)
        ours = await accepted
        ours.write(before)
        writer = SimpleNamespace(output_size=0, drain=ours.drain)
        request = SimpleNamespace(transport=ours.transport, writer=writer)
        yield Outlet(cast("Any", request), 300), reader
        theirs.close()
