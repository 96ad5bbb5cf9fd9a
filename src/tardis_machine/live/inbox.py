"""Frames on their way from the sockets to the mappers, in the order of their arrival."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

Take = Callable[[str, bytes], None]
"""Normalizes a frame that arrived at a local time."""

Flush = Callable[[], None]
"""Hands out what was normalized."""

_STEP_S: Final = 0.004


class Inbox:
    """All frames of all streams of a process, taken one after the other.

    Readers put what has arrived and go on reading; taking happens in steps of a few milliseconds
    between them. Readers wait while too much is untaken: then exchanges' frames stay in the
    system's buffers.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._frames: deque[tuple[Take, Flush, str, bytes]] = deque()
        self._scheduled = False
        self._room: asyncio.Future[None] | None = None

    def put(self, take: Take, flush: Flush, local: str, frame: bytes) -> None:
        """Keep a frame for `take`; `flush` is called when others that came with it are taken."""
        self._frames.append((take, flush, local, frame))
        self.size += len(frame)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    async def room(self) -> None:
        """Wait until there is less than the limit."""
        while self.size > self.max_bytes:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def taken(self) -> None:
        """Wait until all that has arrived so far is taken."""
        reached = asyncio.Event()
        self.put(lambda _local, _frame: reached.set(), lambda: None, "", b"")
        await reached.wait()

    def _run(self) -> None:
        self._scheduled = False
        frames = self._frames
        until = time.monotonic() + _STEP_S
        taken = 0
        touched: dict[Flush, None] = {}
        try:
            while frames:
                take, flush, local, frame = frames.popleft()
                taken += len(frame)
                touched[flush] = None
                take(local, frame)
                if time.monotonic() >= until:
                    break
        finally:
            self.size -= taken
            if frames:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._run)
        for flush in touched:
            flush()
        if self._room is not None and self.size <= self.max_bytes:
            self._room.set_result(None)
            self._room = None
