"""From an exchange's raw lines to normalized messages: one stream, its mapper, its emitter."""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol

from tardis_machine import emit, times
from tardis_machine.emit import DataType, Taken
from tardis_machine.emit.datatypes import sources
from tardis_machine.errors import TardisMachineError
from tardis_machine.exchanges import Exchange
from tardis_machine.log import Throttle

log = logging.getLogger(__name__)

# A line: "2019-06-01T00:00:00.1234567Z", a space, the message. Messages print microseconds.
_STAMP_LENGTH: Final = 29
_LOCAL_LENGTH: Final = 26
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_STAMP_FORM: Final = b"0000-00-00T00:00:00.0000000Z "
_LONG_LINE: Final = 32 * 1024
_NO_ERA: Final = b"~"
_CHANNEL: Final = re.compile(rb'"(?:table|stream|channel|topic|ch)"\s*:\s*"([^"]{1,64})"')


class NormalizeError(TardisMachineError):
    """A line that cannot be normalized, when nothing may be left out."""

    def __init__(self, exchange: str, channel: str, time: str, reason: str) -> None:
        super().__init__(f"{exchange}: cannot normalize a line of {channel} at {time}: {reason}")
        self.exchange = exchange
        self.channel = channel
        self.time = time
        self.reason = reason


class Malformed(NamedTuple):
    """A recorded line that cannot be normalized, with the local time reached, and why."""

    exchange: str
    line: bytes
    local: str
    reason: str


class Pieces(Protocol):
    """Where lines come from: pieces of whole lines, in order."""

    def __next__(self) -> bytes: ...

    def pending(self) -> Future[object] | None: ...

    def close(self) -> None: ...


class Normalizer:
    """Reads one stream of lines and normalizes it, run by run.

    Its lines are held back up to the last local timestamp of a piece, since the next piece may go
    on with it: whatever `stamp` announces is complete.
    """

    def __init__(
        self,
        exchange: Exchange,
        pieces: Pieces,
        *,
        data_types: Sequence[DataType],
        symbols: Sequence[str] | None,
        start: int,
        sent: Collection[str],
        sends_disconnects: bool,
        strict: bool,
        on_malformed: Callable[[Malformed], None] | None = None,
    ) -> None:
        self.pieces = pieces
        self.malformed = 0
        self.exhausted = False
        self.failure: Exception | None = None
        self._exchange = exchange
        self._types = sources(data_types)
        self._strict = strict
        self._on_malformed = on_malformed
        self._sends_disconnects = sends_disconnects
        self._malformed_throttle = Throttle()
        self._ignored_throttle = Throttle()
        self._emitter = emit.create(exchange.name, data_types, sent)
        self._emitter.allow(exchange.allowed(self._types, symbols))
        self._eras = tuple(
            times.iso_us(era)[:_LOCAL_LENGTH].encode()
            for era in exchange.eras(self._types)
            if era > start
        )
        self._era = self._eras[0] if self._eras else _NO_ERA
        self._start = start
        self._handle: Callable[[bytes], bool] | None = None
        self._make_mapper(start)
        self._lines: list[bytes] = []
        self._next = 0
        self._held: list[bytes] = []
        self._local = ""
        self._disconnected = False
        self._before_hidden: list[Taken] = []
        self._hidden: Taken | None = None

    @property
    def name(self) -> str:
        """The exchange's."""
        return self._exchange.name

    @property
    def ignored_changes(self) -> int:
        """Book changes that came before the book's first snapshot."""
        return self._emitter.ignored_changes

    @property
    def needs_piece(self) -> bool:
        """Whether `read` has to be called before the next run."""
        return self._next == len(self._lines) and not self.exhausted

    @property
    def stamp(self) -> bytes | None:
        """The local time of the next line; None at the end. A disconnect has its predecessor's."""
        lines, at = self._lines, self._next
        if at == len(lines):
            lines, at = self._held, 0
        if at == len(lines):
            return None
        return lines[at][:_LOCAL_LENGTH] or self.last_stamp

    @property
    def last_stamp(self) -> bytes:
        """The local time of the last line that was normalized."""
        return self._local[:_LOCAL_LENGTH].encode()

    def read(self) -> None:
        """Take the next piece; blocks while it is being fetched."""
        lines: list[bytes] = []
        try:
            lines = next(self.pieces).split(b"\n")
        except StopIteration:
            self.exhausted = True
        except Exception as error:  # noqa: BLE001 - raised when what came before it is normalized
            self.exhausted = True
            self.failure = error
        else:
            lines.pop()
        if self._held:
            lines = self._held + lines
        border = len(lines) if self.exhausted else _last_stamp(lines)
        self._held = lines[border:]
        del lines[border:]
        self._lines, self._next = lines, 0

    def run(self, count: int, limit: bytes | None = None, *, inclusive: bool = False) -> int:
        """Normalize about `count` lines up to `limit`, and whole local timestamps only.

        With `inclusive` lines at the limit itself belong to the run. Returns how many lines it was.
        """
        lines = self._lines
        first = self._next
        end = min(len(lines), first + count)
        if limit is not None:
            end = self._up_to(limit, first, end, inclusive=inclusive)
        if max(map(len, lines[first:end])) > _LONG_LINE:
            # A book's snapshot takes milliseconds by itself.
            long = next(at for at in range(first, end) if len(lines[at]) > _LONG_LINE)
            end = max(long, first + 1)
        if not self._sends_disconnects and b"" in lines[first:end]:
            # What is hidden from the client comes last in its batch.
            end = lines.index(b"", first) + 1
        while end < len(lines) and (
            not lines[end] or lines[end][:_LOCAL_LENGTH] == lines[end - 1][:_LOCAL_LENGTH]
        ):
            end += 1
        self._next = end
        ignored = self._emitter.ignored_changes
        start = first
        while self._era is not _NO_ERA and max(lines[start:end]) >= self._era:
            border = next(at for at in range(start, end) if lines[at] >= self._era)
            self._normalize(lines[start:border])
            self._handle = None
            self._era = next((era for era in self._eras if era > self._era), _NO_ERA)
            start = border
        self._normalize(lines[start:end])
        if self._emitter.ignored_changes != ignored:
            self._report_ignored(self._emitter.ignored_changes - ignored)
        return end - first

    def take(self) -> Taken:
        """What was normalized since the last call."""
        if not self._before_hidden:
            return self._emitter.take()
        taken, self._before_hidden = self._before_hidden[0], []
        return taken

    def take_hidden(self) -> Taken | None:
        """Control events that the client did not ask for; they follow what `take` gives."""
        hidden, self._hidden = self._hidden, None
        return hidden

    def close_bars(self, local: str) -> None:
        """End the time bars in progress at this local time, when all lines are normalized."""
        self._emitter.begin(local)
        self._emitter.close_bars()

    def _up_to(self, limit: bytes, first: int, end: int, *, inclusive: bool) -> int:
        for at in range(first, end):
            stamp = self._lines[at][:_LOCAL_LENGTH]
            if stamp and (stamp > limit or (stamp == limit and not inclusive)):
                return at
        return end

    def _normalize(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        stamps = b"".join([line[:_STAMP_LENGTH] for line in lines])
        if stamps.translate(_DIGITS_AS_ZERO) != _STAMP_FORM * len(lines):
            self._normalize_checked(lines)
            return
        text = stamps.decode("ascii")
        self._disconnected = False
        begin = self._emitter.begin
        handle = self._handle or self._mapper_at(text)
        local = ""
        for line, at in zip(lines, range(0, len(text), _STAMP_LENGTH), strict=True):
            local = text[at : at + _LOCAL_LENGTH] + "Z"
            begin(local)
            try:
                handle(line[_STAMP_LENGTH:])
            except Exception as error:  # noqa: BLE001 - whatever a message contains
                self._reject(line, local, error)
        self._local = local

    def _normalize_checked(self, lines: Sequence[bytes]) -> None:
        """The same with lines among them that are empty or have no stamp."""
        proper: list[bytes] = []
        for line in lines:
            if line[:_STAMP_LENGTH].translate(_DIGITS_AS_ZERO) == _STAMP_FORM:
                proper.append(line)
                continue
            self._normalize(proper)
            proper = []
            if line:
                self._reject(line, self._local, ValueError("it does not begin with a local time"))
            else:
                self._disconnect()
        self._normalize(proper)

    def _disconnect(self) -> None:
        """Start mappers anew, as the recorder's connection did; several in a row are one.

        Bars and books go on for a client that is not told of it, as the Node server has it.
        """
        if self._disconnected:
            return
        self._disconnected = True
        self._handle = None
        if not self._local:
            return
        if self._sends_disconnects:
            self._emitter.reset()
            self._emitter.begin(self._local)
            self._emitter.disconnect()
        else:
            self._before_hidden = [self._emitter.take()]
            self._emitter.disconnect()
            self._hidden = self._emitter.take()

    def _mapper_at(self, local: str) -> Callable[[bytes], bool]:
        try:
            created = times.us_of(local[:_LOCAL_LENGTH] + "Z")
        except ValueError:  # digits, but no date: any era will do for what cannot be placed
            created = self._start
        return self._make_mapper(created)

    def _make_mapper(self, created: int) -> Callable[[bytes], bool]:
        self._handle = self._exchange.mapper(self._types, max(created, self._start), self._emitter)
        return self._handle

    def _reject(self, line: bytes, local: str, error: Exception) -> None:
        self.malformed += 1
        channel = getattr(error, "channel", None) or _channel_of(line)
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

    def _report_ignored(self, changes: int) -> None:
        if self._strict:
            raise NormalizeError(
                self._exchange.name,
                "book_change",
                self._local,
                f"{changes} book changes before the book's first snapshot",
            )
        held_back = self._ignored_throttle.allow()
        if held_back is not None:
            log.warning(
                "book changes before the first snapshot",
                extra={
                    "exchange": self._exchange.name,
                    "channel": "book_change",
                    "time": self._local,
                    "ignored": self._emitter.ignored_changes,
                    "held_back": held_back,
                },
            )


def _last_stamp(lines: Sequence[bytes]) -> int:
    """Where the last local timestamp begins; empty lines belong to what precedes them."""
    last = len(lines) - 1
    while last >= 0 and not lines[last]:
        last -= 1
    if last < 0:
        return 0
    stamp = lines[last][:_LOCAL_LENGTH]
    while last and lines[last - 1][:_LOCAL_LENGTH] == stamp:
        last -= 1
    return last


def _channel_of(line: bytes) -> str:
    found = _CHANNEL.search(line, 0, 400)
    return found[1].decode(errors="replace") if found else "unknown"
