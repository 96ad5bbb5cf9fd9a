"""A thread that writes the journal, so that nobody else waits for the disk."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import Enum, StrEnum, auto
from functools import partial
from typing import Any, Final, NamedTuple

from tardis_machine.errors import TardisMachineError
from tardis_machine.journal.entry import Buffer
from tardis_machine.journal.ring import LOW
from tardis_machine.journal.writer import LogGoneError, Writer
from tardis_machine.log import Throttle
from tardis_machine.waiting import wake

_log = logging.getLogger(__name__)

_SHORTEST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.25
_LOOK_EVERY_S: Final = 1.0
_CLOSE_WAIT_S: Final = 5.0
_MOST_QUEUED_BYTES: Final = 64 << 20
_SHORT_AFTER_S: Final = 1.0
_SHORT_UNTIL_S: Final = 3.0
"""How long nothing must have waited before a shortage of room counts as over."""
_PATIENCE_S: Final = 1.0
"""How long a message of a flow that never waits is held for a disk that hangs."""
_MOST_JOINED_BYTES: Final = 64 << 10


class WhenFull(StrEnum):
    """What an entry does that does not fit."""

    PACE = "pace"
    DROP = "drop"
    ERROR = "error"


class JournalFullError(TardisMachineError):
    """The journal has no room and the policy says that this ends the response."""

    retriable = True

    def __init__(self, used: int, limit: int) -> None:
        self.used = used
        self.limit = limit
        super().__init__(
            f"the journal is full ({used} of {limit} bytes): a bus is behind or the disk is full; "
            "see --journal-max-bytes and --journal-when-full"
        )


class JournalClosedError(TardisMachineError):
    """The journal was closed before there was room for an entry."""


class FlowCancelledError(TardisMachineError):
    """The response of an entry ended before the entry was written."""


class Ticket:
    """A promise that an entry is written; awaiting it raises what kept it from being so.

    `done` may be looked at from any thread. Most are done before anyone waits, and then nobody
    has to be woken.
    """

    __slots__ = ("_calls", "_error", "_loop", "done", "resolved")

    def __init__(self) -> None:
        self.done = False
        self.resolved = False
        """Whether the entry has left the queue; one that was released may still be written."""
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: list[Callable[[], None]] = []

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self.when_done(partial(wake, waiter))
            yield from waiter
        if self._error is not None:
            raise self._error

    def when_done(self, call: Callable[[], None]) -> None:
        """Have something called by this event loop, soon after the ticket is done."""
        self._loop = asyncio.get_running_loop()
        self._calls.append(call)
        if self.done:  # and it was perhaps just too late to be told
            self._loop.call_soon(self.tell)

    def settle(self, error: Exception | None = None) -> None:
        """Keep the promise, or say why not; by the thread that writes."""
        settle_all((self,), error)

    def keep(self, error: Exception | None) -> asyncio.AbstractEventLoop | None:
        """Settle it; give the event loop that has to `tell`, if anyone waits."""
        self._error = error
        self.done = self.resolved = True
        return self._loop if self._calls else None

    def release(self) -> None:
        """Let what waits go on before the entry is written; called in its event loop."""
        self.done = True
        self.tell()

    def tell(self) -> None:
        """Call what waits for it; in its event loop."""
        calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception:  # noqa: BLE001 - nobody else's wait is to suffer from it
                _log.exception("what waited for the journal failed")


def settle_all(tickets: Iterable[Ticket], error: Exception | None = None) -> None:
    """Settle tickets; each event loop that waits for any of them is woken once."""
    waited: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    for ticket in tickets:
        loop = ticket.keep(error)
        if loop is not None:
            waited.setdefault(loop, []).append(ticket)
    for loop, those in waited.items():
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(_tell_all, those)


def _tell_all(tickets: Iterable[Ticket]) -> None:
    for ticket in tickets:
        ticket.tell()


WRITTEN: Final = Ticket()
"""Of whatever is written already."""
WRITTEN.done = WRITTEN.resolved = True


class Shortage(NamedTuple):
    """Why responses wait for room: what is full, which bus is furthest behind, how many wait."""

    full: str
    bus: str
    responses: int

    def __str__(self) -> str:
        full = "disk full" if self.full == "disk" else "full"
        because = f" because of {self.bus}" if self.bus and self.full == "journal" else ""
        return f"{full}{because}, responses that wait: {self.responses}"


class Flow:
    """The entries of one response: written in order, and after one has failed, none."""

    __slots__ = ("error", "last", "makes_room", "provenance", "when_full")

    def __init__(self, provenance: bytes, when_full: WhenFull, *, makes_room: bool = True) -> None:
        """Begin a flow; `makes_room` is whether one that drops takes the room of older entries."""
        self.provenance = provenance
        self.when_full = when_full
        self.makes_room = makes_room
        self.error: Exception | None = None
        self.last = WRITTEN
        """The ticket of the latest entry that went into the queue."""


class _Request:
    """An entry to be written, and who waits for it."""

    __slots__ = ("count", "data", "flow", "hidden", "position", "tickets")

    def __init__(
        self,
        flow: Flow,
        data: Buffer,
        count: int,
        position: int,
        hidden: bool,
        tickets: list[Ticket],
    ) -> None:
        self.flow = flow
        self.data = data
        self.count = count
        self.position = position
        self.hidden = hidden
        self.tickets = tickets

    @property
    def live_bytes(self) -> int:
        """The size of its data, if its flow never waits; else 0."""
        return len(self.data) if self.flow.when_full is WhenFull.DROP else 0

    def settle(self, error: Exception | None = None) -> None:
        settle_all(self.tickets, error)


class _Call(Enum):
    """What the thread is asked for."""

    WRITE = auto()
    RENEW = auto()
    CLOSE = auto()


class Scribe:
    """Writes what flows submit, each by its own rule for a full journal.

    Those that are paced wait in line until there is room. The others never wait for room: they make
    it, or fail. Nor does a live flow wait for a disk that hangs: after a second its entries are
    released, that is, their tickets are done. They stay in the queue, at most 64 MiB, and are
    written when the disk goes on. Until then further entries are lost at once.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.lost = 0
        self.gone = False
        self.shortage: Shortage | None = None
        """What responses have waited for, for a second or longer."""
        self._short_since = self._short_at = 0.0
        self._blocked_since: float | None = None
        self._trouble_said = Throttle()
        self._lost_said = Throttle()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        # Held for the queues, their bytes and what is lost, never while something is written.
        self._lock = threading.Lock()
        self._submitted: deque[_Request] = deque()
        self._live_bytes = 0
        self._paced: deque[_Request] = deque()
        self._written: list[Ticket] = []
        # Of the event loop alone: what is to be released, and since when it waits.
        self._live: deque[tuple[float, Ticket]] = deque()
        self._release_timer: asyncio.TimerHandle | None = None
        self._hangs = False
        self._pause_s = _SHORTEST_PAUSE_S
        self._looked_at = 0.0
        self._closed = self._renews = self._ended = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Count the entries that wait for room."""
        return len(self._paced)

    @property
    def queued(self) -> int:
        """Count the entries that are not written yet, those that wait for room too."""
        return len(self._submitted) + len(self._paced)

    def submit(
        self, flow: Flow, data: Buffer, count: int, position: int, *, hidden: bool = False
    ) -> Ticket:
        """Have an entry written; nothing of it may be sent before its ticket is done.

        Nobody may change the data any more: it is written where it lies.
        """
        ticket = Ticket()
        request = _Request(flow, data, count, position, hidden, [ticket])
        if flow.when_full is WhenFull.DROP:
            if self._hangs or self._live_bytes > _MOST_QUEUED_BYTES:
                self._lose(request)
                return ticket
            self._release_later(ticket)
        flow.last = ticket
        with self._lock:
            self._submitted.append(request)
            self._live_bytes += request.live_bytes
        self._calls.put(_Call.WRITE)
        return ticket

    def cancel(self, flow: Flow) -> None:
        """Write nothing more of a flow: its entries leave the queue, and new ones are refused.

        Called by the event loop when the client has gone. An entry that the thread is writing at
        this moment stays written.
        """
        flow.error = error = FlowCancelledError("the response has ended")
        if flow.last.resolved:
            return
        with self._lock:
            cancelled = [each for each in self._submitted if each.flow is flow]
            if cancelled:
                self._submitted = deque(each for each in self._submitted if each.flow is not flow)
                self._live_bytes -= sum(each.live_bytes for each in cancelled)
            paced = [each for each in self._paced if each.flow is flow]
            if paced:
                self._paced = deque(each for each in self._paced if each.flow is not flow)
        settle_all((ticket for each in (*cancelled, *paced) for ticket in each.tickets), error)

    def write(self, flow: Flow, data: Buffer, count: int, position: int) -> Ticket:
        """Have an entry written as `submit` does, at once if it may go through the ring."""
        ring = self.writer.ring
        if ring is not None and flow.last.resolved and flow.error is None:
            passed = ring.shared.append(flow.provenance, data, count, position)
            if passed == LOW:
                self.renew()
            if passed:
                return WRITTEN
        return self.submit(flow, data, count, position)

    def renew(self) -> None:
        """Have the ring take more, soon."""
        self._calls.put(_Call.RENEW)

    def close(self, timeout_s: float = _CLOSE_WAIT_S) -> bool:
        """Write what has been submitted, as far as there is room, and end the log.

        False if the disk hangs or fails: then the log is as a killed server leaves it, and the next
        server or publisher that opens it writes what is left in its ring.
        """
        self._calls.put(_Call.CLOSE)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            extra = {"log": str(self.writer.path), "after_s": timeout_s}
            _log.error("journal cannot be ended: its disk hangs", extra=extra)
        return self._ended

    def _release_later(self, ticket: Ticket) -> None:
        """Let a live flow go on within a second, even while the disk hangs."""
        while self._live and self._live[0][1].done:
            self._live.popleft()
        loop = asyncio.get_running_loop()
        self._live.append((loop.time(), ticket))
        if self._release_timer is None:
            self._release_timer = loop.call_later(_PATIENCE_S, self._release)

    def _release(self) -> None:
        """Release entries that have waited for a second; called by the event loop."""
        self._release_timer = None
        while self._live and self._live[0][1].done:
            self._live.popleft()
        if not self._live:
            return
        loop = asyncio.get_running_loop()
        due = self._live[0][0] + _PATIENCE_S
        if loop.time() < due:
            self._release_timer = loop.call_at(due, self._release)
            return
        self._hangs = True  # until the thread answers
        released, self._live = self._live, deque()
        for _, ticket in released:
            ticket.release()

    def _run(self) -> None:
        while not self._closed:
            self._write(self._take())
            try:
                if self._renews:
                    self._renews = False
                    self.writer.renew()
                self._write_paced()
            except Exception:  # noqa: BLE001 - they wait, and are tried again
                _log.exception("journal cannot be written")
            self._tell()
            self._hangs = False
            if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                self._look()
        for request in self._paced:
            request.settle(JournalClosedError("the journal was closed"))
        try:
            self._ended = self.writer.close()
        except Exception:  # noqa: BLE001 - the process must end all the same
            _log.exception("journal cannot be ended")

    def _write(self, requests: Sequence[_Request]) -> None:
        """Write what does not wait, and line up what does."""
        for request in _joined(requests):
            if request.flow.when_full is WhenFull.PACE:
                self._line_up(request)
            else:
                try:
                    self._write_at_once(request)
                except Exception as error:  # noqa: BLE001 - whoever submitted it learns of it
                    self._fail(request, error)

    def _line_up(self, request: _Request) -> None:
        """Have an entry wait for room, unless its response has ended meanwhile."""
        with self._lock:
            error = request.flow.error
            if error is None:
                self._paced.append(request)
        if error is not None:
            request.settle(error)

    def _tell(self) -> None:
        """Settle the tickets of what is written, and synced if that is asked for."""
        written, self._written = self._written, []
        error = None
        if written:
            try:
                self.writer.sync()
            except OSError as failure:  # the writer has logged it
                error = failure
        settle_all(written, error)

    def _look(self) -> None:
        """See how full the journal is, and leave room to others when there is nothing to do."""
        self._looked_at = time.monotonic()
        try:
            self.writer.find()
            self.writer.tend()
            self.writer.space.measure()
            self.writer.space.find_stalled()
            self.writer.seal_if_idle()
            self._look_for_shortage()
        except LogGoneError as error:
            self._say_gone(error)
        except Exception:  # noqa: BLE001 - the next look may do better
            if self._trouble_said.allow() is not None:
                _log.exception("journal cannot be looked at")

    def _look_for_shortage(self) -> None:
        """Note, and log, when responses begin and when they cease to wait for room."""
        now = time.monotonic()
        with self._lock:
            responses = len({each.flow for each in self._paced})
        if not responses:
            self._blocked_since = None
        elif self._blocked_since is not None and now - self._blocked_since >= _SHORT_AFTER_S:
            self._short_at = now
            space, before = self.writer.space, self.shortage
            full = "disk" if space.disk_is_full else "journal"
            self.shortage = Shortage(full, space.furthest_behind(), responses)
            if before is None:
                self._short_since = self._blocked_since
                extra = {"full": full, "bus": self.shortage.bus, "responses": responses}
                _log.warning("responses wait for room in the journal", extra=extra)
            return
        if self.shortage is not None and now - self._short_at >= _SHORT_UNTIL_S:
            extra = {
                "full": self.shortage.full,
                "bus": self.shortage.bus,
                "seconds": round(now - self._short_since, 1),
            }
            self.shortage = None
            _log.warning("responses wait no longer for room in the journal", extra=extra)

    def _say_gone(self, error: LogGoneError) -> None:
        """Tell, once, that nothing can be published any more."""
        if not self.gone:
            self.gone = True
            _log.error("journal is gone, nothing is published", extra={"log": str(error.path)})

    def _take(self) -> Sequence[_Request]:
        """Take all that was submitted; wait for it, but not longer than for room."""
        with contextlib.suppress(queue.Empty):
            call = self._calls.get(timeout=self._pause_s if self._paced else _LOOK_EVERY_S)
            while True:
                if call is _Call.CLOSE:
                    self._closed = True
                elif call is _Call.RENEW:
                    self._renews = True
                call = self._calls.get_nowait()
        with self._lock:
            taken, self._submitted = self._submitted, deque()
            self._live_bytes = 0
        return taken

    def _write_paced(self) -> None:
        """Write those that wait in line, as far as there is room."""
        while (request := self._first_paced()) is not None:
            if not self._append(request) and not (
                self.writer.make_room(forced=False) and self._append(request)
            ):
                self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
                if self._blocked_since is None:
                    self._blocked_since = time.monotonic()
                return
            self._blocked_since = None
            with self._lock:
                if self._paced and self._paced[0] is request:  # its response may have ended
                    self._paced.popleft()
            self._pause_s = _SHORTEST_PAUSE_S
            if self._live_bytes:  # a live entry does not wait for all that is paced
                return

    def _first_paced(self) -> _Request | None:
        with self._lock:
            return self._paced[0] if self._paced else None

    def _write_at_once(self, request: _Request) -> None:
        """Write an entry that does not wait, at the expense of whoever is furthest behind."""
        if self._append(request):
            return
        if request.flow.when_full is WhenFull.ERROR:
            space = self.writer.space
            self._fail(request, JournalFullError(space.used, space.max_bytes))
            return
        while request.flow.makes_room and self.writer.make_room(forced=True):
            if self._append(request):
                return
        self._lose(request)

    def _append(self, request: _Request) -> bool:
        """Write an entry; False if it does not fit. Its flow ends if the disk is broken."""
        flow = request.flow
        if flow.error is not None:
            request.settle(flow.error)
            return True
        try:
            if not self.writer.append(
                flow.provenance,
                request.data,
                request.count,
                request.position,
                hidden=request.hidden,
            ):
                return False
        except Exception as error:  # noqa: BLE001 - whoever submitted it learns of it
            self._fail(request, error)
            return True
        finally:
            self._hangs = False
        self._written += request.tickets
        return True

    def _lose(self, request: _Request) -> None:
        """Let a flow that never waits go on without its entry."""
        with self._lock:
            self.lost += request.count
        if self._lost_said.allow() is not None:
            _log.error("disk full or stuck: messages not published", extra={"lost": self.lost})
        request.settle()

    def _fail(self, request: _Request, error: Exception) -> None:
        """End the flow of an entry that could not be written, if it is one that can end."""
        if isinstance(error, LogGoneError):
            self._say_gone(error)
        elif not isinstance(error, TardisMachineError):
            _log.error("journal cannot be written", exc_info=error)
        if request.flow.when_full is WhenFull.DROP:
            self._lose(request)
            return
        request.flow.error = error
        request.settle(error)


def _joined(requests: Sequence[_Request]) -> Sequence[_Request]:
    """Make one entry of small ones of a flow: whoever reads the journal pays for each."""
    if len(requests) <= 1:
        return requests
    runs: list[list[_Request]] = []
    latest: dict[Flow, tuple[list[_Request], int]] = {}
    for request in requests:
        run, size = latest.get(request.flow, ([], 0))
        size += len(request.data)
        if run and size <= _MOST_JOINED_BYTES and _follows(request, run[-1]):
            run.append(request)
        else:
            run, size = [request], len(request.data)
            runs.append(run)
        latest[request.flow] = run, size
    return [_join(run) for run in runs]


def _follows(request: _Request, last: _Request) -> bool:
    hidden = request.hidden or last.hidden
    return not hidden and request.position == last.position + last.count


def _join(run: list[_Request]) -> _Request:
    first = run[0]
    if len(run) == 1:
        return first
    return _Request(
        first.flow,
        b"".join([each.data for each in run]),
        sum([each.count for each in run]),
        first.position,
        False,
        [ticket for each in run for ticket in each.tickets],
    )
