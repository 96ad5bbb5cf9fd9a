"""Blocks of recorded lines: paced by a schedule, trimmed to a window."""

from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import accumulate
from typing import Protocol, Self

from tardis_machine.history import HistoryReader, ReaderClosedError
from tardis_machine.history.recorded_lines import LocalWindow, locals_of, split, within
from tardis_machine.replays.pacing import Schedule


class DueBlocks(Protocol):
    """Iterable of blocks of whole lines that says what the next block has to wait for.

    A replay calls it in the thread that iterates. Iterating blocks unless `due_in` was 0 and
    `pending` None.
    """

    def __iter__(self) -> Iterator[bytes]: ...

    def due_in(self) -> float:
        """Return the seconds until the next block is due."""

    def pending(self) -> Future[object] | None:
        """Return the future of the next block's download; None if it is there."""


class _AtOnce:
    """Blocks of a reader without a schedule."""

    def __init__(self, reader: HistoryReader) -> None:
        self._reader = reader
        self.pending = reader.pending

    def __iter__(self) -> Iterator[bytes]:
        return self._reader

    def due_in(self) -> float:
        return 0.0


class _Paced:
    """Blocks that end where the due lines end; a block may be empty.

    The next block is waited for unless `due_in` was 0. A line without a local time, or with an
    earlier one than the line before it, is due with that line.
    """

    def __init__(self, reader: HistoryReader, schedule: Schedule) -> None:
        self._reader = reader
        self._schedule = schedule
        self._lines: list[bytes] = []
        self._times: list[str] = []
        self._next = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if self._next == len(self._lines):
            self._lines = split(next(self._reader))
            last = self._times[-1] if self._times else ""
            self._times = list(accumulate(locals_of(self._lines), max, initial=last))[1:]
            self._next = 0
        elif not self._schedule.wait(self._times[self._next]):
            raise ReaderClosedError("the replay was closed before its end")
        first = self._next
        self._next = bisect_right(self._times, self._schedule.reached, first)
        return b"".join(line + b"\n" for line in self._lines[first : self._next])

    def due_in(self) -> float:
        if self._next == len(self._lines):
            return 0.0
        return self._schedule.due_in(self._times[self._next])

    def pending(self) -> Future[object] | None:
        return self._reader.pending() if self._next == len(self._lines) else None


class _Trimmed:
    """Blocks trimmed to a window of local times; a block may be empty.

    A disconnect before the first line counts as at `start`, where the first minute begins.
    """

    def __init__(self, blocks: DueBlocks, window: LocalWindow, start: str) -> None:
        self._blocks = blocks
        self._window = window
        self._last = start
        self.due_in = blocks.due_in
        self.pending = blocks.pending

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            kept, self._last = within(block, self._window, self._last)
            yield kept


def paced(
    reader: HistoryReader, schedule: Schedule | None, window: LocalWindow | None, start: str
) -> DueBlocks:
    """Return the blocks of a reader, paced if there is a schedule, trimmed if there is a window."""
    blocks = _AtOnce(reader) if schedule is None else _Paced(reader, schedule)
    return blocks if window is None else _Trimmed(blocks, window, start)
