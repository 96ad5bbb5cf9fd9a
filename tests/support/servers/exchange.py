"""An exchange that does what a test tells it: a WebSocket and REST server on a port of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import WSMsgType, web

PATIENCE_S = 60.0
Answer = Callable[[web.Request], web.StreamResponse | Awaitable[web.StreamResponse]]


class Peer:
    """One client's connection, as the exchange sees it."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        self.path = request.path_qs
        self.headers = request.headers
        self.pings = 0
        self.answers_pings = True
        self.close_code: int | None = None
        self.ended = asyncio.Event()
        self._request = request
        self._socket = socket
        self._received: asyncio.Queue[Any] = asyncio.Queue()

    async def received(self) -> Any:
        """Wait for the next message of the client."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._received.get()

    def heard(self) -> list[Any]:
        """Take what the client has sent so far."""
        found = []
        while not self._received.empty():
            found.append(self._received.get_nowait())
        return found

    async def send(self, message: object) -> None:
        """Send text and bytes as they are, anything else as JSON."""
        if isinstance(message, bytes):
            await self._socket.send_bytes(message)
        elif isinstance(message, str):
            await self._socket.send_str(message)
        else:
            await self._socket.send_str(msgspec.json.encode(message).decode())

    async def ping(self) -> None:
        await self._socket.ping()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await self._socket.close(code=code, message=reason.encode())

    def cut(self) -> None:
        """Cut the line."""
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    async def gone(self) -> None:
        """Wait until the client is gone."""
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()

    async def listen(self) -> None:
        """Read to the end; answers pings unless told not to."""
        async for message in self._socket:
            if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                try:
                    self._received.put_nowait(msgspec.json.decode(message.data))
                except msgspec.DecodeError:
                    self._received.put_nowait(message.data)
            elif message.type is WSMsgType.PING:
                self.pings += 1
                if self.answers_pings:
                    await self._socket.pong(message.data)
        self.close_code = self._socket.close_code
        self.ended.set()


class ScriptedExchange:
    """Accepts clients; a test takes them one after the other, and scripts REST by path."""

    def __init__(self) -> None:
        self.rest: dict[str, Answer] = {}
        self.requests: list[str] = []
        self.refuse: Callable[[web.Request], web.Response | None] = lambda _: None
        self.peers: list[Peer] = []
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self._app = web.Application()
        self._app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(self._app, shutdown_timeout=0.1)
        self._port = 0

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self._port}"

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def accepted(self) -> Peer:
        """Wait for the next client."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._accepted.get()

    def waiting(self) -> int:
        """Count clients that no test has taken."""
        return self._accepted.qsize()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            self.requests.append(request.path_qs)
            answer = self.rest.get(request.path)
            if answer is None:
                return web.json_response({"code": 404}, status=404)
            made = answer(request)
            return made if isinstance(made, web.StreamResponse) else await made
        refused = self.refuse(request)
        if refused is not None:
            return refused
        socket = web.WebSocketResponse(autoping=False, max_msg_size=0)
        await socket.prepare(request)
        peer = Peer(request, socket)
        self.peers.append(peer)
        self._accepted.put_nowait(peer)
        await peer.listen()
        return socket

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for peer in self.peers:
            peer.cut()
        await self._runner.cleanup()
