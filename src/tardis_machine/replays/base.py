"""Base of all replays: their readers, their schedule, and iteration over messages."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from tardis_machine.errors import TardisMachineError
from tardis_machine.history import History, HistoryReader
from tardis_machine.history.filters import Filter
from tardis_machine.history.recorded_lines import LocalWindow
from tardis_machine.messages import Time
from tardis_machine.messages.times import local_of
from tardis_machine.replays.pacing import Clock, Schedule
from tardis_machine.replays.requests import ReplayNormalizedOptions, ReplayOptions, common_speed
from tardis_machine.waiting import until_done

Options = Sequence[ReplayOptions] | Sequence[ReplayNormalizedOptions]
M_co = TypeVar("M_co", covariant=True)
B = TypeVar("B")
C = TypeVar("C")


def span_of(option: ReplayOptions | ReplayNormalizedOptions) -> tuple[int, int]:
    """Return the start and end of the range whose messages are sent, in microseconds."""
    return option.window or (option.from_, option.to)


def window_of(option: ReplayOptions | ReplayNormalizedOptions) -> LocalWindow | None:
    """Return the local times that an exact replay is trimmed to, as messages print them."""
    if option.window is None:
        return None
    start, end = option.window
    return local_of(start), local_of(end)


def _schedule(options: Options, clock: Clock | None) -> Schedule | None:
    speed = common_speed(options)
    if speed is None:
        return None
    # An empty range has no messages, so it must not start the clock early.
    spans = [span_of(option) for option in options]
    spans = [(start, end) for start, end in spans if start < end] or spans
    starts, ends = zip(*spans, strict=True)
    return Schedule(min(starts), max(ends), speed, clock)


class ReplayEndedError(TardisMachineError):
    """A second read of a replay that was read to its end or closed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this replay {what}: it gives its messages once. Ask for another one, "
            "or keep the messages in a list or a table"
        )
        self.what = what


class Replay(ABC):
    """Base of replays: the readers of a history, which it closes if it owns it.

    Iterating blocks until the next messages are downloaded and, with a speed, due. On an event
    loop, await `ready` first, or check `due_in` and then `pending`.
    """

    def __init__(
        self,
        options: Options,
        *,
        history: History,
        owns_history: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._history = history
        self._owns_history = owns_history
        self._readers: list[HistoryReader] = []
        self._closed = False
        self._clock = clock
        self._schedule = _schedule(options, clock)

    def _reopen(self, options: Options) -> None:
        """Close the readers, and set the schedule for other options."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._schedule = _schedule(options, self._clock)

    @abstractmethod
    def due_in(self) -> float:
        """Return the seconds until the next messages are due; 0 without a speed.

        Called by the delivery loop in the event loop's thread, before each step.
        """

    @abstractmethod
    def pending(self) -> Future[object] | None:
        """Return the future of the download that the next step needs; None if it will not block.

        Called by the delivery loop in the event loop's thread, when `due_in` is 0.
        """

    async def ready(self) -> None:
        """Wait until the next step will not block."""
        while (seconds := self.due_in()) > 0:  # noqa: ASYNC110 - `due_in` returns how long
            await asyncio.sleep(seconds)
        while (waiting := self.pending()) is not None and not waiting.done():
            await until_done(waiting)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Close the replay if the block raises while it opens readers."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _read(
        self,
        option: ReplayOptions | ReplayNormalizedOptions,
        filters: Sequence[Filter],
        *,
        readers: int = 1,
    ) -> HistoryReader:
        reader = self._history.read(
            option.exchange,
            filters,
            option.from_,
            option.to,
            readers=readers,
            lag_minutes=option.lag_minutes,
        )
        self._readers.append(reader)
        return reader

    @property
    def progress(self) -> float:
        """Share of the minutes that were read, from 0 to 1."""
        total = sum(reader.total_minutes for reader in self._readers)
        return sum(reader.done_minutes for reader in self._readers) / max(total, 1)

    def close(self) -> None:
        """Close the replay at once; harmless when repeated."""
        self._closed = True
        if self._schedule is not None:
            self._schedule.stop()
        for reader in self._readers:
            reader.close()
        if self._owns_history:
            self._history.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class MessageReplay(Replay, Generic[B, M_co]):
    """A replay of messages: an iterator over them, with `for` or `async for`.

    It is read once. After a loop is left early, the next loop or `next` continues from there, until
    the replay is closed.
    """

    def __init__(
        self,
        options: Options,
        *,
        history: History,
        owns_history: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(options, history=history, owns_history=owns_history, clock=clock)
        self._ranges = [
            f"{option.exchange} {Time(start)} to {Time(end)}"
            for option in options
            for start, end in [span_of(option)]
        ]
        self._begun = self._ended = False
        self._iterated: Iterator[B] | None = None
        self._current: Iterator[M_co] = iter(())

    def __repr__(self) -> str:
        state = "read" if self._ended else "closed" if self._closed else f"{self.progress:.0%} read"
        return f"<{type(self).__name__} of {', '.join(self._ranges)}: {state}>"

    @abstractmethod
    def _steps(self) -> Iterator[B]:
        """Yield the batches of the whole replay.

        Called once, by `_begin`, in the thread that iterates. An error that it raises reaches the
        consumer and closes the replay.
        """

    @abstractmethod
    def _decoded(self, batch: B) -> Iterable[M_co]:
        """Return the messages of a batch; called by the iterators in the thread that iterates."""

    def batches(self) -> Generator[B, None, None]:
        """Yield the batches that the server would send, up to the end of the replay."""
        return self._begin(self._steps())

    def _begin(self, steps: Iterator[C]) -> Generator[C, None, None]:
        """Start the replay; raise ReplayEndedError if it was started or closed before."""
        if self._ended:
            raise ReplayEndedError("was read to its end")
        if self._closed:
            raise ReplayEndedError("was closed")
        if self._begun:
            raise ReplayEndedError("is being read")
        self._begun = True
        return self._whole(steps)

    def _whole(self, steps: Iterator[C]) -> Generator[C, None, None]:
        try:
            yield from steps
            self._ended = True
        finally:
            self.close()

    def close(self) -> None:
        """Close the replay at once; harmless when repeated."""
        super().close()
        self._iterated = None
        self._current = iter(())

    def _resumed(self) -> Iterator[B]:
        """Return the iterator over batches, started or left by an earlier loop."""
        if self._iterated is None:
            self._iterated = self.batches()
        return self._iterated

    def __iter__(self) -> Iterator[M_co]:
        self._resumed()
        return self._rest()

    def _rest(self) -> Iterator[M_co]:
        """Yield the messages that `next` would return, with less overhead for each."""
        while not self._ended:
            current = self._current
            for message in current:  # noqa: UP028 - `yield from` closes the batch if a loop is left
                yield message
            if self._current is not current:  # `next` or another loop has read a batch since
                continue
            if (batch := next(self._resumed(), None)) is not None:
                self._current = iter(self._decoded(batch))

    def __next__(self) -> M_co:
        while not self._ended:
            for message in self._current:
                return message
            if (batch := next(self._resumed(), None)) is not None:
                self._current = iter(self._decoded(batch))
        raise StopIteration

    def __aiter__(self) -> Self:
        self._resumed()
        return self

    async def __anext__(self) -> M_co:
        """Return the next message, with at most one step of blocking work."""
        while not self._ended:
            current = self._current
            for message in current:
                return message
            await asyncio.sleep(0)
            await self.ready()
            if self._current is not current:  # another coroutine has read a batch since
                continue
            if (batch := next(self._resumed(), None)) is not None:
                self._current = iter(self._decoded(batch))
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the replay at once; harmless when repeated."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
