"""Recorded lines: a local time, a space and a message each; an empty line is a disconnect."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import accumulate
from operator import itemgetter
from typing import Final, Protocol

STAMP: Final = len("2019-06-01T00:00:00.1234567Z")
"""Length of a line's stamp."""
MESSAGE: Final = STAMP + 1
"""Offset of the message in a line."""

# A stamp has seven fractional digits, a normalized message prints six.
_LOCAL: Final = STAMP - 2
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_HEAD_FORM: Final = b"0000-00-00T00:00:00.0000000Z "
_STAMP_END: Final = b"Z "
_stamp_end: Final = itemgetter(slice(STAMP - 1, MESSAGE))


LocalWindow = tuple[str, str]
"""A range of local times as messages print them: from the first to before the second."""


class Blocks(Protocol):
    """A source of recorded lines in order, as blocks of whole lines.

    A `LineStream` calls both methods, from one thread at a time.
    """

    def __next__(self) -> bytes:
        """Return the next block, which may be empty; block until it is there.

        Raises StopIteration at the end. Any other exception ends the stream.
        """

    def pending(self) -> Future[object] | None:
        """Return the future that `__next__` would wait for; None if it would not wait."""


class LineStream:
    """The lines of one stream, a block at a time, with their local times.

    The caller handles lines and advances `next` and `last`.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._exhausted = False
        self._reached: list[str] = []
        self.failure: Exception | None = None
        """The exception that ended the stream before its end; None if there was none."""
        self.lines: list[bytes] = []
        """The lines of the current block."""
        self.count = 0
        """Number of lines in the block."""
        self.locals: list[str] = []
        """Local times of the lines; empty for a disconnect and for a line without a time."""
        self.next = 0
        """Index of the first line that is not handled."""
        self.last = ""
        """Local time of the last line that was handled; the caller sets it with `next`."""

    @property
    def needs_block(self) -> bool:
        """Whether all lines of the block are handled and another block may follow."""
        return self.next == self.count and not self._exhausted

    @property
    def is_done(self) -> bool:
        """Whether all lines are handled and no block follows."""
        return self._exhausted and self.next == self.count

    @property
    def reached(self) -> str | None:
        """The earliest local time of the lines that are not handled; None at the end.

        Between blocks it is the time of the last line that was handled.
        """
        if self.next < self.count:
            return self._earliest(self.next)
        return None if self._exhausted else self.last

    def pending(self) -> Future[object] | None:
        """Return the future that `read` would wait for; None if it would not wait."""
        return self._blocks.pending()

    def read(self) -> bool:
        """Read the next block, blocking while it is fetched; return False at the end.

        An exception of the source ends the stream and is kept in `failure`.
        """
        self.next = 0
        block = b""
        try:
            block = next(self._blocks)
        except StopIteration:
            self._exhausted = True
        except Exception as error:  # noqa: BLE001 - the caller raises it after the lines before it
            self._exhausted = True
            self.failure = error
        self._index(block)
        return not self._exhausted

    def _index(self, block: bytes) -> None:
        self.lines = split(block)
        self.count = len(self.lines)
        self.locals = reached = locals_of(self.lines)
        if "" in reached:
            # A disconnect, or a line without a time, counts as of the time of the line before.
            reached = list(accumulate(reached, _or_before, initial=self.last))[1:]
        if reached != sorted(reached):
            reached = list(accumulate(reversed(reached), min))[::-1]
        self._reached = reached

    def _earliest(self, at: int) -> str:
        return self._reached[at]


class Index(Protocol):
    """The kernel's list of a block's lines, which creates Python objects on access only."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> bytes: ...

    def message(self, at: int, /) -> bytes:
        """Return the message of a line that has a local time."""

    def local(self, at: int, /) -> str:
        """Return a line's local time; empty for a disconnect, and for a line without a time."""

    def reached(self, at: int, /) -> str:
        """Return the earliest local time of a line and those after it."""

    def first_disconnect(self, first: int, end: int, /) -> int:
        """Return the first of these lines that is a disconnect, or `end`."""

    def first_since(self, local: str, first: int, end: int, /) -> int:
        """Return the first of these lines that has this local time or a later one, or `end`."""

    def first_longer(self, size: int, first: int, end: int, /) -> int:
        """Return the first of these lines that is longer than this, or `end`."""


class IndexedStream(LineStream):
    """A stream whose lines stay in their block; the kernel's `index` finds them."""

    def __init__(self, blocks: Blocks, create_index: Callable[[bytes, str], Index]) -> None:
        super().__init__(blocks)
        self._create_index = create_index
        self.index = create_index(b"", "")

    def _index(self, block: bytes) -> None:
        self.index = self._create_index(block, self.last)
        self.count = len(self.index)

    def _earliest(self, at: int) -> str:
        return self.index.reached(at)


def _or_before(before: str, local: str) -> str:
    return local or before


def split(block: bytes) -> list[bytes]:
    """Return the lines of a block of whole lines, without their line ends."""
    lines = block.split(b"\n")
    lines.pop()
    return lines


def locals_of(lines: Sequence[bytes]) -> list[str]:
    """Return the local time of each line as messages print it; empty for a line without one."""
    heads = b"".join([line[:MESSAGE] for line in lines])
    if heads.translate(_DIGITS_AS_ZERO) == _HEAD_FORM * len(lines):
        text = heads.decode("ascii")
        return [text[at : at + _LOCAL] + "Z" for at in range(0, len(text), MESSAGE)]
    return [_local_of(line) for line in lines]


def _local_of(line: bytes) -> str:
    head = line[:MESSAGE]
    if head.translate(_DIGITS_AS_ZERO) != _HEAD_FORM:
        return ""
    return head[:_LOCAL].decode("ascii") + "Z"


def are_stamped(lines: Sequence[bytes]) -> bool:
    """Return whether all lines have a stamp; looks only at the bytes where a stamp ends."""
    return set(map(_stamp_end, lines)) == {_STAMP_END}


def is_stamped(line: bytes) -> bool:
    """Return whether a line has a stamp; looks only at the bytes where a stamp ends."""
    return line[STAMP - 1 : MESSAGE] == _STAMP_END


def with_messages(lines: Sequence[bytes], between: bytes) -> list[bytes]:
    """Return stamped lines with `between` instead of the space between stamp and message."""
    # The first "Z " of a line ends its stamp. Replacing it is faster than slicing the line.
    return [line.replace(_STAMP_END, b"Z" + between, 1) for line in lines]


def stamp_of(minute: int) -> bytes:
    """Return the first stamp of a minute, counted since the epoch."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M}:00.0000000Z".encode()


def minute_of(stamp: bytes) -> int:
    """Return the minute of a stamp, counted since the epoch."""
    moment = datetime.fromisoformat(stamp[:16].decode()).replace(tzinfo=UTC)
    return int(moment.timestamp()) // 60


def first_stamp(block: bytes) -> bytes:
    """Return the stamp of a block's first line that is no disconnect; empty if there is none."""
    return block.lstrip(b"\n")[:STAMP] if block[:1] == b"\n" else block[:STAMP]


def last_stamp(block: bytes) -> bytes:
    """Return the stamp of a block's last line that is no disconnect; empty if there is none."""
    end = len(block.rstrip(b"\n")) if block.endswith(b"\n\n") else len(block) - 1
    if end <= 0:
        return b""
    start = block.rfind(b"\n", 0, end) + 1
    return block[start : start + STAMP]


def count_stamped(blocks: Sequence[bytes], stamp: bytes) -> int:
    """Return how many lines of blocks have a stamp."""
    return sum(line.startswith(stamp) for block in blocks for line in block.split(b"\n"))


def skip(block: bytes, count: int) -> tuple[bytes, int]:
    """Drop the first `count` lines with their disconnects; return the rest and the count left."""
    start = 0
    while count and start < len(block):
        end = block.index(b"\n", start) + 1
        count -= end - start > 1
        start = end
    return block[start:], count


def select(block: bytes, wanted: Callable[[bytes], bool]) -> bytes:
    """Return a block with its disconnects and the lines whose message is wanted."""
    kept = [line for line in split(block) if not line or wanted(line[MESSAGE:])]
    return b"\n".join([*kept, b""]) if kept else b""


def within(block: bytes, window: LocalWindow, before: str) -> tuple[bytes, str]:
    """Return the lines of a block whose local time is inside a window, and the last line's time.

    A disconnect, or a line without a time, counts as of the time of the line before; at the start
    of the block that is `before`.
    """
    lines = split(block)
    reached = list(accumulate(locals_of(lines), _or_before, initial=before))[1:]
    start, end = window
    kept = [line for line, local in zip(lines, reached, strict=True) if start <= local < end]
    last = reached[-1] if reached else before
    return block if len(kept) == len(lines) else b"".join(line + b"\n" for line in kept), last


class StampRange:
    """A filter that cuts a file's blocks to the lines stamped from `start` to before `end`.

    Disconnects at both borders are kept, even if they may be outside: readers of lines count
    several in a row once, but a dropped one would be lost.
    """

    def __init__(self, start: bytes, end: bytes) -> None:
        self.start = start
        self.end = end
        self.passed = False
        self._disconnected = False

    def cut(self, block: bytes) -> bytes:
        """Return the lines of a block inside the range; set `passed` at the first line after it."""
        first, last = first_stamp(block), last_stamp(block)
        if first >= self.start and last < self.end and not self._disconnected:
            return block
        kept: list[bytes] = [b"\n"] if self._disconnected else []
        for line in split(block):
            stamp = line[:STAMP]
            if not stamp or self.start <= stamp < self.end:
                kept.append(line + b"\n")
            elif stamp < self.start:
                kept.clear()
            else:
                self.passed = True
                break
        self._disconnected = last < self.start and bool(kept)
        return b"" if self._disconnected else b"".join(kept)

    def rest(self) -> bytes:
        """Return the disconnect that `cut` held back at the end of the file, or no bytes."""
        return b"\n" if self._disconnected else b""
