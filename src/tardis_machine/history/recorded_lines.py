"""A recorded line: a local time, a space, the message; an empty line is a disconnect."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import accumulate
from operator import itemgetter
from typing import Final, Protocol

STAMP: Final = len("2019-06-01T00:00:00.1234567Z")
"""How long a line's stamp is."""
MESSAGE: Final = STAMP + 1
"""Where a line's message begins."""

# Of the seven fractional digits a normalized message prints six.
_LOCAL: Final = STAMP - 2
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_HEAD_FORM: Final = b"0000-00-00T00:00:00.0000000Z "
_STAMP_END: Final = b"Z "
_stamp_end: Final = itemgetter(slice(STAMP - 1, MESSAGE))


LocalWindow = tuple[str, str]
"""Local times, as messages print them, from the first (inclusive) to the second (exclusive)."""


class Blocks(Protocol):
    """Where lines come from: blocks of whole lines, in order."""

    def __next__(self) -> bytes: ...

    def pending(self) -> Future[object] | None: ...


class LineStream:
    """The lines of one stream, a block at a time, and the local time they have got to."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._exhausted = False
        self._reached: list[str] = []
        self.failure: Exception | None = None
        """What ended it, when there was more to come."""
        self.lines: list[bytes] = []
        """Those of the block."""
        self.count = 0
        """How many there are."""
        self.locals: list[str] = []
        """Their local times; empty for a disconnect, and for a line without a time."""
        self.next = 0
        """The first of them that is not done with."""
        self.last = ""
        """The local time of the last that is; whoever goes on keeps it."""

    @property
    def needs_block(self) -> bool:
        """Whether all lines are done with, and more may come."""
        return self.next == self.count and not self._exhausted

    @property
    def is_done(self) -> bool:
        """Whether all lines are done with, and none is to come."""
        return self._exhausted and self.next == self.count

    @property
    def reached(self) -> str | None:
        """The local time that lines to come have at least, as far as they are known."""
        if self.next < self.count:
            return self._earliest(self.next)
        return None if self._exhausted else self.last

    def pending(self) -> Future[object] | None:
        """Return the future that `read` would wait for."""
        return self._blocks.pending()

    def read(self) -> bool:
        """Take the next block; False if there is none. Blocks while it is being fetched."""
        self.next = 0
        block = b""
        try:
            block = next(self._blocks)
        except StopIteration:
            self._exhausted = True
        except Exception as error:  # noqa: BLE001 - raised when what came before it is taken
            self._exhausted = True
            self.failure = error
        self._index(block)
        return not self._exhausted

    def _index(self, block: bytes) -> None:
        self.lines = split(block)
        self.count = len(self.lines)
        self.locals = reached = locals_of(self.lines)
        if "" in reached:
            # A disconnect has the time of what precedes it; so has a line without a time.
            reached = list(accumulate(reached, _or_before, initial=self.last))[1:]
        if reached != sorted(reached):
            reached = list(accumulate(reversed(reached), min))[::-1]
        self._reached = reached

    def _earliest(self, at: int) -> str:
        return self._reached[at]


class Index(Protocol):
    """The kernel's list of a block's lines: no object for a line until it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: int, /) -> bytes: ...

    def message(self, at: int, /) -> bytes:
        """Return the message of a line that has a local time."""

    def local(self, at: int, /) -> str:
        """Return a line's local time; empty for a disconnect, and for a line without a time."""

    def reached(self, at: int, /) -> str:
        """Return the earliest local time from a line on."""

    def first_disconnect(self, first: int, end: int, /) -> int:
        """Return the first of these lines that is a disconnect, or `end`."""

    def first_since(self, local: str, first: int, end: int, /) -> int:
        """Return the first of these lines that has this local time or a later one, or `end`."""

    def first_longer(self, size: int, first: int, end: int, /) -> int:
        """Return the first of these lines that is longer than this, or `end`."""


class IndexedStream(LineStream):
    """A stream whose lines stay in their block; `index` tells where."""

    def __init__(self, blocks: Blocks, make: Callable[[bytes, str], Index]) -> None:
        super().__init__(blocks)
        self._make = make
        self.index = make(b"", "")

    def _index(self, block: bytes) -> None:
        self.index = self._make(block, self.last)
        self.count = len(self.index)

    def _earliest(self, at: int) -> str:
        return self.index.reached(at)


def _or_before(before: str, local: str) -> str:
    return local or before


def split(block: bytes) -> list[bytes]:
    """Return the lines of a block; whole lines, each with its end."""
    lines = block.split(b"\n")
    lines.pop()
    return lines


def locals_of(lines: Sequence[bytes]) -> list[str]:
    """Return the local time of each line as messages print it; empty where a line has none."""
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
    """Tell, at a glance, whether all lines have a stamp."""
    return set(map(_stamp_end, lines)) == {_STAMP_END}


def is_stamped(line: bytes) -> bool:
    """As `are_stamped`."""
    return line[STAMP - 1 : MESSAGE] == _STAMP_END


def with_messages(lines: Sequence[bytes], between: bytes) -> list[bytes]:
    """Stamped lines with something else than a space between stamp and message."""
    # The first of these in a line ends its time: quicker than cutting the line in two.
    return [line.replace(_STAMP_END, b"Z" + between, 1) for line in lines]


def stamp_of(minute: int) -> bytes:
    """Return the first stamp of a minute, counted since the epoch."""
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%dT%H:%M}:00.0000000Z".encode()


def minute_of(stamp: bytes) -> int:
    """Return the minute of a stamp, counted since the epoch."""
    moment = datetime.fromisoformat(stamp[:16].decode()).replace(tzinfo=UTC)
    return int(moment.timestamp()) // 60


def first_stamp(block: bytes) -> bytes:
    """Return the stamp of a block's first line; empty if it has none but disconnects."""
    return block.lstrip(b"\n")[:STAMP] if block[:1] == b"\n" else block[:STAMP]


def last_stamp(block: bytes) -> bytes:
    """Return the stamp of a block's last line; empty if it has none but disconnects."""
    end = len(block.rstrip(b"\n")) if block.endswith(b"\n\n") else len(block) - 1
    if end <= 0:
        return b""
    start = block.rfind(b"\n", 0, end) + 1
    return block[start : start + STAMP]


def count_stamped(blocks: Sequence[bytes], stamp: bytes) -> int:
    """How many lines of these blocks have that stamp."""
    return sum(line.startswith(stamp) for block in blocks for line in block.split(b"\n"))


def skip(block: bytes, count: int) -> tuple[bytes, int]:
    """Leave out the first `count` lines that are no disconnects; how many are left to skip."""
    start = 0
    while count and start < len(block):
        end = block.index(b"\n", start) + 1
        count -= end - start > 1
        start = end
    return block[start:], count


def select(block: bytes, wanted: Callable[[bytes], bool]) -> bytes:
    """Keep a block's disconnects and the lines whose message is wanted."""
    kept = [line for line in split(block) if not line or wanted(line[MESSAGE:])]
    return b"\n".join([*kept, b""]) if kept else b""


def within(block: bytes, window: LocalWindow, before: str) -> tuple[bytes, str]:
    """Keep the lines of a block whose local time is inside a window.

    A disconnect has the time of what precedes it, and so has a line without a time: `before` at
    the start of the block. Returned with the time of the last line.
    """
    lines = split(block)
    reached = list(accumulate(locals_of(lines), _or_before, initial=before))[1:]
    start, end = window
    kept = [line for line, local in zip(lines, reached, strict=True) if start <= local < end]
    last = reached[-1] if reached else before
    return block if len(kept) == len(lines) else b"".join(line + b"\n" for line in kept), last


class StampRange:
    """Cuts a file's blocks to the lines stamped from `start` up to before `end`.

    A disconnect at a border is kept, on either side of it: several in a row count once, whereas
    one that is dropped is lost.
    """

    def __init__(self, start: bytes, end: bytes) -> None:
        self.start = start
        self.end = end
        self.passed = False
        self._disconnected = False

    def cut(self, block: bytes) -> bytes:
        """Return the block's lines inside; `passed` tells that no more will come."""
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
        """Return what the file has after its last block: a disconnect that no line follows."""
        return b"\n" if self._disconnected else b""
