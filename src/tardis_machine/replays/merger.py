"""Merge of normalized or raw streams by local time."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate, repeat
from operator import itemgetter
from types import ModuleType
from typing import Final, NamedTuple, Protocol

import msgspec

from tardis_machine.engine import Taken, Written
from tardis_machine.engine.choice import kernel
from tardis_machine.history import ReaderClosedError
from tardis_machine.history.recorded_lines import LocalWindow
from tardis_machine.replays.pacing import Schedule


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Whole lines of messages with complete local times; may be empty.

    A local time never continues in the next chunk. `hidden` are control events after these
    messages that the client did not request; they are only published.
    """

    data: Written
    count: int
    hidden: bytes = b""
    hidden_count: int = 0


class Batch(Chunk, frozen=True, gc=False):
    """An immutable copy of a chunk, safe to hand to callers."""

    data: bytes


class Part(NamedTuple):
    """Consecutive local times of one run of a stream, with all their messages."""

    stream: int
    run: "_Run"
    first: int
    end: int


class Merged:
    """Result of a merge step: parts of the streams' runs, in the order of the streams."""

    __slots__ = ("_parts", "count", "hidden")

    def __init__(
        self, count: int = 0, parts: Sequence[Part] = (), hidden: Sequence[Taken] = ()
    ) -> None:
        self.count = count
        self.hidden = hidden
        self._parts = parts

    def chunk(self) -> Chunk:
        """Return the messages as a chunk, without a copy if they are of one run."""
        if self is _NOTHING:
            return _NO_CHUNK
        return Chunk(self._data(), self.count, *self._hidden())

    def batch(self) -> Batch:
        """Return the messages as an immutable batch."""
        return Batch(bytes(self._data()), self.count, *self._hidden())

    def _hidden(self) -> tuple[bytes, int]:
        if not self.hidden:
            return b"", 0
        hidden = b"".join(taken.data for taken in self.hidden)
        return hidden, sum(taken.count for taken in self.hidden)

    def by_stream(self) -> Iterator[tuple[int, bytes]]:
        """Return whole lines in order, with the number of the stream that they come from."""
        if self._is_of_one:
            return (
                (stream, bytes(run.data(first, end))) for stream, run, first, end in self._parts
            )
        messages, order = self._interleaved()
        streams = [
            stream for stream, run, first, end in self._parts for _ in range(run.count(first, end))
        ]
        return ((streams[at], messages[at] + b"\n") for at in order)

    @property
    def _is_of_one(self) -> bool:
        parts = self._parts
        return not parts or parts[0].stream == parts[-1].stream

    def _data(self) -> Written:
        if self._is_of_one:
            data = [run.data(first, end) for _, run, first, end in self._parts]
            return data[0] if len(data) == 1 else b"".join(data)
        module = kernel().module
        if module is not None and all(part.run.is_of(module) for part in self._parts):
            runs = [(run.taken, first, end) for _, run, first, end in self._parts]
            interleaved: bytes = module.interleave(runs)
            return interleaved
        messages, order = self._interleaved()
        return b"\n".join((*itemgetter(*order)(messages), b""))

    def _interleaved(self) -> tuple[Sequence[bytes], Sequence[int]]:
        """Return all messages, and their indexes in the order of local time."""
        keys: list[str] = []
        messages: list[bytes] = []
        for _, run, first, end in self._parts:
            run.extend(keys, messages, first, end)
        # Each run is in order: sorting only interleaves them, and is stable at equal times.
        return messages, sorted(range(len(keys)), key=keys.__getitem__)


class Stream(Protocol):
    """Input of a merge: runs of messages, and the local time that they have reached.

    The merge calls it in the thread that iterates over the replay. It raises an error of `read` or
    `run` once all earlier messages of all streams are sent.
    """

    @property
    def reached(self) -> str | None:
        """Earliest local time that later messages can have; None after the last message."""

    @property
    def needs_block(self) -> bool:
        """Whether `read` has to be called before the next run."""

    @property
    def failure(self) -> Exception | None:
        """The error that ended the stream; None while it can go on."""

    def pending(self) -> Future[object] | None:
        """Return the future of the block that `read` would wait for; None if it is there."""

    def read(self) -> object:
        """Read the next block of lines; wait for its download."""

    def run(self, *, is_next: bool) -> None:
        """Convert lines for a few milliseconds.

        `is_next` is true if all earlier messages of this stream have been sent.
        """

    @property
    def pours(self) -> bool:
        """Whether the stream writes its messages to the socket itself, so `take` can wait."""

    def take(self) -> Taken:
        """Return the messages of the runs since the last call."""

    def take_hidden(self) -> Taken | None:
        """Return the control events after those of `take` that the client did not request."""


_NOTHING: Final = Merged()
_NO_CHUNK: Final = Chunk(b"", 0)


class StreamMerger:
    """Merge of streams that sends a message once no stream can yield an earlier one.

    Messages are ordered by local time; at equal times, by the order of the streams. A stream whose
    times go back keeps its own order: a late message counts as at the time of the one before it.
    Messages outside the window of their stream are left out.
    """

    def __init__(
        self, streams: Sequence[Stream], windows: Sequence[LocalWindow | None] = ()
    ) -> None:
        windows = windows or [None] * len(streams)
        self._queues = [
            _Queue(stream, window) for stream, window in zip(streams, windows, strict=True)
        ]

    def pending(self) -> Future[object] | None:
        """Return the future of the download that the next step needs; None if it will not block."""
        queue = self._behind()
        if queue is None or queue.failure is not None or not queue.stream.needs_block:
            return None
        return queue.stream.pending()

    def steps(self) -> Iterator[Merged]:
        """Yield merge steps of a few milliseconds each, up to the end; a step may be empty."""
        queue = self._behind()
        while queue is not None:
            if queue.failure is not None:
                # All messages before the failure are complete, so they are sent first.
                yield from self._up_to(queue.last, inclusive=True)
                raise queue.failure
            queue.step()
            queue = self._behind()
            yield from self._up_to(None if queue is None else queue.reached)

    def due_in(self) -> float:
        """Return 0: without a schedule, the next step is always due."""
        return 0.0

    def _behind(self) -> "_Queue | None":
        """Return the queue whose stream has reached the earliest local time; None at the end."""
        behind, least = None, ""
        for queue in self._queues:
            reached = queue.reached
            if reached is not None and (behind is None or reached < least):
                behind, least = queue, reached
        return behind

    def _up_to(self, limit: str | None, *, inclusive: bool = False) -> Iterator[Merged]:
        """Yield the messages before a local time; a hidden event ends its step."""
        if all(queue.is_empty for queue in self._queues):
            yield _NOTHING
            return
        while True:
            times = [queue.hidden[0][0] for queue in self._queues if queue.hidden]
            if not times:
                break
            hidden = min(times)
            if not (limit is None or hidden < limit or (inclusive and hidden == limit)):
                break
            yield self._cut(hidden, inclusive=True)
        yield self._cut(limit, inclusive=inclusive)

    def _cut(self, limit: str | None, *, inclusive: bool) -> Merged:
        parts: list[Part] = []
        count = 0
        hidden: list[Taken] = []
        for number, queue in enumerate(self._queues):
            for run in queue.runs:
                first, end = run.next, run.advance(limit, inclusive=inclusive)
                if end > first:
                    parts.append(Part(number, run, first, end))
                    count += run.count(first, end)
            while queue.runs and queue.runs[0].is_done:
                queue.runs.popleft()
            while inclusive and queue.hidden and queue.hidden[0][0] == limit:
                hidden.append(queue.hidden.popleft()[1])
        return Merged(count, parts, hidden) if parts or hidden else _NOTHING


class PacedStreamMerger(StreamMerger):
    """Merge by a schedule: it keeps messages until they are due, and streams do not run ahead."""

    def __init__(
        self,
        streams: Sequence[Stream],
        schedule: Schedule,
        windows: Sequence[LocalWindow | None] = (),
    ) -> None:
        super().__init__(streams, windows)
        self._schedule = schedule

    def due_in(self) -> float:
        upcoming = self._upcoming()
        return 0.0 if upcoming is None else self._schedule.due_in(upcoming)

    def pending(self) -> Future[object] | None:
        return super().pending() if self._is_due(self._behind()) else None

    def steps(self) -> Iterator[Merged]:
        """Yield merge steps up to the end; sleep before a step unless `due_in` was 0."""
        while (upcoming := self._upcoming()) is not None:
            if not self._schedule.wait(upcoming):
                raise ReaderClosedError("the replay was closed before its end")
            queue = self._behind()
            if queue is not None and self._is_due(queue):
                if queue.failure is not None:
                    yield from self._up_to(queue.last, inclusive=True)
                    raise queue.failure
                queue.step()
                queue = self._behind()
            if queue is not None and self._is_due(queue):
                yield from self._up_to(queue.reached)
            else:
                yield from self._up_to(self._schedule.reached, inclusive=True)

    def _upcoming(self) -> str | None:
        """Return the local time at which the next step is due; None at the end."""
        return min((time for queue in self._queues for time in queue.upcoming()), default=None)

    def _is_due(self, queue: "_Queue | None") -> bool:
        """Return whether the local time that a stream has reached is due."""
        reached = None if queue is None else queue.reached
        return reached is not None and reached <= self._schedule.reached


def merge(
    streams: Sequence[Stream],
    schedule: Schedule | None = None,
    windows: Sequence[LocalWindow | None] = (),
) -> StreamMerger:
    """Return the merge of streams, paced if there is a schedule, each trimmed to its window."""
    return (
        StreamMerger(streams, windows)
        if schedule is None
        else PacedStreamMerger(streams, schedule, windows)
    )


class _Queue:
    """A stream of a merge, and its messages that are not sent yet."""

    def __init__(self, stream: Stream, window: LocalWindow | None) -> None:
        self.stream = stream
        self._window = window
        self.runs: deque[_Run] = deque()
        self.hidden: deque[tuple[str, Taken]] = deque()
        self.last = ""
        self.failure: Exception | None = None
        self.reached: str | None = stream.reached
        """Earliest local time that later messages of the stream can have; None after the last."""

    def upcoming(self) -> Iterator[str]:
        """Yield the local times of the next run, the next event and the next line of the stream."""
        if self.runs:
            yield self.runs[0].key
        if self.hidden:
            yield self.hidden[0][0]
        if (reached := self.reached) is not None:
            yield reached

    @property
    def is_empty(self) -> bool:
        """Whether all messages and events of the stream so far are sent."""
        return not (self.runs or self.hidden)

    def step(self) -> None:
        """Run the stream for one step, and queue its messages."""
        if self.stream.needs_block:
            self._go(self.stream.read)
        else:
            self._go(partial(self.stream.run, is_next=self.is_empty))
            if self._can_read():
                self._go(self.stream.read)
        reached = self.last if self.failure is not None else self.stream.reached
        self.reached = None if reached is None else max(reached, self.last)

    def _can_read(self) -> bool:
        """Return whether the stream needs the next block and it is downloaded already.

        The last local time of a block may continue in the next one. With the next block read, the
        run need not be split at that time, which would copy all its messages.
        """
        stream = self.stream
        return self.failure is None and stream.needs_block and stream.pending() is None

    def _go(self, on: Callable[[], object]) -> None:
        try:
            on()
            self.failure = self.stream.failure
        except Exception as error:  # noqa: BLE001 - `steps` raises it in order
            self.failure = error
        if self.failure is None and self.stream.pours:
            return
        taken = self.stream.take()
        if taken.count:
            keys = taken.stamps
            if keys[0] < self.last or not taken.is_ordered:
                keys = list(accumulate(keys, max, initial=self.last))[1:]
            self.last = keys[-1]
            if self._window is not None:
                taken, keys = _trimmed(taken, keys, self._window)
            if taken.count:
                self.runs.append(_Run(taken, keys, keys[-1]))
        hidden = self.stream.take_hidden()
        if hidden is not None:
            self.last = max(self.last, hidden.stamps[0])
            if self._window is None or self._window[0] <= hidden.stamps[0] < self._window[1]:
                self.hidden.append((self.last, hidden))


def _trimmed(taken: Taken, keys: Sequence[str], window: LocalWindow) -> tuple[Taken, Sequence[str]]:
    """Return the messages whose local time is inside a half-open window, and their sort keys.

    An exact replay reads whole minutes, since books and bars need the messages around the window.
    A run is never empty.
    """
    start, end = window
    stamps = taken.stamps
    if taken.is_ordered and start <= stamps[0] and stamps[-1] < end:
        return taken, keys
    stamps = list(stamps)
    kept = [at for at, stamp in enumerate(stamps) if start <= stamp < end]
    data, ends, counts = taken.data, [0, *taken.ends], [0, *taken.counts]
    parts = [data[ends[at] : ends[at + 1]] for at in kept]
    numbers = [counts[at + 1] - counts[at] for at in kept]
    return Taken(
        b"".join(parts),
        sum(numbers),
        [stamps[at] for at in kept],
        list(accumulate(map(len, parts))),
        list(accumulate(numbers)),
    ), [keys[at] for at in kept]


class _Run:
    """Messages of one run of a stream, sent in parts that end with a local time.

    A local time that goes back counts as the latest one before it.
    """

    __slots__ = ("_counts", "_ends", "_keys", "_last", "_messages", "_size", "next", "taken")

    def __init__(self, taken: Taken, keys: Sequence[str], last: str) -> None:
        self.taken = taken
        self._keys = keys
        self._last = last
        self._size = len(keys)
        # Read once, when needed: a compiled emitter builds them at each access.
        self._ends: Sequence[int] = ()
        self._counts: Sequence[int] = ()
        self._messages: list[bytes] = []
        self.next = 0

    @property
    def is_done(self) -> bool:
        return self.next == self._size

    @property
    def key(self) -> str:
        """Local time of the next message."""
        return self._keys[self.next]

    def is_of(self, module: ModuleType) -> bool:
        """Return whether messages and keys are objects of the compiled engine."""
        return type(self.taken) is module.Taken and type(self._keys) is module.Column

    def advance(self, limit: str | None, *, inclusive: bool) -> int:
        """Move `next` behind the keys before a limit, and return it."""
        if limit is None or self._last < limit:
            self.next = self._size
        else:
            find = bisect_right if inclusive else bisect_left
            self.next = find(self._keys, limit, self.next)
        return self.next

    def count(self, first: int, end: int) -> int:
        """Return the number of messages of these keys."""
        if first == 0 and end == self._size:
            return self.taken.count
        start, stop = self._span(first, end)
        return stop - start

    def data(self, first: int, end: int) -> Written:
        """Return the lines of these keys."""
        if first == 0 and end == self._size:
            return self.taken.written
        ends = self._ends = self._ends or self.taken.ends
        return self.taken.written[ends[first - 1] if first else 0 : ends[end - 1]]

    def extend(self, keys: list[str], messages: list[bytes], first: int, end: int) -> None:
        """Append the messages without their line ends, and a key for each of them."""
        if not self._messages:
            self._messages = self.taken.data.split(b"\n")
        if self._size == self.taken.count:
            keys += self._keys[first:end]
            messages += self._messages[first:end]
            return
        for at in range(first, end):
            keys += repeat(self._keys[at], self.count(at, at + 1))
        start, stop = self._span(first, end)
        messages += self._messages[start:stop]

    def _span(self, first: int, end: int) -> tuple[int, int]:
        counts = self._counts = self._counts or self.taken.counts
        return counts[first - 1] if first else 0, counts[end - 1]
