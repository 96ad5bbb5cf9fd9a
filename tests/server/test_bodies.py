"""Requests with a body: answered and closed, their body unread."""

import asyncio
import time
import zlib

import pytest

from tests.server.replays import OPTIONS
from tests.support.requests import query
from tests.support.served import Served, Start

REPLAY = f"/replay-normalized{query(OPTIONS)}"
HEALTH = b"GET /health-check HTTP/1.1\r\nHost: localhost\r\n\r\n"
MANY_CHUNKS = b"1\r\nx\r\n" * 500_000


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


async def said(served: Served, port: int, sent: bytes) -> bytes:
    """What the server says until it closes; the client says no more once an answer begins."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port + port)
    writer.write(sent)
    try:
        async with asyncio.timeout(60):
            begin = await reader.readuntil(b"\r\n\r\n")
            writer.write_eof()
            return begin + await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("port", [0, 1])
@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (("Content-Length: 2",), b"{}" + HEALTH),
        (("Content-Length: 2",), b""),
        (("Transfer-Encoding: chunked",), b"2\r\n{}\r\n0\r\n\r\n" + HEALTH),
        (("Transfer-Encoding: chunked",), b"0\r\n\r\n" + HEALTH),
        (("Transfer-Encoding: chunked",), b""),
        (("Content-Length: 1000000", "Expect: 100-continue"), b""),
        (("Content-Length: 2", "Content-Encoding: gzip"), b"no" + HEALTH),
    ],
)
async def test_request_with_body_is_refused_and_closed(
    served: Served, port: int, lines: tuple[str, ...], body: bytes
) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = await said(served, port, head(method, REPLAY, *lines) + body)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"\r\nConnection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1") == 1


async def test_handshake_with_body_is_refused(served: Served) -> None:
    lines = (
        *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Content-Length: 2"),
    )
    answer = await said(served, 1, head("GET", "/ws-replay-normalized", *lines) + b"{}")
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("port", [0, 1])
async def test_token_is_asked_for_before_body(start: Start, port: int) -> None:
    served = await start(auth_token="t")
    answer = await said(served, port, head("POST", REPLAY, "Content-Length: 2") + b"{}" + HEALTH)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("port", [0, 1])
async def test_client_that_does_not_close_is_closed(served: Served, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port + port)
    writer.write(head("GET", REPLAY, "Content-Length: 2"))
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
    writer.close()


@pytest.mark.parametrize("line", ["Content-Length: 0", "Expect: 100-continue"])
async def test_request_without_body_keeps_connection(served: Served, line: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(head("GET", "/health-check", line) * 2)
    for _ in range(2):
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"}")
        await reader.readuntil(b"}")
    writer.close()


@pytest.mark.parametrize("port", [0, 1])
@pytest.mark.parametrize("kind", ["deflate", "chunks"])
async def test_large_body_is_not_read(start: Start, port: int, kind: str) -> None:
    served = await start(auth_token="t")
    lines: tuple[str, ...]
    if kind == "deflate":
        packer = zlib.compressobj(9)
        begin = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
        block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
        body = begin + block * (4_000_000 // len(block))
        lines = ("Content-Encoding: deflate", f"Content-Length: {len(body)}")
    else:
        body, lines = MANY_CHUNKS, ("Transfer-Encoding: chunked",)
    before = time.process_time()
    answer = await said(served, port, head("POST", REPLAY, *lines) + body)
    assert answer.startswith(b"HTTP/1.1 401 ")
    # Reading it takes several seconds of the processor.
    assert time.process_time() - before < 2
