"""HTTP clients of many makes, each reading one body to its end."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable

import aiohttp
import httpx
import requests

from tests.clients.manners import Manners
from tests.clients.node import NODE

HttpReader = Callable[[str, Manners], Awaitable[bytes]]

_PIECE = 1 << 14


class CutError(Exception):
    """The client saw that the body is not whole; `received` is what it got of it."""

    def __init__(self, received: bytes) -> None:
        self.received = received
        super().__init__(f"cut after {len(received)} bytes")


async def _aiohttp(url: str, manners: Manners) -> bytes:
    received = bytearray()
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        response.raise_for_status()
        try:
            async for piece in response.content.iter_chunked(_PIECE):
                received += piece
                if manners.rest_every:
                    await asyncio.sleep(manners.rest_s)
                if manners.leaves(len(received)):
                    break
        except aiohttp.ClientPayloadError:
            raise CutError(bytes(received)) from None
    return bytes(received)


async def _httpx(url: str, manners: Manners) -> bytes:
    received = bytearray()
    async with (
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        try:
            async for piece in response.aiter_bytes(_PIECE):
                received += piece
                if manners.rest_every:
                    await asyncio.sleep(manners.rest_s)
                if manners.leaves(len(received)):
                    break
        except httpx.RemoteProtocolError:
            raise CutError(bytes(received)) from None
    return bytes(received)


async def _requests(url: str, manners: Manners) -> bytes:
    def read() -> bytes:
        received = bytearray()
        with requests.get(url, stream=True, timeout=60) as response:
            response.raise_for_status()
            try:
                for piece in response.iter_content(_PIECE):
                    received.extend(piece)
                    if manners.rest_every:
                        time.sleep(manners.rest_s)
                    if manners.leaves(len(received)):
                        break
            except requests.exceptions.ChunkedEncodingError:
                raise CutError(bytes(received)) from None
        return bytes(received)

    return await asyncio.to_thread(read)


async def _curl(url: str, manners: Manners) -> bytes:
    rate = ["--limit-rate", "2M"] if manners.rest_every else []
    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--show-error", "--fail", "--globoff", *rate, url),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        if manners.leave_after:
            return await process.stdout.readexactly(manners.leave_after)
        received = await process.stdout.read()
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            # a full pipe that nobody reads keeps asyncio from seeing the end
            await process.communicate()
    if code == _CURL_PARTIAL:
        raise CutError(received)
    assert code == 0
    return received


_CURL_PARTIAL = 18

_FETCH = """
const [url, restMs, leaveAfter] = process.argv.slice(1);
const leaving = new AbortController();
fetch(url, { signal: leaving.signal }).then(async (response) => {
  if (!response.ok) process.exit(22);
  let received = 0;
  for await (const piece of response.body) {
    process.stdout.write(piece);
    received += piece.length;
    if (+leaveAfter && received >= +leaveAfter) return leaving.abort();
    if (+restMs) await new Promise((done) => setTimeout(done, +restMs));
  }
}).catch(() => { process.exitCode = leaving.signal.aborted ? 0 : 18; });
"""


async def _fetch(url: str, manners: Manners) -> bytes:
    rest_ms = manners.rest_s * 1000 if manners.rest_every else 0
    process = await asyncio.create_subprocess_exec(
        *(str(NODE), "-e", _FETCH, url, str(rest_ms), str(manners.leave_after)),
        stdout=subprocess.PIPE,
    )
    received, _ = await process.communicate()
    if process.returncode == _CURL_PARTIAL:
        raise CutError(received)
    assert process.returncode == 0
    return received


HTTP_READERS: dict[str, HttpReader] = {
    "aiohttp": _aiohttp,
    "httpx": _httpx,
    "requests": _requests,
}
if shutil.which("curl"):
    HTTP_READERS["curl"] = _curl
if NODE is not None:
    HTTP_READERS["node's fetch"] = _fetch
