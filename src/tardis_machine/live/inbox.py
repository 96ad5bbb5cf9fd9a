"""Buffer of frames between sockets and mappers, in order of arrival."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

ProcessFrame = Callable[[str, bytes], None]
"""Callback that normalizes a frame, with its local time.

The inbox calls it in the event loop's thread, in order of arrival. The event loop logs an error
that it raises; the following frames are processed in the next step.
"""

Flush = Callable[[], None]
"""Callback that sends the normalized messages.

The inbox calls it once after a step for each callback of the frames in that step.
"""

_STEP_S: Final = 0.004


class Inbox:
    """Queue of all frames of all live streams of a process.

    Readers put frames into it. The event loop processes them in steps of a few milliseconds, so
    that readers run between steps. Readers wait while the queue is over its limit: backpressure
    then keeps the exchanges' frames in the socket buffers.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._frames: deque[tuple[ProcessFrame, Flush, str, bytes]] = deque()
        self._scheduled = False
        self._space: asyncio.Future[None] | None = None

    def put(self, process: ProcessFrame, flush: Flush, local: str, frame: bytes) -> None:
        """Queue a frame for `process`, followed by `flush` at the end of that step."""
        self._frames.append((process, flush, local, frame))
        self.size += len(frame)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    async def wait_for_space(self) -> None:
        """Wait until the queue is within its limit."""
        while self.size > self.max_bytes:
            if self._space is None:
                self._space = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._space)

    async def drain(self) -> None:
        """Wait until all frames that are queued now have been processed."""
        drained = asyncio.Event()
        self.put(lambda _local, _frame: drained.set(), lambda: None, "", b"")
        await drained.wait()

    def _run(self) -> None:
        self._scheduled = False
        frames = self._frames
        until = time.monotonic() + _STEP_S
        processed = 0
        flushes: dict[Flush, None] = {}
        try:
            while frames:
                process, flush, local, frame = frames.popleft()
                processed += len(frame)
                flushes[flush] = None
                process(local, frame)
                if time.monotonic() >= until:
                    break
        finally:
            self.size -= processed
            if frames:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._run)
        for flush in flushes:
            flush()
        if self._space is not None and self.size <= self.max_bytes:
            self._space.set_result(None)
            self._space = None
