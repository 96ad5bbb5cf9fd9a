"""One exchange's normalized live stream: its sources, its lanes, everybody who listens."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tardis_machine.engine import parse_all
from tardis_machine.engine.datatypes import sent, sources
from tardis_machine.exchanges import BookGapError
from tardis_machine.exchanges import get as get_exchange
from tardis_machine.live.books import Books
from tardis_machine.live.connection import Connection
from tardis_machine.live.errors import (
    BookError,
    ClosedError,
    LiveError,
    MalformedError,
    StaleError,
    TooManyErrorsError,
)
from tardis_machine.live.lanes import BOOKS, Lane, lanes_of
from tardis_machine.live.plan import plan
from tardis_machine.live.poller import PolledSource
from tardis_machine.live.resources import Resources
from tardis_machine.log import Throttle
from tardis_machine.messages.control import disconnect_line, error_line
from tardis_machine.replays.requests import StreamNormalizedOptions

if TYPE_CHECKING:
    from tardis_machine.journal import Ticket

log = logging.getLogger(__name__)

MAX_ERRORS: Final = 50


class Journal(Protocol):
    """Where messages are written before they are sent: as soon as the ticket is done.

    That never takes space: a live stream's journal makes room.
    """

    def append(self, data: bytes, count: int) -> "Ticket": ...


class Listener(Protocol):
    """Somebody who gets the stream; what it raises ends its listening, and nobody else's."""

    @property
    def with_disconnects(self) -> bool: ...

    @property
    def with_errors(self) -> bool: ...

    def send(self, data: bytes, count: int) -> None: ...

    def end(self, error: Exception) -> None: ...


class _Outgoing(NamedTuple):
    """Something to hand out once it is written, and to whom; or why their listening ends."""

    listeners: Sequence[Listener]
    data: bytes
    messages: int
    written: "Ticket | None"
    error: Exception | None = None


class Feed:
    """A stream that runs while somebody listens.

    Everything it needs is checked when it is made; what happens later is reported to those who
    asked for it, and tried again.
    """

    def __init__(
        self,
        options: StreamNormalizedOptions,
        sent_types: frozenset[str],
        resources: Resources,
        journal: Journal | None,
    ) -> None:
        exchange = get_exchange(options.exchange)
        data_types = parse_all(options.data_types)
        self.exchange = exchange.name
        self.resources = resources
        self._clock = resources.clock
        self._statistics = resources.statistics
        self._journal = journal
        self._symbols = options.symbols
        planned = plan(exchange, sources(data_types), options.symbols, resources.environ)
        self.rest = resources.rest(planned)
        self._lanes = lanes_of(planned, data_types, sent_types | sent(data_types), options.symbols)
        has_books = BOOKS in sent_types | sent(data_types)
        self._books = {each: Books() for each in self._lanes if each.type == BOOKS and has_books}
        timeout_s = options.timeout_interval_ms / 1000
        self._connections = [
            Connection(planned, source, self._fed_by(source), self, timeout_s=timeout_s)
            for source in planned.connections
        ]
        self._polled = [
            PolledSource(source, self._fed_by(source), self) for source in planned.pollings
        ]
        self._listeners: list[Listener] = []
        self._outgoing: deque[_Outgoing] = deque()
        self._out: list[bytes] = []
        self._count = 0
        self._errors = 0
        self._down: set[Connection] = set()
        self._last_local = self._last_disconnect = ""
        self._throttle = Throttle()
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Connect."""
        self._last_local = self._clock.stamp()
        work = [each.run() for each in self._connections]
        work += [each.run() for each in self._polled]
        self._running = [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        """Disconnect, with a goodbye to the exchange."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def join(self, listener: Listener) -> None:
        """Let somebody listen; who comes later gets the books as they are now."""
        self.flush()
        self._listeners.append(listener)
        self._statistics.clients[self.exchange] += 1
        books = [line for each in self._books.values() for line in each.snapshots()]
        if books:
            self._hand_out((listener,), b"".join(books), len(books))

    def leave(self, listener: Listener) -> None:
        """Let somebody go."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._statistics.clients[self.exchange] -= 1

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    # What sources call

    def take(self, source: Connection | PolledSource, local: str, frame: bytes) -> None:
        """Normalize a frame."""
        self._statistics.frames[self.exchange] += 1
        for lane in source.lanes:
            try:
                taken = lane.take(local, frame)
            except LiveError as error:
                self._lane_failed(source, lane, error)
                continue
            if taken is None:
                continue
            source.beat(lane)
            if taken.count:
                self._out.append(taken.data)
                self._count += taken.count
                self._last_local = local
                self._errors = 0
                books = self._books.get(lane)
                if books is not None:
                    books.fold(taken.data)

    def flush(self) -> None:
        """Hand out what was normalized."""
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        count = self._count
        self._out.clear()
        self._count = 0
        written = None if self._journal is None else self._journal.append(data, count)
        self._hand_out(tuple(self._listeners), data, count, written)

    def opened(self) -> None:
        """Note a connection that is open."""
        self._statistics.connections[self.exchange] += 1

    def closed(self) -> None:
        """Note one that is no more."""
        self._statistics.connections[self.exchange] -= 1

    def report(self, error: Exception) -> None:
        """Tell of an error, those who asked and the buses; after too many, end the stream."""
        self.flush()
        self._errors += 1
        code = error.code if isinstance(error, LiveError) else None
        self._statistics.errors[self.exchange, code or "UNSPECIFIED"] += 1
        held_back = self._throttle.allow()
        if held_back is not None:
            log.warning(
                "live stream error",
                extra={
                    "exchange": self.exchange,
                    "error": str(error)[:500],
                    "in_a_row": self._errors,
                    "held_back": held_back,
                },
            )
        told = (self.exchange, self._clock.stamp(), str(error), self._errors)
        written = None
        if self._journal is not None:
            written = self._journal.append(error_line(*told, code=code), 1)
        asking = tuple(each for each in self._listeners if each.with_errors)
        self._hand_out(asking, error_line(*told), 1, written)
        if self._errors >= MAX_ERRORS:
            too_many = TooManyErrorsError(self.exchange)
            self._hand_out(tuple(self._listeners), error=too_many)

    def ended(self, connection: Connection, error: LiveError) -> None:
        """Start a connection's lanes anew, and tell of it."""
        self.flush()
        self._statistics.disconnects[self.exchange] += 1
        for lane in connection.lanes:
            lane.reset()
            if lane in self._books:
                self._books[lane].drop()
        told = isinstance(error, BookError | MalformedError)  # when a lane met it
        if not told and not (connection.had_data and isinstance(error, ClosedError | StaleError)):
            self.report(error)
        if connection.had_data or connection not in self._down:
            self._disconnected(connection, error)
        self._down.add(connection)

    def _disconnected(self, connection: Connection, error: LiveError) -> None:
        local = self._last_local
        if local == self._last_disconnect:  # two at once are still two
            local = self._clock.stamp()
        self._last_disconnect = local
        told = (self.exchange, local, self._concerned(connection))
        # Whoever drops all books now needs those that are still good once more.
        books = [line for each in self._books.values() for line in each.snapshots()]
        kept = b"".join(books)
        written = None
        if self._journal is not None:
            published = disconnect_line(
                *told, reason=str(error)[:1000], close_code=error.close_code
            )
            written = self._journal.append(published + kept, 1 + len(books))
        asking = tuple(each for each in self._listeners if each.with_disconnects)
        self._hand_out(asking, disconnect_line(*told) + kept, 1 + len(books), written)

    # Inside

    def _fed_by(self, source: object) -> list[Lane]:
        return [lane for lane in self._lanes if source in lane.fed_by]

    def _concerned(self, connection: Connection) -> Sequence[str] | None:
        """Name the requested symbols that a connection has; None where it has all."""
        if self._symbols is None:
            return None
        its = {s.casefold() for each in connection.source.filters for s in each.symbols or ()}
        found = [symbol for symbol in self._symbols if symbol.casefold() in its]
        return found or self._symbols

    def _lane_failed(self, source: Connection | PolledSource, lane: Lane, error: LiveError) -> None:
        self.report(error)
        if isinstance(error, BookError) and isinstance(error.__cause__, BookGapError):
            symbol = error.__cause__.symbol
            self._statistics.resyncs[self.exchange] += 1
            if lane in self._books:
                self._books[lane].drop((symbol,))
            for connection in self._connections:
                if lane in connection.lanes:
                    connection.resync(symbol, error)
            return
        self._statistics.malformed[self.exchange] += 1
        if lane.type == BOOKS and isinstance(source, Connection):
            # It may have been an update: the books of this connection may be wrong from here on.
            source.fail(error)

    def _hand_out(
        self,
        listeners: Sequence[Listener],
        data: bytes = b"",
        count: int = 0,
        written: "Ticket | None" = None,
        error: Exception | None = None,
    ) -> None:
        """Send, or end, when the journal has what was handed out before and this."""
        if not self._outgoing and (written is None or written.done):
            self._send(_Outgoing(listeners, data, count, written, error))
            return
        self._outgoing.append(_Outgoing(listeners, data, count, written, error))
        if len(self._outgoing) == 1:
            self._send_written()

    def _send_written(self) -> None:
        """Send what was waiting for the journal, in order, as far as it is written."""
        while self._outgoing:
            written = self._outgoing[0].written
            if written is not None and not written.done:
                written.when_done(self._send_written)
                return
            self._send(self._outgoing.popleft())

    def _send(self, outgoing: _Outgoing) -> None:
        for listener in outgoing.listeners:
            if listener not in self._listeners:  # gone meanwhile
                continue
            if outgoing.error is not None:
                self._drop(listener, outgoing.error)
                continue
            try:
                listener.send(outgoing.data, outgoing.messages)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this listener's
                self._drop(listener, error)

    def _drop(self, listener: Listener, error: Exception) -> None:
        self.leave(listener)
        listener.end(error)
