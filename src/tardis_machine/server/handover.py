"""Connections of a cluster that belong together, brought together in one process.

Any process may accept a connection. The first one of a name claims the name for its process, by a
link in a directory that all of them share; those that come to others are given to it whole: their
sockets, over a Unix socket, with the request that was read from them.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

log = logging.getLogger(__name__)

_SOCKET: Final = ".give"
_CLAIM: Final = ".claim"
_PATIENCE_S: Final = 5.0
_TAKEN: Final = b"\x06"
_LENGTH: Final = 4
_MAX_HEAD: Final = 64 * 1024


class Handover:
    """Gives connections to the processes where they belong, and takes those that belong here."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = directory / f"{os.getpid()}{_SOCKET}"
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    def start(self, listener: Callable[[], web.RequestHandler]) -> None:
        """Take connections from the other processes from now on."""
        self._own.unlink(missing_ok=True)
        self._listening = made = socket.socket(socket.AF_UNIX)
        made.bind(str(self._own))
        made.listen()
        made.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(made, listener))

    async def stop(self) -> None:
        """Take no more."""
        self._own.unlink(missing_ok=True)
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

    async def give(self, request: web.BaseRequest, name: str) -> bool:
        """Give a connection to the process that has claimed a name; False if that is this one."""
        transport = request.transport
        assert transport is not None
        while (owner := self._owner(name)) != self._own:
            transport.pause_reading()  # what the client says next is for the other process
            given = os.dup(transport.get_extra_info("socket").fileno())
            sending = asyncio.to_thread(_send, owner, _head(request), given)
            try:
                # To the end: it closes what is given, whose number may be another's afterwards.
                await asyncio.shield(sending)
            except OSError as error:
                log.info("process is gone", extra={"owner": owner.name, "error": str(error)})
                self._claim(name).unlink(missing_ok=True)
                transport.resume_reading()
            else:
                transport.abort()  # this side only: the connection lives on over there
                return True
        return False

    def release(self, name: str) -> None:
        """Let another process have a name; what was given here stays."""
        claim = self._claim(name)
        with contextlib.suppress(OSError):
            if claim.readlink() == self._own:
                claim.unlink()

    def _owner(self, name: str) -> Path:
        claim = self._claim(name)
        while True:
            try:
                claim.symlink_to(self._own)
            except FileExistsError:
                with contextlib.suppress(FileNotFoundError):  # released meanwhile
                    return claim.readlink()
            else:
                return self._own

    def _claim(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self._directory / f"{digest}{_CLAIM}"

    async def _accept(
        self, listening: socket.socket, listener: Callable[[], web.RequestHandler]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            giving, _ = await loop.sock_accept(listening)
            try:
                with giving:
                    head, given = await asyncio.to_thread(_receive, giving)
                    await self._adopt(head, given, listener)
            except (OSError, ValueError) as error:
                log.warning("connection could not be taken over", extra={"error": str(error)})

    async def _adopt(
        self, head: bytes, given: int, listener: Callable[[], web.RequestHandler]
    ) -> None:
        sock = socket.socket(fileno=given)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, protocol = await loop.connect_accepted_socket(listener, sock)
        protocol.data_received(head)


def _head(request: web.BaseRequest) -> bytes:
    """Write the request as it came: a handshake has no body."""
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.raw_path.encode())]
    lines += [b"%b: %b" % (name, value) for name, value in request.raw_headers]
    return b"\r\n".join((*lines, b"", b""))


def _send(owner: Path, head: bytes, given: int) -> None:
    """Give a connection away; it is closed here in any case."""
    try:
        with socket.socket(socket.AF_UNIX) as giving:
            giving.settimeout(_PATIENCE_S)
            giving.connect(str(owner))
            length = len(head).to_bytes(_LENGTH, "big")
            socket.send_fds(giving, [length], [given])
            giving.sendall(head)
            if giving.recv(1) != _TAKEN:
                raise ConnectionError("not taken")
    finally:
        os.close(given)


def _receive(giving: socket.socket) -> tuple[bytes, int]:
    giving.settimeout(_PATIENCE_S)
    length, given, _, _ = socket.recv_fds(giving, _LENGTH, 1)
    with contextlib.ExitStack() as unless_taken:
        for each in given:
            unless_taken.callback(os.close, each)
        if len(given) != 1:
            raise ValueError("no connection came with it")
        size = min(int.from_bytes(length, "big"), _MAX_HEAD)
        head = b""
        while len(head) < size:
            part = giving.recv(size - len(head))
            if not part:
                raise ValueError("the request is cut short")
            head += part
        giving.sendall(_TAKEN)
        unless_taken.pop_all()
    return head, given[0]
