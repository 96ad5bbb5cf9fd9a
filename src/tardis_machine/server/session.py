"""One client's WebSocket: frames out, pings, manners, and a close that loses nothing.

The handshake and incoming frames are aiohttp's: it lets 20,000 bytes of headers and the
`Connection` header of every browser pass. Outgoing frames are built in bulk (see `frames`) and
written straight to the connection: a library call per frame would cost more than making its
message.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from aiohttp import WebSocketError, WSMsgType, hdrs, web

from tardis_machine.engine import Written
from tardis_machine.errors import TardisMachineError
from tardis_machine.server import identity
from tardis_machine.server.answers import text_of
from tardis_machine.server.frames import PING, close_frame, pong_frame, text_frames
from tardis_machine.server.limits import BusyError
from tardis_machine.server.outlet import Outlet
from tardis_machine.server.services import Services

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 512 * 1024
MAX_BACKLOG_BYTES: Final = 5 * 1024 * 1024
MAX_REASON_BYTES: Final = 123
PING_S: Final = 30.0
SILENCE_S: Final = 60.0
IDLE_S: Final = 3600.0
"""How long a client may leave a close unanswered once it has been sent everything: it may be
reading still, and all that waits is a connection."""
_LINGER_S: Final = 5.0
_LOOKS: Final = 4

OK: Final = 1000
GOING_AWAY: Final = 1001
POLICY: Final = 1008
INTERNAL: Final = 1011
TRY_LATER: Final = 1013

Receive = Callable[[str | bytes], None]


class Close(NamedTuple):
    """What a close frame says."""

    code: int
    reason: str = ""


class BackpressureError(TardisMachineError):
    """A client that does not keep up with what cannot wait for it."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        super().__init__("Too much backpressure")


_CODES: Final[dict[type[BaseException], int]] = {BackpressureError: POLICY, BusyError: TRY_LATER}


class _Socket(web.WebSocketResponse):
    """aiohttp's side of a session, which closes by itself and in its own time."""

    async def close(self, *, code: int = OK, message: bytes = b"", drain: bool = True) -> bool:
        """Leave it to the session: aiohttp would wait a fixed time for what must not be lost."""
        del code, message, drain
        return False

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing more: the session has said its goodbye."""
        del data


class Session:
    """A connection from its handshake to its end.

    An endpoint gives `run` its work: a coroutine that sends, and returns how to close. Errors
    and a server that is told to stop close as clients of this API expect. `receive`, if the
    endpoint sets it, is called with every message of the client.
    """

    def __init__(self, request: web.BaseRequest, services: Services) -> None:
        # aiohttp counts a message of exactly the limit as too big. Of the protocols that a client
        # offers it must be told one, or it goes: nothing here depends on which.
        offered = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").partition(",")[0].strip()
        self.response = _Socket(
            protocols=(offered,) if offered else (),
            autoping=False,
            autoclose=False,
            compress=False,
            max_msg_size=MAX_MESSAGE_BYTES + 1,
        )
        self.response.headers.update(identity.current().headers | services.source_headers)
        self.receive: Receive | None = None
        self.outlet = Outlet(request, services.limits.config.stall_timeout_s)
        self._services = services
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._written_then = 0
        self._closing = False

    def can_begin(self) -> bool:
        """Tell whether the request is a WebSocket handshake."""
        try:
            return self._request.method == "GET" and bool(self.response.can_prepare(self._request))
        except UnicodeEncodeError:  # aiohttp's complaint quotes a header that is no text
            return False

    async def begin(self) -> None:
        """Answer the handshake."""
        await self.response.prepare(self._request)
        self._hear()

    async def send(self, lines: Written) -> None:
        """Send a frame per line and wait until the client has taken most of them."""
        if self.outlet.pour is not None:
            await self.outlet.pour_out(self.outlet.pour, lines)
        else:
            self.write(text_frames(lines))
            await self.drain()

    def write(self, frames: bytes) -> None:
        """Send frames; `drain` waits, after as many as are to go out at once."""
        self.outlet.write(frames)

    async def drain(self) -> None:
        """Wait until the client has taken most of what was sent."""
        await self.outlet.drain()

    def push(self, lines: bytes) -> None:
        """Send a frame per line without waiting; raise if too much is unsent already."""
        transport = self._request.transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent > MAX_BACKLOG_BYTES:
            raise BackpressureError(unsent)
        self.write(text_frames(lines))

    async def run(self, route: str, work: Coroutine[Any, Any, Close]) -> None:
        """Do an endpoint's work and close, whichever side comes first."""
        working = asyncio.ensure_future(work)
        listening = asyncio.ensure_future(self._listen())
        watching = asyncio.ensure_future(self._watch())
        tasks = (working, listening, watching)
        try:
            with self._services.under_way(working):
                await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
                if not listening.done():
                    self._say(_verdict(route, working))
                    await listening
                else:
                    working.cancel()
                    await asyncio.wait((working,))
                    answer = listening.result()
                    if answer is not None:
                        self._say(answer)
                await self._hang_up()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> Close | None:
        """Read until the client goes; tell what to answer, None if it is not there any more."""
        while True:
            message = await self.response.receive()
            self._hear()
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    if self.receive is not None and not self._closing:
                        self.receive(message.data)
                case WSMsgType.PING:
                    if not self._closing:
                        self.outlet.interject(pong_frame(message.data))
                        await self._not_too_far_behind()
                case WSMsgType.CLOSE:
                    return Close(message.data)
                case WSMsgType.ERROR if isinstance(message.data, WebSocketError):
                    return Close(message.data.code, str(message.data))
                case WSMsgType.ERROR | WSMsgType.CLOSED | WSMsgType.CLOSING:
                    return None

    async def _not_too_far_behind(self) -> None:
        """Wait for a client that sends pings and takes nothing: its next ones can wait, too."""
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size() > MAX_BACKLOG_BYTES:
            with contextlib.suppress(ConnectionError):  # which the next look tells
                await self.drain()

    def _hear(self) -> None:
        self._heard_at = self._loop.time()
        self._written_then = self.outlet.written

    async def _watch(self) -> None:
        """Ping, and cut a client that is not there any more."""
        ping_at = self._loop.time() + PING_S
        while True:
            await asyncio.sleep(min(PING_S, SILENCE_S, self.outlet.stall_s) / _LOOKS)
            self.outlet.cut_if_stalled()
            now = self._loop.time()
            if now - max(self._heard_at, self.outlet.moved_at) >= self._patience():
                self.outlet.cut("client is silent")
            elif now >= ping_at and not self._closing:
                ping_at += PING_S
                self.outlet.interject(PING)

    def _patience(self) -> float:
        """How long silence may last: a pong may be queued behind what the client has to read."""
        if self._closing:
            return IDLE_S
        idle = self.outlet.written == self._written_then
        return SILENCE_S if idle else max(SILENCE_S, self.outlet.stall_s)

    def _say(self, close: Close) -> None:
        if not self._closing:
            self._closing = True
            self.outlet.interject(close_frame(close.code, fitting(close.reason)))

    async def _hang_up(self) -> None:
        """End this side and wait for the other's end, so that nothing sent is reset away.

        Returns early by being cancelled: that is what aiohttp does when the connection is lost.
        """
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        transport.write_eof()
        until = self._loop.time() + _LINGER_S
        while self._loop.time() < until:
            await asyncio.sleep(_LINGER_S / _LOOKS)
            if self.outlet.unsent:
                until = self._loop.time() + _LINGER_S
        transport.abort()


def fitting(reason: str) -> bytes:
    """Cut a reason to what a close frame holds, not inside a character."""
    return reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore").encode()


def _verdict(route: str, working: "asyncio.Future[Close]") -> Close:
    """How to close after the work is done, however it ended."""
    if working.cancelled():
        return Close(GOING_AWAY, "the server is shutting down")
    error = working.exception()
    if error is None:
        return working.result()
    if isinstance(error, ConnectionError):
        return Close(GOING_AWAY)
    known = isinstance(error, TardisMachineError)
    log.log(
        logging.WARNING if known else logging.ERROR,
        "connection failed",
        extra={"route": route, "error": str(error), **identity.current().logged},
        exc_info=None if known else error,
    )
    return Close(_CODES.get(type(error), INTERNAL), text_of(error))
