"""The WebSocket port: replays as one text frame per message.

The handshake and incoming frames are aiohttp's: it lets 20,000 bytes of headers and the
`Connection` header of every browser pass. Outgoing frames are built in bulk (see `frames`) and
written straight to the connection: a library call per frame would cost more than making its
message.
"""

import asyncio
import logging
from typing import Final

from aiohttp import WSMsgType, web

from tardis_machine.errors import TardisMachineError
from tardis_machine.options import parse_replay_normalized
from tardis_machine.replay import replay_normalized_many
from tardis_machine.server.access import failure
from tardis_machine.server.frames import text_frames
from tardis_machine.server.services import Services, text_of

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 512 * 1024
MAX_REASON_BYTES: Final = 123
PING_S: Final = 30.0
SILENCE_S: Final = 60.0
_CLOSE_WAIT_S: Final = 5.0
_LINGER_S: Final = 2.0

_OK: Final = 1000
_GOING_AWAY: Final = 1001
_POLICY: Final = 1008
_INTERNAL: Final = 1011

_REPLAY_NORMALIZED: Final = "/ws-replay-normalized"
_LATER: Final = ("/ws-replay", "/ws-stream-normalized")


class WebSocketRoutes:
    """Answers the connections of the WebSocket port."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take one connection to its end."""
        refused = self._services.gate.refusal(request)
        if refused is not None:
            return refused
        # aiohttp counts a message of exactly the limit as too big.
        socket = _Socket(
            timeout=_CLOSE_WAIT_S,
            autoping=False,
            compress=False,
            max_msg_size=MAX_MESSAGE_BYTES + 1,
        )
        if request.method != "GET" or not socket.can_prepare(request):
            answer = failure(426, "expected a WebSocket handshake; HTTP is on the port before")
            answer.headers["Upgrade"] = "websocket"
            answer.headers["Connection"] = "Upgrade"
            return answer
        await socket.prepare(request)
        path = request.path.lower()
        if path != "/":
            path = path.removesuffix("/")
        if path in _LATER:
            await _close(socket, _INTERNAL, f"{path} is not available yet")
        elif path == _REPLAY_NORMALIZED:
            await self._replay_normalized(request, socket)
        else:
            await _close(socket, _POLICY, f"unknown path, expected {_REPLAY_NORMALIZED}")
        return socket

    async def _replay_normalized(
        self, request: web.BaseRequest, socket: web.WebSocketResponse
    ) -> None:
        session = _Session(socket, request)
        replaying = asyncio.ensure_future(self._deliver(request, session))
        listening = asyncio.ensure_future(session.listen())
        pinging = asyncio.ensure_future(session.keep_alive())
        tasks = (replaying, listening, pinging)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and listening.result() is WSMsgType.ERROR:
                replaying.cancel()
                await asyncio.sleep(_LINGER_S)  # ends at once when the client has gone
            elif replaying.cancelled():
                await _close(socket, _GOING_AWAY, "the server is shutting down")
            elif replaying.done():
                await _close(socket, *replaying.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, request: web.BaseRequest, session: "_Session") -> tuple[int, str]:
        """Replay to the end; give the code and reason to close with."""
        services = self._services
        strict = services.config.strict
        try:
            options = parse_replay_normalized(request.query.get("options"), strict=strict)
            journal = services.journal(
                options, flow="ws-replay", transport="ws", route=_REPLAY_NORMALIZED
            )
            replay = replay_normalized_many(options, history=services.history, strict=strict)
            await services.run(_REPLAY_NORMALIZED, replay, replay.batches(), session.send, journal)
        except ConnectionError:
            return _GOING_AWAY, ""
        except TardisMachineError as error:
            log.warning("replay failed", extra={"route": _REPLAY_NORMALIZED, "error": str(error)})
            return _INTERNAL, str(error)
        except Exception as error:
            log.exception("replay failed", extra={"route": _REPLAY_NORMALIZED})
            return _INTERNAL, text_of(error)
        return _OK, "WS replay-normalized finished"


class _Socket(web.WebSocketResponse):
    """Ends its own side first: a client that is still sending gets to read why it is cut.

    Closed with input unread, the connection would be reset and the close frame lost with it.
    """

    def _close_transport(self) -> None:
        transport = None if self._req is None else self._req.transport
        if transport is not None and not transport.is_closing():
            transport.write_eof()


class _Session:
    """One connection: frames out, pongs in."""

    def __init__(self, socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        self._socket = socket
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()

    async def send(self, data: bytes) -> None:
        """Send a frame per line and wait until the client has taken most of them."""
        writer = self._request.writer
        await writer.write(text_frames(data))
        await writer.drain()
        # A client that takes data is alive, though its pong may be queued behind its reading.
        self._heard = self._loop.time()

    async def listen(self) -> WSMsgType:
        """Read until the client goes, and tell how; what it says is ignored."""
        while True:
            message = await self._socket.receive()
            self._heard = self._loop.time()
            if message.type is WSMsgType.PING:
                await self._socket.pong(message.data)
            elif message.type in {
                WSMsgType.CLOSE,
                WSMsgType.CLOSING,
                WSMsgType.CLOSED,
                WSMsgType.ERROR,
            }:
                return message.type

    async def keep_alive(self) -> None:
        """Ping; return when nothing was heard for too long."""
        while True:
            await asyncio.sleep(PING_S)
            if self._loop.time() - self._heard >= SILENCE_S:
                log.info("client is silent", extra={"remote": self._request.remote})
                if self._request.transport is not None:
                    self._request.transport.abort()
                return
            await self._socket.ping()


async def _close(socket: web.WebSocketResponse, code: int, reason: str) -> None:
    await socket.close(code=code, message=_fitting(reason))


def _fitting(reason: str) -> bytes:
    """Cut a reason to what a close frame holds, not inside a character."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
