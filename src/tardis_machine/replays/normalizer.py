"""Normalization of one stream of recorded lines, run by run."""

import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, thread_time
from typing import Final, Literal, NamedTuple, Protocol

from tardis_machine import engine
from tardis_machine.engine import DataType, Taken, Written
from tardis_machine.engine.choice import kernel
from tardis_machine.engine.datatypes import sources
from tardis_machine.errors import TardisMachineError
from tardis_machine.exchanges import Exchange
from tardis_machine.history.recorded_lines import MESSAGE, Blocks, Index, IndexedStream, LineStream
from tardis_machine.log import Throttle
from tardis_machine.messages import times

log = logging.getLogger(__name__)

# Processor time of a run, so that other tasks of the event loop are not delayed. Wall time would
# shrink runs on a busy machine.
_RUN_S: Final = 0.002
# Output of a run, small enough to be in the processor's cache when it is sent, and large enough to
# outweigh the Python code of a run.
_RUN_BYTES: Final = 512 * 1024
_MAX_LINES: Final = 8192
_MIN_LINES: Final = 8
# A replay begins with book snapshots; each takes as long as hundreds of other lines.
_FIRST_LINES: Final = 1
# A line of this size is a book snapshot, which takes milliseconds: it gets a run of its own.
_LONG_LINE: Final = 32 * 1024
# Output too small to be written to the socket waits for more at most this long.
_LEFT_S: Final = 0.25
_NO_ERA: Final = "~"


class NormalizeError(TardisMachineError):
    """A line that cannot be normalized, in a strict replay."""

    def __init__(self, exchange: str, channel: str, time: str, reason: str) -> None:
        super().__init__(f"{exchange}: cannot normalize a line of {channel} at {time}: {reason}")
        self.exchange = exchange
        self.channel = channel
        self.time = time
        self.reason = reason


class Malformed(NamedTuple):
    """A recorded line that cannot be normalized, with its local time and the reason."""

    exchange: str
    line: bytes
    local: str
    reason: str


class Normalizer:
    """Merge input that normalizes one stream of recorded lines with a mapper.

    `on_malformed` is called in the thread that runs it, with each line that is left out. An error
    that it raises ends the replay.
    """

    def __init__(
        self,
        exchange: Exchange,
        blocks: Blocks,
        *,
        data_types: Sequence[DataType],
        symbols: Sequence[str] | None,
        start: int,
        sent: Collection[str],
        sends_disconnects: bool,
        strict: bool,
        ends_bars_at: int | None = None,
        on_malformed: Callable[[Malformed], None] | None = None,
    ) -> None:
        self.malformed = 0
        self._stream = self._open(blocks)
        self._exchange = exchange
        self._symbols = symbols or ()
        self._types = sources(data_types)
        self._strict = strict
        self._ends_bars_at = ends_bars_at
        self._on_malformed = on_malformed
        self._sends_disconnects = sends_disconnects
        self._malformed_throttle = Throttle()
        self._ignored_throttle = Throttle()
        self._emitter = engine.create(exchange.name, data_types, sent)
        self._emitter.allow(exchange.allowed(self._types, symbols))
        self._eras = tuple(
            times.iso_us(era) for era in exchange.era_ends(self._types) if era > start
        )
        self._era = self._eras[0] if self._eras else _NO_ERA
        self._start = start
        self._handle: Callable[[bytes], bool] | None = None
        self._make_mapper(start)
        self._pace = _FIRST_LINES
        self._ran = 0
        self._disconnected = False
        self._before_hidden: Taken | None = None
        self._hidden: Taken | None = None
        self.pour: Pour | None = None
        """The socket that a compiled emitter writes to, where no message needs further work."""
        self._taken_at = monotonic()

    def _open(self, blocks: Blocks) -> LineStream:
        return LineStream(blocks)

    @property
    def name(self) -> str:
        """Name of the exchange."""
        return self._exchange.name

    @property
    def ignored_changes(self) -> int:
        """Number of book changes before the first snapshot of their book."""
        return self._emitter.ignored_changes

    def symbols_met(self) -> list[str]:
        """Return the requested symbols that had a message."""
        met = self._emitter.met()
        return [
            symbol
            for symbol in self._symbols
            if not met.isdisjoint(self._exchange.allowed(self._types, [symbol]) or ())
        ]

    @property
    def needs_block(self) -> bool:
        """Whether `read` has to be called before the next run."""
        return self._stream.needs_block

    @property
    def reached(self) -> str | None:
        """Earliest local time that later lines can have; None after the last line."""
        return self._stream.reached

    @property
    def failure(self) -> Exception | None:
        """The error that ended the stream before its last line."""
        return self._stream.failure

    def pending(self) -> Future[object] | None:
        """Return the future of the block that `read` would wait for; None if it is there."""
        return self._stream.pending()

    def read(self) -> None:
        """Read the next block of lines, wait for its download, and close the bars at the end."""
        if self._stream.read() or self.failure is not None or self._ends_bars_at is None:
            return
        self._emitter.begin(times.iso_us(self._ends_bars_at))
        self._emitter.close_bars()

    @property
    def pours(self) -> bool:
        """Whether messages are written to the socket already, so `take` can wait."""
        return False

    def run(self, *, is_next: bool = False) -> None:
        """Normalize as many lines as a few milliseconds allow."""
        del is_next
        started = thread_time()
        first = begun = self._stream.next
        wanted = self._pace
        left = self._stream.count - first
        # A small rest of the block is added to this run: it is not worth one of its own.
        end = self._end_of_run(first, first + (wanted if wanted + wanted // 4 < left else left))
        self._stream.next = end
        ignored = self._emitter.ignored_changes
        while self._era is not _NO_ERA and (border := self._border(first, end)) < end:
            self._normalize(first, border)
            if self._stream.next < border:
                break
            self._handle = None
            self._era = next((era for era in self._eras if era > self._era), _NO_ERA)
            first = border
        else:
            self._normalize(first, end)
        self._ran = self._stream.next - begun
        if self._emitter.ignored_changes != ignored:
            self._report_ignored(self._emitter.ignored_changes - ignored)
        took = thread_time() - started
        if self._ran >= wanted or took > _RUN_S:
            share = max(0.5, min(2.0, _RUN_S / max(took, 1e-6)))
            self._pace = min(_MAX_LINES, max(_MIN_LINES, int(self._ran * share)))

    def take(self) -> Taken:
        """Return the text that was normalized since the last call."""
        if self._before_hidden is not None:
            taken, self._before_hidden = self._before_hidden, None
            return taken
        taken = self._emitter.take()
        self._taken_at = monotonic()
        size = len(taken.written)
        if size and not (self.pour is not None and self.pour.is_open):
            fitting = _RUN_BYTES * self._ran // size
            self._pace = min(self._pace, max(_MIN_LINES, fitting))
        return taken

    def take_hidden(self) -> Taken | None:
        """Return the control events after those of `take` that the client did not request."""
        hidden, self._hidden = self._hidden, None
        return hidden

    def _end_of_run(self, first: int, end: int) -> int:
        """Return the end of a run: before a long line, and after a disconnect that is not sent."""
        lines = self._stream.lines
        if max(map(len, lines[first:end])) > _LONG_LINE:
            long = next(at for at in range(first, end) if len(lines[at]) > _LONG_LINE)
            end = max(long, first + 1)
        if not self._sends_disconnects and b"" in lines[first:end]:
            end = lines.index(b"", first) + 1
        return end

    def _border(self, first: int, end: int) -> int:
        """Return the first line of the next era, or the end."""
        locals_ = self._stream.locals[first:end]
        if max(locals_) < self._era:
            return end
        return next(at for at, local in enumerate(locals_, first) if local >= self._era)

    def _normalize(self, first: int, end: int) -> None:
        """Normalize these lines; lower `next` of the stream to the first line that has to wait."""
        lines, locals_ = self._stream.lines[first:end], self._stream.locals[first:end]
        if "" in locals_:
            self._normalize_checked(first, end)
            return
        if not lines:
            return
        self._disconnected = False
        begin = self._emitter.begin
        handle = self._handle or self._mapper_at(locals_[0])
        for line, local in zip(lines, locals_, strict=True):
            begin(local)
            try:
                handle(line[MESSAGE:])
            except Exception as error:  # noqa: BLE001 - a line may hold anything
                self._stream.last = local
                self._reject(line, local, error)
        self._stream.last = locals_[-1]

    def _normalize_checked(self, first: int, end: int) -> None:
        """Normalize lines some of which are empty or have no local time."""
        stream = self._stream
        for at in range(first, end):
            if stream.locals[at]:
                continue
            self._normalize(first, at)
            first = at + 1
            self._without_time(stream.lines[at])
        self._normalize(first, end)

    def _without_time(self, line: bytes) -> None:
        if line:
            problem = ValueError("it does not begin with a local time")
            self._reject(line, self._stream.last, problem)
        else:
            self._disconnect()

    def _disconnect(self) -> None:
        """Reset the mapper at a disconnect of the recorder; several in a row count as one.

        Books and bars are reset only where the client gets disconnects, as in tardis-machine for
        Node.js.
        """
        if self._disconnected:
            return
        self._disconnected = True
        self._handle = None
        local = self._stream.last
        if not local:
            return
        if self._sends_disconnects:
            self._emitter.reset()
            self._emitter.begin(local)
            self._emitter.disconnect()
        else:
            self._before_hidden = self._emitter.take()
            self._emitter.begin(local)
            self._emitter.disconnect()
            self._hidden = self._emitter.take()

    def _mapper_at(self, local: str) -> Callable[[bytes], bool]:
        try:
            created = times.us_of(local)
        except ValueError:  # digits, but no date: the mapper of the start is used
            created = self._start
        return self._make_mapper(created)

    def _make_mapper(self, created: int) -> Callable[[bytes], bool]:
        self._handle = self._exchange.mapper(self._types, max(created, self._start), self._emitter)
        return self._handle

    def _reject(self, line: bytes, local: str, error: Exception) -> None:
        self.malformed += 1
        channel = getattr(error, "channel", None) or self._channel_of(line)
        reason = str(error) or type(error).__name__
        if self._strict:
            raise NormalizeError(self._exchange.name, channel, local, reason) from error
        if self._on_malformed is not None:
            self._on_malformed(Malformed(self._exchange.name, line, local, reason))
        held_back = self._malformed_throttle.allow()
        if held_back is not None:
            log.warning(
                "line cannot be normalized",
                extra={
                    "exchange": self._exchange.name,
                    "channel": channel,
                    "time": local,
                    "reason": reason[:200],
                    "line": line[:200].decode(errors="replace"),
                    "malformed": self.malformed,
                    "held_back": held_back,
                },
            )

    def _channel_of(self, line: bytes) -> str:
        names: list[str] = []

        def note(name: str) -> tuple[()]:
            names.append(name)
            return ()

        with suppress(Exception):  # a line may hold anything
            self._exchange.dispatch(note)(line[MESSAGE:])
        return names[0][:64] if names else "unknown"

    def _report_ignored(self, changes: int) -> None:
        if self._strict:
            raise NormalizeError(
                self._exchange.name,
                "book_change",
                self._stream.last,
                f"{changes} book changes before the book's first snapshot",
            )
        held_back = self._ignored_throttle.allow()
        if held_back is not None:
            log.warning(
                "book changes before the first snapshot",
                extra={
                    "exchange": self._exchange.name,
                    "channel": "book_change",
                    "time": self._stream.last,
                    "ignored": self._emitter.ignored_changes,
                    "held_back": held_back,
                },
            )


class ShapedNormalizer(Normalizer):
    """Normalizer with the compiled engine, which normalizes lines of the shapes in the mapper.

    The mapper gets all other lines one by one, in order.
    """

    _emitter: "RunningEmitter"
    _stream: IndexedStream
    _pouring: "Pour | None" = None
    """The socket that the last run could write to."""

    def _open(self, blocks: Blocks) -> LineStream:
        module = kernel().module
        assert module is not None
        return IndexedStream(blocks, module.Lines)

    @property
    def pours(self) -> bool:
        pour = self._pouring
        if pour is None or not pour.is_open or self._before_hidden is not None:
            return False
        stream = self._stream
        if stream.is_done or (stream.needs_block and stream.pending() is not None):
            return False
        return monotonic() - self._taken_at < _LEFT_S

    def run(self, *, is_next: bool = False) -> None:
        self._pouring = self.pour if is_next else None
        super().run(is_next=is_next)

    def _end_of_run(self, first: int, end: int) -> int:
        index = self._stream.index
        end = max(index.first_longer(_LONG_LINE, first, end), first + 1)
        if not self._sends_disconnects:
            end = min(index.first_disconnect(first, end) + 1, end)
        return end

    def _border(self, first: int, end: int) -> int:
        return self._stream.index.first_since(self._era, first, end)

    def _normalize(self, first: int, end: int) -> None:
        stream, emitter = self._stream, self._emitter
        index = stream.index
        while first < end:
            at, waits = first, False
            if self._handle is not None:
                at, waits = emitter.run(index, first, end, self._pouring)
            if at > first:
                self._disconnected = False
                stream.last = index.local(at - 1)
            if waits:
                stream.next = at
                return
            if at < end:
                self._take_line(at, index.local(at))
            first = at + 1

    def _take_line(self, at: int, local: str) -> None:
        """Normalize a line that the engine left to the mapper."""
        stream = self._stream
        if not local:
            self._without_time(stream.index[at])
            return
        self._disconnected = False
        handle = self._handle or self._mapper_at(local)
        self._emitter.begin(local)
        stream.last = local
        try:
            handle(stream.index.message(at))
        except Exception as error:  # noqa: BLE001 - a line may hold anything
            self._reject(stream.index[at], local, error)


Framing = Literal["nothing", "chunks", "frames"]
"""Framing of messages: HTTP chunks around many, or a WebSocket frame around each."""


class Pour(Protocol):
    """Socket that the compiled engine writes messages to, until the socket is full.

    All methods are called in the event loop's thread.
    """

    is_open: bool
    """Whether the engine may write messages to the socket."""

    position: int
    """Number of messages of the response that were written to the journal, if there is one."""

    def journal(
        self, ring: object, provenance: bytes, position: int, renew: Callable[[], None], /
    ) -> None:
        """Write messages to the journal's ring before the socket; `renew` requests more space.

        A message that does not fit the ring is not sent, and closes this socket for the engine.
        """

    def fileno(self) -> int:
        """Return the file descriptor to wait for."""

    @property
    def is_held(self) -> bool:
        """Whether bytes wait because the socket is full; they must be sent first."""

    @property
    def written(self) -> int:
        """Number of bytes written to the socket."""

    def send(self, text: Written, /) -> None:
        """Write text that the engine did not write itself."""

    def resume(self) -> None:
        """Write the waiting bytes."""

    def spill(self) -> bytes:
        """Return the waiting bytes with their framing, for another writer to send."""

    def settle(self) -> tuple[int, int]:
        """Return the messages, and their bytes, that the engine wrote since the last call."""

    def close(self) -> None:
        """Release the socket without closing it."""


class RunningEmitter(engine.Emitter, Protocol):
    """Emitter of the compiled engine, which reads lines without a mapper."""

    def run(self, lines: Index, first: int, end: int, pour: Pour | None, /) -> tuple[int, bool]:
        """Normalize lines up to the first without a known shape; return its index and False.

        With an open `pour` messages are written on the way. If that has to wait for the socket,
        return the index of the next line and True.
        """


def normalizer_type() -> type[Normalizer]:
    """Return the normalizer class of the engine in use."""
    return Normalizer if kernel().module is None else ShapedNormalizer
