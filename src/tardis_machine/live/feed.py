"""One normalized live stream of an exchange: its sources, its lanes and its listeners."""

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
    """Journal of a response's messages; a feed sends a batch once its entry is written."""

    def append(self, data: bytes, count: int) -> "Ticket":
        """Queue an entry and return its ticket, without waiting.

        The feed calls it in the event loop's thread, in the order of sending. It never waits for
        space: the journal of a live stream makes room itself.
        """


class Listener(Protocol):
    """Receiver of a live stream; the feed calls it in the event loop's thread."""

    @property
    def with_disconnects(self) -> bool:
        """Whether it receives disconnect messages."""

    @property
    def with_errors(self) -> bool:
        """Whether it receives error messages."""

    def send(self, data: bytes, count: int) -> None:
        """Queue a batch of `count` messages, once the journal has it.

        An error that it raises removes this listener only and is passed to `end`.
        """

    def end(self, error: Exception) -> None:
        """End the stream of this listener; called when a feed has removed it."""


class _Outgoing(NamedTuple):
    """A batch, or an error that ends the stream, that waits for the journal entries before it."""

    listeners: Sequence[Listener]
    data: bytes
    messages: int
    written: "Ticket | None"
    error: Exception | None = None


class Feed:
    """A live stream that runs from `start` to `stop`.

    The constructor raises for options that cannot be streamed. Later failures are sent as error
    messages, and the source tries again.
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
        self._books = {lane: Books() for lane in self._lanes if lane.type == BOOKS and has_books}
        timeout_s = options.timeout_interval_ms / 1000
        self._connections = [
            Connection(planned, source, self._fed_by(source), self, timeout_s=timeout_s)
            for source in planned.connections
        ]
        self._polled = [
            PolledSource(source, self._fed_by(source), self) for source in planned.pollers
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
        """Start a task for each connection and poller."""
        self._last_local = self._clock.stamp()
        sources: list[Connection | PolledSource] = [*self._connections, *self._polled]
        self._running = [asyncio.create_task(source.run()) for source in sources]

    async def stop(self) -> None:
        """Stop polling, and close the connections with a close frame."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def join(self, listener: Listener) -> None:
        """Add a listener, and send it the current books as snapshots."""
        self.flush()
        self._listeners.append(listener)
        self._statistics.clients[self.exchange] += 1
        books = [line for books in self._books.values() for line in books.snapshots()]
        if books:
            self._send_when_written((listener,), b"".join(books), len(books))

    def leave(self, listener: Listener) -> None:
        """Remove a listener; harmless when repeated."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._statistics.clients[self.exchange] -= 1

    @property
    def has_listeners(self) -> bool:
        """Whether the feed has a listener."""
        return bool(self._listeners)

    # Called by sources, in the event loop's thread

    def process_frame(self, source: Connection | PolledSource, local: str, frame: bytes) -> None:
        """Normalize a frame with each lane of its source; `flush` sends the result."""
        self._statistics.frames[self.exchange] += 1
        for lane in source.lanes:
            try:
                messages = lane.process_frame(local, frame)
            except LiveError as error:
                self._lane_failed(source, lane, error)
                continue
            if messages is None:
                continue
            source.record_message(lane)
            if messages.count:
                self._out.append(messages.data)
                self._count += messages.count
                self._last_local = local
                self._errors = 0
                books = self._books.get(lane)
                if books is not None:
                    books.apply(messages.data)

    def flush(self) -> None:
        """Send the messages that are normalized so far, as one batch."""
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        count = self._count
        self._out.clear()
        self._count = 0
        written = None if self._journal is None else self._journal.append(data, count)
        self._send_when_written(tuple(self._listeners), data, count, written)

    def opened(self) -> None:
        """Count a connection that was opened."""
        self._statistics.connections[self.exchange] += 1

    def closed(self) -> None:
        """Count a connection that was closed."""
        self._statistics.connections[self.exchange] -= 1

    def report(self, error: Exception) -> None:
        """Send an error message to the buses and the listeners that want it.

        The error number `MAX_ERRORS` without a message in between ends the stream of all listeners.
        """
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
        fields = (self.exchange, self._clock.stamp(), str(error), self._errors)
        written = None
        if self._journal is not None:
            written = self._journal.append(error_line(*fields, code=code), 1)
        receivers = tuple(listener for listener in self._listeners if listener.with_errors)
        self._send_when_written(receivers, error_line(*fields), 1, written)
        if self._errors >= MAX_ERRORS:
            too_many = TooManyErrorsError(self.exchange)
            self._send_when_written(tuple(self._listeners), error=too_many)

    def ended(self, connection: Connection, error: LiveError) -> None:
        """Reset the lanes of a connection that ended, and send error and disconnect messages.

        A disconnect is sent if the connection had data, and at the connection's first end.
        """
        self.flush()
        self._statistics.disconnects[self.exchange] += 1
        for lane in connection.lanes:
            lane.reset()
            if lane in self._books:
                self._books[lane].drop()
        reported = isinstance(error, BookError | MalformedError)  # by _lane_failed
        if not reported and not (
            connection.had_data and isinstance(error, ClosedError | StaleError)
        ):
            self.report(error)
        if connection.had_data or connection not in self._down:
            self._report_disconnect(connection, error)
        self._down.add(connection)

    def _report_disconnect(self, connection: Connection, error: LiveError) -> None:
        local = self._last_local
        if local == self._last_disconnect:  # disconnects at once differ in their times
            local = self._clock.stamp()
        self._last_disconnect = local
        fields = (self.exchange, local, self._symbols_of(connection))
        # Clients drop all books at a disconnect, so those of other connections are sent again.
        snapshots = [line for books in self._books.values() for line in books.snapshots()]
        kept = b"".join(snapshots)
        count = 1 + len(snapshots)
        written = None
        if self._journal is not None:
            published = disconnect_line(
                *fields, reason=str(error)[:1000], close_code=error.close_code
            )
            written = self._journal.append(published + kept, count)
        receivers = tuple(listener for listener in self._listeners if listener.with_disconnects)
        self._send_when_written(receivers, disconnect_line(*fields) + kept, count, written)

    # Internal

    def _fed_by(self, source: object) -> list[Lane]:
        return [lane for lane in self._lanes if source in lane.fed_by]

    def _symbols_of(self, connection: Connection) -> Sequence[str] | None:
        """Return the requested symbols of a connection; None stands for all symbols."""
        if self._symbols is None:
            return None
        spelled = {s.casefold() for f in connection.source.filters for s in f.symbols or ()}
        symbols = [symbol for symbol in self._symbols if symbol.casefold() in spelled]
        return symbols or self._symbols

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
            # The skipped message may be an update: the books of this connection may be wrong now.
            source.fail(error)

    def _send_when_written(
        self,
        listeners: Sequence[Listener],
        data: bytes = b"",
        count: int = 0,
        written: "Ticket | None" = None,
        error: Exception | None = None,
    ) -> None:
        """Send a batch, or end the stream, once the journal has this entry and all before it."""
        if not self._outgoing and (written is None or written.done):
            self._send(_Outgoing(listeners, data, count, written, error))
            return
        self._outgoing.append(_Outgoing(listeners, data, count, written, error))
        if len(self._outgoing) == 1:
            self._send_written()

    def _send_written(self) -> None:
        """Send the waiting batches in order, up to the first that is not written.

        The ticket of that batch calls this method again in the event loop's thread.
        """
        while self._outgoing:
            written = self._outgoing[0].written
            if written is not None and not written.done:
                written.when_done(self._send_written)
                return
            self._send(self._outgoing.popleft())

    def _send(self, outgoing: _Outgoing) -> None:
        for listener in outgoing.listeners:
            if listener not in self._listeners:  # it has left since
                continue
            if outgoing.error is not None:
                self._drop(listener, outgoing.error)
                continue
            try:
                listener.send(outgoing.data, outgoing.messages)
            except Exception as error:  # noqa: BLE001 - ends this listener only
                self._drop(listener, error)

    def _drop(self, listener: Listener, error: Exception) -> None:
        self.leave(listener)
        listener.end(error)
