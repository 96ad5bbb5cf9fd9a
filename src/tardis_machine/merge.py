"""Streams merged by local time: each runs ahead by a little, the merge cuts where times end."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate, pairwise, repeat
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from tardis_machine.emit import Taken


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Whole lines that never end inside a local timestamp; may be empty.

    `hidden` are control events that follow, and that the client did not ask for.
    """

    data: bytes
    count: int
    hidden: bytes = b""
    hidden_count: int = 0


class Merged(msgspec.Struct, frozen=True, gc=False):
    """The same of several streams: each part with the stream that it comes from, in order."""

    parts: Sequence[tuple[int, bytes]] = ()
    count: int = 0
    hidden: Sequence[Taken] = ()

    def batch(self) -> Batch:
        """All parts as one."""
        parts = self.parts
        data = parts[0][1] if len(parts) == 1 else b"".join([part for _, part in parts])
        if not self.hidden:
            return Batch(data, self.count)
        hidden = b"".join(taken.data for taken in self.hidden)
        return Batch(data, self.count, hidden, sum(taken.count for taken in self.hidden))


class Stream(Protocol):
    """What can be merged: it gives runs of messages, and tells how far it has got."""

    @property
    def reached(self) -> str | None:
        """No message to come has an earlier local time; None when none is to come."""

    @property
    def needs_piece(self) -> bool:
        """Whether `read` has to be called before the next run."""

    @property
    def failure(self) -> Exception | None:
        """What ended it, once all that came before is taken."""

    def pending(self) -> Future[object] | None:
        """What `read` would have to wait for."""

    def read(self) -> None:
        """Take what the next runs are made of; blocks while it is being fetched."""

    def run(self) -> None:
        """Go on for a few milliseconds."""

    def take(self) -> Taken:
        """The messages of the runs since the last call."""

    def take_hidden(self) -> Taken | None:
        """Control events that the client did not ask for; they follow what `take` gives."""


_NOTHING: Final = Merged()
_key: Final = itemgetter(0)


class Merge:
    """Runs streams in turn and gives out what none of them can add to any more.

    Ordered by local time, at equal ones by the order of the streams. A stream whose times go
    back keeps its own order: what is late comes as soon as what preceded it.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._queues = [_Queue(stream) for stream in streams]

    def pending(self) -> Future[object] | None:
        """What the next step has to wait for; None if it will not block."""
        queue = self._behind()
        if queue is None or queue.failure is not None or not queue.stream.needs_piece:
            return None
        return queue.stream.pending()

    def steps(self) -> Iterator[Merged]:
        """Merge to the end, a few milliseconds a step; a step may give nothing."""
        queue = self._behind()
        while queue is not None:
            if queue.failure is not None:
                # What precedes it is whole, and is sent.
                yield from self._up_to(queue.last, inclusive=True)
                raise queue.failure
            queue.step()
            queue = self._behind()
            yield from self._up_to(None if queue is None else queue.reached)

    def _behind(self) -> "_Queue | None":
        """The stream that has got least far."""
        behind, least = None, ""
        for queue in self._queues:
            reached = queue.reached
            if reached is not None and (behind is None or reached < least):
                behind, least = queue, reached
        return behind

    def _up_to(self, limit: str | None, *, inclusive: bool = False) -> Iterator[Merged]:
        """What comes before a local time; with hidden events a batch of its own for each."""
        while True:
            hidden = min((each.hidden[0][0] for each in self._queues if each.hidden), default=None)
            if hidden is None or not (
                limit is None or hidden < limit or (inclusive and hidden == limit)
            ):
                break
            yield self._cut(hidden, inclusive=True)
        yield self._cut(limit, inclusive=inclusive)

    def _cut(self, limit: str | None, *, inclusive: bool) -> Merged:
        found: list[tuple[int, _Run, int, int]] = []
        hidden: list[Taken] = []
        for index, queue in enumerate(self._queues):
            for run in queue.runs:
                end = run.end(limit, inclusive=inclusive)
                if end > run.next:
                    found.append((index, run, run.next, end))
                    run.next = end
            while queue.runs and queue.runs[0].next == len(queue.runs[0].keys):
                queue.runs.popleft()
            while inclusive and queue.hidden and queue.hidden[0][0] == limit:
                hidden.append(queue.hidden.popleft()[1])
        if not found:
            return Merged(hidden=hidden) if hidden else _NOTHING
        count = sum(run.count(first, end) for _, run, first, end in found)
        if all(index == found[0][0] for index, _, _, _ in found):
            parts = [(index, run.data(first, end)) for index, run, first, end in found]
        else:
            # Each run is in order: sorting only interleaves them, and is stable at equal times.
            entries = [each for index, run, a, b in found for each in run.entries(index, a, b)]
            entries.sort(key=_key)
            parts = [(index, data) for _, index, data in entries]
        return Merged(parts, count, hidden)


class _Queue:
    """A stream, and what it gave that is not given out yet."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.runs: deque[_Run] = deque()
        self.hidden: deque[tuple[str, Taken]] = deque()
        self.last = ""
        self.failure: Exception | None = None

    @property
    def reached(self) -> str | None:
        """The local time below which the stream will give nothing more."""
        if self.failure is not None:
            return self.last
        reached = self.stream.reached
        return None if reached is None else max(reached, self.last)

    def step(self) -> None:
        """Let the stream go on, and take over what it gives."""
        try:
            if self.stream.needs_piece:
                self.stream.read()
            else:
                self.stream.run()
            self.failure = self.stream.failure
        except Exception as error:  # noqa: BLE001 - raised when its turn has come
            self.failure = error
        self._take()

    def _take(self) -> None:
        taken = self.stream.take()
        if taken.count:
            keys = list(taken.stamps)
            if keys[0] < self.last or keys != sorted(keys):
                keys = list(accumulate(keys, max, initial=self.last))[1:]
            self.last = keys[-1]
            self.runs.append(_Run(taken, keys))
        hidden = self.stream.take_hidden()
        if hidden is not None:
            self.last = max(self.last, hidden.stamps[0])
            self.hidden.append((self.last, hidden))


class _Run:
    """One take, cut where its local times end; times that go back count as the latest before."""

    __slots__ = ("_taken", "keys", "next")

    def __init__(self, taken: Taken, keys: Sequence[str]) -> None:
        self._taken = taken
        self.keys = keys
        self.next = 0

    def end(self, limit: str | None, *, inclusive: bool) -> int:
        """Where the keys before a limit end."""
        if limit is None:
            return len(self.keys)
        return (bisect_right if inclusive else bisect_left)(self.keys, limit, self.next)

    def count(self, first: int, end: int) -> int:
        counts = self._taken.counts
        return counts[end - 1] - (counts[first - 1] if first else 0)

    def data(self, first: int, end: int) -> bytes:
        ends = self._taken.ends
        if first == 0 and end == len(ends):
            return self._taken.data
        return self._taken.data[ends[first - 1] if first else 0 : ends[end - 1]]

    def entries(self, index: int, first: int, end: int) -> Iterator[tuple[str, int, bytes]]:
        data, ends = self._taken.data, self._taken.ends
        borders = [ends[first - 1] if first else 0, *ends[first:end]]
        return zip(
            self.keys[first:end],
            repeat(index),
            [data[a:b] for a, b in pairwise(borders)],
            strict=False,
        )
