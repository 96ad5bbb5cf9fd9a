"""WebSocket clients of many makes, each reading one connection to its end."""

import asyncio
import functools
import json
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import picows
import websocket
import websockets

from tests.clients.manners import Answer, Manners, Reader, Sent
from tests.clients.node import NODE, node_modules

_BIG = 1 << 30


async def _websockets(url: str, manners: Manners, sent: Sent) -> Answer:
    found: list[str] = []
    async with websockets.connect(url, max_size=_BIG, close_timeout=1) as socket:
        if manners.late:
            await asyncio.to_thread(sent)
            await socket.ping()
        try:
            while not manners.leaves(len(found)):
                found.append(str(await socket.recv()))
                if manners.rests(len(found)):
                    await asyncio.sleep(manners.rest_s)
        except websockets.ConnectionClosed:
            pass
    return Answer(found, socket.close_code, socket.close_reason or "")


async def _aiohttp(url: str, manners: Manners, sent: Sent) -> Answer:
    found: list[str] = []
    async with (
        aiohttp.ClientSession(max_line_size=_BIG) as client,
        client.ws_connect(url, max_msg_size=0) as socket,
    ):
        if manners.late:
            await asyncio.to_thread(sent)
            await socket.ping()
        async for message in socket:
            found.append(message.data)
            if manners.rests(len(found)):
                await asyncio.sleep(manners.rest_s)
            if manners.leaves(len(found)):
                break
        await socket.close()
    return Answer(found, socket.close_code, "")


async def _websocket_client(url: str, manners: Manners, sent: Sent) -> Answer:
    def read() -> Answer:
        found: list[str] = []
        socket = websocket.create_connection(url, timeout=60)
        if manners.late:
            sent()
            socket.ping()
        while not manners.leaves(len(found)):
            kind, frame = socket.recv_data_frame(control_frame=True)
            if kind == websocket.ABNF.OPCODE_CLOSE:
                code = int.from_bytes(frame.data[:2], "big")
                socket.shutdown()
                return Answer(found, code, frame.data[2:].decode())
            if kind == websocket.ABNF.OPCODE_TEXT:
                found.append(frame.data.decode())
            if manners.rests(len(found)):
                time.sleep(manners.rest_s)
        socket.close()
        return Answer(found, None, "")

    return await asyncio.to_thread(read)


class _Listener(picows.WSListener):
    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.found: list[str] = []
        self.closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        if self.manners.late:
            transport.underlying_transport.pause_reading()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.TEXT:
            if self.manners.leaves(len(self.found)):
                return
            self.found.append(frame.get_payload_as_utf8_text())
            if self.manners.rests(len(self.found)):
                time.sleep(self.manners.rest_s)  # as a callback that works does
            if self.manners.leaves(len(self.found)):
                transport.send_close(picows.WSCloseCode.OK)
        elif frame.msg_type == picows.WSMsgType.CLOSE:
            code = frame.get_close_code()
            self.closed.set_result((int(code), (frame.get_close_message() or b"").decode()))
            transport.send_close(code)
            transport.disconnect()


async def _picows(url: str, manners: Manners, sent: Sent) -> Answer:
    transport, listener = await picows.ws_connect(lambda: _Listener(manners), url)
    if manners.late:
        await asyncio.to_thread(sent)
        transport.send_ping()
        transport.underlying_transport.resume_reading()
    await transport.wait_disconnected()
    code, reason = listener.closed.result() if listener.closed.done() else (None, "")
    return Answer(listener.found, code, reason)


async def _node(url: str, manners: Manners, sent: Sent, *, frozen: bool = False) -> Answer:
    script = Path(__file__).with_name("read.js")
    asked = {
        "url": url,
        "restEvery": manners.rest_every,
        "restMs": manners.rest_s * 1000,
        "late": manners.late,
        "leaveAfter": manners.leave_after,
    }
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        str(script),
        json.dumps(asked),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"NODE_PATH": str(await asyncio.to_thread(node_modules))},
        limit=_BIG,
    )
    try:
        if manners.late:
            await asyncio.to_thread(sent)
            if frozen:
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1)
                process.send_signal(signal.SIGCONT)
        output, _ = await process.communicate(b"go\n")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    *found, last = output.decode().splitlines()
    end: dict[str, Any] = json.loads(last)
    return Answer(found, end["code"], end["reason"])


READERS: dict[str, Reader] = {
    "websockets": _websockets,
    "aiohttp": _aiohttp,
    "websocket-client": _websocket_client,
    "picows": _picows,
}
if NODE is not None:
    READERS["ws"] = _node
    READERS["ws, frozen for a second"] = functools.partial(_node, frozen=True)
