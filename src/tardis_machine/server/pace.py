"""Replays on the event loop: one small step at a time, in turn, no faster than the client reads."""

import asyncio
import concurrent.futures
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from tardis_machine.replay import Batch
from tardis_machine.waiting import settled

_SEND_BYTES: Final = 64 * 1024
_SEND_AFTER_S: Final = 0.25
# Steps take about 2 ms. A replay that is alone may take several, but holds the loop for less
# than 10 ms; with others waiting, one step is a turn.
_TURN_S: Final = 0.004


class Turns:
    """Lets one step run per round of the event loop, however many replays are under way.

    Without it eight replays would each hold the loop for a step between two looks at the
    sockets, and a health check would wait for all of them, several times.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    @property
    def contended(self) -> bool:
        """Whether others are waiting."""
        return bool(self._waiting)

    async def take(self) -> None:
        """Wait for this caller's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._scheduled = False


class Journal(Protocol):
    """Where messages are written before they are sent."""

    def append(self, data: bytes, count: int) -> bool: ...

    def append_hidden(self, data: bytes, count: int) -> bool: ...

    async def wait_for_space(self) -> None: ...


class Replay(Protocol):
    """What both kinds of replay have in common."""

    @property
    def malformed(self) -> int: ...

    @property
    def progress(self) -> float: ...

    def pending(self) -> "concurrent.futures.Future[object] | None": ...

    def close(self) -> None: ...


async def deliver(
    replay: Replay,
    batches: Iterator[Batch],
    send: Callable[[bytes, int], Awaitable[None]],
    *,
    turns: Turns,
    journal: Journal | None = None,
) -> None:
    """Run a replay to its end: journal each batch, then send it, in pieces of about 64 KB.

    What precedes an error is sent before it is raised: it has been journalled, too.
    """
    held: list[bytes] = []
    size = count = 0
    sent_at = time.monotonic()

    async def flush() -> None:
        nonlocal size, count, sent_at
        if held:
            data = held[0] if len(held) == 1 else b"".join(held)
            held.clear()
            messages, size, count = count, 0, 0
            await send(data, messages)
        sent_at = time.monotonic()

    turn_ends = 0.0
    while True:
        # What is waited for may give way to the next thing to wait for.
        while (waiting := replay.pending()) is not None and not waiting.done():
            await flush()
            await settled(waiting)
            turn_ends = 0.0
        if turns.contended or time.monotonic() >= turn_ends:
            await turns.take()
            turn_ends = time.monotonic() + _TURN_S
        try:
            batch = next(batches, None)
        except Exception:
            await flush()
            raise
        if batch is None:
            break
        if journal is not None:
            await _record(journal, batch)
        if batch.data:
            held.append(batch.data)
            size += len(batch.data)
            count += batch.count
        if size >= _SEND_BYTES or (size and time.monotonic() - sent_at > _SEND_AFTER_S):
            await flush()
    await flush()


async def _record(journal: Journal, batch: Batch) -> None:
    if batch.data:
        while not journal.append(batch.data, batch.count):
            await journal.wait_for_space()
    if batch.hidden:
        while not journal.append_hidden(batch.hidden, batch.hidden_count):
            await journal.wait_for_space()
