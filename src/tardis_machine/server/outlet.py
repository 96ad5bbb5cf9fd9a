"""What a client has yet to take: tells a slow reader, which is waited for, from one that stalls."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from tardis_machine.engine import Written
from tardis_machine.engine.choice import kernel
from tardis_machine.replays.normalizer import Framing, Pour
from tardis_machine.waiting import wake

if sys.platform == "linux":
    import fcntl
    import termios

log = logging.getLogger(__name__)

# Python's own event loop (not uvloop) forgot to tell a writer to wait after `writelines`, until
# 3.12.9 and 3.13.2 (CVE-2024-12254): a slow client would have been sent everything, by memory.
_WRITELINES_PAUSES: Final = not (
    (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
)
_LOOKS: Final = 4
"""How often a stall is looked for within the time that makes one."""


class Outlet:
    """One connection's way out.

    Bytes count as taken when the client's system has acknowledged them. What it has taken and
    not read yet nobody can see from here.
    """

    def __init__(self, request: web.BaseRequest, stall_s: float) -> None:
        self.stall_s = stall_s
        self.stalled = False
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._taken = 0
        self._bypassing = 0
        self.pour: Pour | None = None
        self.moved_at = self._idle_at = self._loop.time()

    @property
    def unsent(self) -> int:
        """Bytes written that the client's side has not taken yet."""
        transport = self._request.transport
        if transport is None:
            return 0
        return transport.get_write_buffer_size() + _in_kernel(transport)

    @property
    def written(self) -> int:
        """Bytes of the response so far; a WebSocket's control frames do not count."""
        poured = 0 if self.pour is None else self.pour.written
        return self._request.writer.output_size + self._bypassing + poured

    def write(self, *parts: bytes | bytearray) -> None:
        """Write past aiohttp, which would put parts together first: a copy of everything."""
        transport = self._require_connection()
        if _WRITELINES_PAUSES:
            transport.writelines(parts)
        else:
            transport.writelines(parts[:-1])
            transport.write(parts[-1])
        self._bypassing += sum(map(len, parts))

    def _require_connection(self) -> asyncio.Transport:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        return transport

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        await self._request.writer.drain()

    def make_pour(self, framing: Framing) -> Pour | None:
        """Let the kernel write to the socket by itself; None where it cannot."""
        module, transport = kernel().module, self._request.transport
        if module is None or transport is None or transport.get_extra_info("sslcontext"):
            return None
        try:
            self.pour = module.Pour(transport.get_extra_info("socket").fileno(), framing)
        except OSError:  # it needs a file descriptor of its own
            return None
        # What the transport has to send comes first: all of it is waited for.
        transport.set_write_buffer_limits(0)
        return self.pour

    async def pour_out(self, pour: Pour, data: Written) -> None:
        """Send what was not poured, wait for what the socket did not take, and open the pour."""
        try:
            await self._resume(pour)
            while self._is_transport_busy:
                await self.drain()
            pour.send(data)
            await self._resume(pour)
        except OSError as error:  # whatever the system calls it: nobody takes anything any more
            raise ConnectionResetError(str(error)) from error
        pour.is_open = not self._is_transport_busy

    @property
    def _is_transport_busy(self) -> bool:
        return self._require_connection().get_write_buffer_size() > 0

    def interject(self, frame: bytes) -> None:
        """Send something that belongs to no response, behind what was begun."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        self._spill(transport)
        transport.write(frame)
        if self.pour is not None:
            self.pour.is_open = False

    def _spill(self, transport: asyncio.Transport) -> None:
        """Leave it to the transport to end what the socket has taken half of."""
        if self.pour is not None and self.pour.is_held:
            rest = self.pour.spill()
            transport.write(rest)
            self._bypassing += len(rest)

    async def _resume(self, pour: Pour) -> None:
        """Have the socket take all that is held."""
        while pour.is_held:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_writer(pour.fileno(), wake, waiter)
            try:
                await waiter  # or be cancelled, when the connection is lost
            finally:
                self._loop.remove_writer(pour.fileno())
            self._require_connection()
            pour.resume()

    def settle(self) -> tuple[int, int]:
        """How many messages, and bytes of them, were poured out since this was asked."""
        return (0, 0) if self.pour is None else self.pour.settle()

    def end_pour(self) -> None:
        """Leave the socket to the transport alone: only then its closing closes it."""
        pour, transport = self.pour, self._request.transport
        if pour is None:
            return
        if transport is not None:
            if not transport.is_closing():
                self._spill(transport)
            transport.set_write_buffer_limits()
        pour.close()

    def look(self) -> bool:
        """Tell whether something is unsent, and note when the client last took any."""
        unsent = self.unsent
        taken = self.written - unsent
        if taken > self._taken:
            self._taken = taken
            self.moved_at = self._loop.time()
        # Where the system does not tell what it holds, a pour does all the same.
        waits = unsent > 0 or (self.pour is not None and self.pour.is_held)
        if not waits:
            self._idle_at = self._loop.time()
        return waits

    def cut(self, why: str) -> None:
        """End the connection at once: nobody takes what would be flushed."""
        transport = self._request.transport
        if transport is not None:
            log.info(why, extra={"remote": self._request.remote, "unsent": self.unsent})
            transport.abort()

    def cut_if_stalled(self) -> None:
        """Cut a client that has had something to take for long, and took nothing of it."""
        # There may have been nothing to take for hours: that is no stall.
        if self.look() and self._loop.time() - max(self.moved_at, self._idle_at) >= self.stall_s:
            self.stalled = True
            self.cut("client stalls")

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cut the client if it stalls in this time."""
        watching = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            self.end_pour()
            watching.cancel()
            await asyncio.wait((watching,))

    async def _watch(self) -> None:
        self.moved_at = self._loop.time()
        while True:
            await asyncio.sleep(self.stall_s / _LOOKS)
            self.cut_if_stalled()


def _in_kernel(transport: asyncio.Transport) -> int:
    """Count what the system holds for the client; 0 where it does not tell."""
    if sys.platform != "linux" or transport.is_closing():
        return 0
    socket = transport.get_extra_info("socket")
    try:
        held = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, ValueError):  # gone meanwhile
        return 0
    return int.from_bytes(held, sys.byteorder)
