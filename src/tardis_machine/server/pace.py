"""Replays on the event loop: one small step at a time, in turn, no faster than the client reads."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tardis_machine.engine import Written
from tardis_machine.history.lag import LagWait
from tardis_machine.replays.merger import Chunk
from tardis_machine.replays.normalizer import Pour
from tardis_machine.waiting import until_done

if TYPE_CHECKING:
    from tardis_machine.journal import Ticket

_SEND_BYTES: Final = 64 * 1024
_ENTRY_BYTES: Final = 2 * _SEND_BYTES
# A batch that is journalled, and one that is made meanwhile.
_HELD_BYTES: Final = 8 * _ENTRY_BYTES
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
    """Where messages are written before they are sent: as soon as the ticket is done."""

    def append(self, data: Written, count: int) -> "Ticket": ...

    def append_hidden(self, data: bytes, count: int) -> "Ticket": ...

    def append_last(self, data: bytes, count: int) -> None: ...

    def admit(self, pour: Pour) -> bool:
        """Let a pour write messages down by itself; False where that cannot be."""
        ...

    def cancel(self) -> None:
        """Write nothing more, and take back what waits: the client has gone."""
        ...


def poured_by(pour: Pour | None, journal: Journal | None) -> Pour | None:
    """Tell what messages may be poured by as they are made: they are written down before."""
    if pour is None or journal is None or journal.admit(pour):
        return pour
    return None


class Replay(Protocol):
    """What both kinds of replay have in common."""

    @property
    def malformed(self) -> int: ...

    def due_in(self) -> float: ...

    def pending(self) -> "concurrent.futures.Future[object] | None": ...

    def close(self) -> None: ...


async def deliver(
    replay: Replay,
    batches: Iterator[Chunk],
    send: Callable[[Written, int], Awaitable[None]],
    *,
    turns: Turns,
    journal: Journal | None = None,
    pour: Pour | None = None,
) -> None:
    """Run a replay to its end: journal each batch, then send it, in pieces of about 64 KB.

    What precedes an error is sent before it is raised: it has been journalled, too. A replay that
    is paced, or waits for minutes that are yet to come, begins its answer before there is any.

    What an open `pour` has sent, and journalled before, is not in the batches any more.
    """
    held = _Held(send, journal)
    turn_ends = settles_at = 0.0
    while True:
        while (seconds := replay.due_in()) > 0:
            await held.flush(begins=True)
            await asyncio.sleep(seconds)
            turn_ends = 0.0
        # What is waited for may give way to the next thing to wait for.
        while (waiting := replay.pending()) is not None and not waiting.done():
            await held.flush(begins=isinstance(waiting, LagWait))
            await until_done(waiting)
            turn_ends = 0.0
        if turns.contended or time.monotonic() >= turn_ends:
            await turns.take()
            turn_ends = time.monotonic() + _TURN_S
        try:
            batch = next(batches, None)
        except Exception:
            await held.flush()
            raise
        if batch is None:
            break
        if pour is not None and pour.is_open and not batch.data and not batch.hidden:
            # What it holds is waited for; else somebody has to be told, now and then.
            if pour.is_held or time.monotonic() >= settles_at:
                await send(b"", 0)
                settles_at = time.monotonic() + _SEND_AFTER_S
            continue
        held.add(batch)
        del batch  # its memory is free for the next as soon as it is sent
        if held.size >= _HELD_BYTES:
            await held.flush()
        else:
            await held.advance()
        if pour is not None and held.size:
            pour.is_open = False  # nothing may overtake what is held
    await held.flush()


class _Piece(NamedTuple):
    """Something to be sent once it is written; what the client must not see has no data."""

    data: Written
    messages: int
    size: int
    written: "Ticket | None"


class _Held:
    """What was made and is not sent yet, in order.

    The journal writes while the next batches are made, so that neither waits for the other; when
    it falls behind, or there is nothing else to do, it is waited for. It is given several batches
    at once: handing over to its thread costs as much as writing 64 KB.
    """

    def __init__(
        self, send: Callable[[Written, int], Awaitable[None]], journal: Journal | None
    ) -> None:
        self.size = 0
        self._send = send
        self._journal = journal
        self._made: list[Written] = []
        self._made_messages = self._made_bytes = 0
        self._pieces: deque[_Piece] = deque()
        self._sent_at = time.monotonic()
        self._begun = False

    def add(self, batch: Chunk) -> None:
        """Hold a batch."""
        if batch.data:
            self._made.append(batch.data)
            self._made_messages += batch.count
            self._made_bytes += len(batch.data)
            self.size += len(batch.data)
        if batch.hidden and self._journal is not None:
            self._hand_over()
            written = self._journal.append_hidden(batch.hidden, batch.hidden_count)
            self.size += len(batch.hidden)
            self._pieces.append(_Piece(b"", 0, len(batch.hidden), written))

    async def advance(self) -> None:
        """Have journalled, and send, what is enough for that or has waited long enough."""
        late = time.monotonic() - self._sent_at > _SEND_AFTER_S
        if late or self._made_bytes >= (_SEND_BYTES if self._journal is None else _ENTRY_BYTES):
            self._hand_over()
        await self.send_written()

    async def flush(self, *, begins: bool = False) -> None:
        """Send everything, as soon as it is written; begin the answer even if that is nothing."""
        self._hand_over()
        while self._pieces:
            # Each as soon as it is written: a client that leaves meanwhile has what was published.
            first = self._pieces[0].written
            if first is not None:
                with contextlib.suppress(Exception):  # raised below
                    await first
            await self.send_written()
        if begins and not self._begun:
            await self._out(b"", 0)
        self._sent_at = time.monotonic()

    def _hand_over(self) -> None:
        """Have journalled what was made, if that is to be."""
        if self._made:
            data = self._made[0] if len(self._made) == 1 else b"".join(self._made)
            count, self._made_messages = self._made_messages, 0
            self._made.clear()
            self._made_bytes = 0
            written = None if self._journal is None else self._journal.append(data, count)
            self._pieces.append(_Piece(data, count, len(data), written))

    async def send_written(self) -> None:
        """Send what may be sent by now; raises what kept the next from being written."""
        found: list[Written] = []
        count = 0
        failure = None
        while self._pieces and failure is None:
            data, messages, size, written = self._pieces[0]
            if written is not None:
                if not written.done:
                    break
                try:
                    await written
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = error
                    continue
            self._pieces.popleft()
            self.size -= size
            count += messages
            if data:
                found.append(data)
        if found:
            self._sent_at = time.monotonic()
            await self._out(found[0] if len(found) == 1 else b"".join(found), count)
        if failure is not None:
            raise failure

    async def _out(self, data: Written, count: int) -> None:
        self._begun = True
        await self._send(data, count)
