"""Raw replays: messages as the exchange sent them, of one replay or several merged ones."""

import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate, compress, groupby
from typing import Final

from tardis_machine.engine import Taken
from tardis_machine.engine.choice import kernel
from tardis_machine.history import History
from tardis_machine.history.recorded_lines import (
    MESSAGE,
    Blocks,
    LineStream,
    are_stamped,
    first_stamp,
    is_stamped,
    split,
    with_messages,
)
from tardis_machine.log import Throttle
from tardis_machine.messages.times import local_of
from tardis_machine.replays.base import M_co, MessageReplay, Replay, window_of
from tardis_machine.replays.merger import Merged, merge
from tardis_machine.replays.normalizer import NormalizeError
from tardis_machine.replays.paced import paced
from tardis_machine.replays.pacing import Clock
from tardis_machine.replays.recorded import RawMessage, decode_recorded
from tardis_machine.replays.requests import ReplayOptions

log = logging.getLogger(__name__)

_BEFORE: Final = b'{"localTimestamp":"'
_BETWEEN: Final = b'","message":'
_AFTER: Final = b"}\n"
_NOTHING: Final = Taken(b"", 0)


class RawReplay(MessageReplay[bytes, M_co]):
    """A raw replay: iterate over it for decoded messages with their local times.

    `batches()` yields bytes: one JSON object per line. With disconnects, an empty line marks where
    the recorder lost its connection; the decoded message is None there.
    """

    def __init__(
        self,
        options: ReplayOptions,
        *,
        history: History,
        strict: bool = False,
        owns_history: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__((options,), history=history, owns_history=owns_history, clock=clock)
        self._strict = strict
        self._exchange = options.exchange
        self._with_disconnects = options.with_disconnects
        self._disconnected = False
        with self._opening():
            reader = self._read(options, options.filters)
        self._blocks = paced(reader, self._schedule, window_of(options), local_of(options.from_))
        self._throttle = Throttle()
        self.messages = 0
        self.malformed = 0

    def due_in(self) -> float:
        return self._blocks.due_in()

    def pending(self) -> Future[object] | None:
        return self._blocks.pending()

    def _steps(self) -> Iterator[bytes]:
        for block in self._blocks:
            yield self._wrapped(block)
            if self._strict and self.malformed:
                time = first_stamp(block).decode(errors="replace")
                raise NormalizeError(
                    self._exchange,
                    "raw lines",
                    f"or after {time}",
                    "it does not begin with a local time",
                )

    def _decoded(self, batch: bytes) -> Iterable[M_co]:
        # `replay` includes None in the type where disconnects are requested.
        return decode_recorded(batch)  # type: ignore[return-value]

    def _wrapped(self, block: bytes) -> bytes:
        module = kernel().module
        objects: tuple[bytes, int] | None = None if module is None else module.raw_objects(block)
        if objects is not None:
            data, count = objects
            self._disconnected = False
            self.messages += count
            return data
        lines = split(block)
        if are_stamped(lines):
            self._disconnected = False
            return self._printed(lines)
        malformed = [line for line in lines if line and not is_stamped(line)]
        if malformed:
            self._report(malformed)
        parts: list[bytes] = []
        for disconnect, group in groupby(lines, operator.not_):
            proper = [line for line in group if is_stamped(line)]
            if proper:
                parts.append(self._printed(proper))
            elif disconnect and self._with_disconnects and not self._disconnected:
                parts.append(b"\n")
            self._disconnected = not proper and (disconnect or self._disconnected)
        return b"".join(parts)

    def _printed(self, lines: Sequence[bytes]) -> bytes:
        self.messages += len(lines)
        joined = (_AFTER + _BEFORE).join(with_messages(lines, _BETWEEN))
        return _BEFORE + joined + _AFTER

    def _report(self, malformed: Sequence[bytes]) -> None:
        self.malformed += len(malformed)
        for line in malformed:
            held_back = self._throttle.allow()
            if held_back is not None:
                log.warning(
                    "line without a local time left out",
                    extra={
                        "exchange": self._exchange,
                        "line": line[:200].decode(errors="replace"),
                        "malformed": self.malformed,
                        "held_back": held_back,
                    },
                )


class NativeReplay(Replay):
    """A raw replay as recorded lines, for clients of the exchange's own protocol."""

    def __init__(self, options: ReplayOptions, *, history: History) -> None:
        super().__init__((options,), history=history)
        with self._opening():
            reader = self._read(options, options.filters)
        self._blocks = paced(reader, self._schedule, window_of(options), local_of(options.from_))

    def due_in(self) -> float:
        return self._blocks.due_in()

    def pending(self) -> Future[object] | None:
        return self._blocks.pending()

    def blocks(self) -> Iterator[bytes]:
        """Yield the recorded lines in blocks of whole lines, then close the replay."""
        try:
            yield from self._blocks
        finally:
            self.close()


class _MergedRaw(Replay):
    """Several raw replays merged by local time."""

    def __init__(
        self,
        options: Sequence[ReplayOptions],
        *,
        history: History,
        owns_history: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(options, history=history, owns_history=owns_history, clock=clock)
        readers = len(options)
        with self._opening():
            self._streams = [
                self._stream(self._read(option, option.filters, readers=readers))
                for option in options
            ]
        self._merge = merge(
            self._streams, self._schedule, [window_of(option) for option in options]
        )

    def _stream(self, blocks: Blocks) -> "_Messages":
        return _Messages(blocks)

    @property
    def malformed(self) -> int:
        """Number of lines without a local time, which were left out."""
        return sum(stream.malformed for stream in self._streams)

    def due_in(self) -> float:
        return self._merge.due_in()

    def pending(self) -> Future[object] | None:
        return self._merge.pending()


class MergedRawReplay(_MergedRaw):
    """Merged raw replays for clients of the exchanges' own protocols.

    `by_stream` of a step yields messages as the exchange sent them, one a line, with the number of
    their replay.
    """

    def steps(self) -> Iterator[Merged]:
        """Yield merge steps of a few milliseconds each, then close the replay."""
        try:
            yield from self._merge.steps()
        finally:
            self.close()


class MergedLines(MessageReplay[bytes, RawMessage], _MergedRaw):
    """Merged raw replays for Python programs, with the messages of a single raw replay."""

    def _stream(self, blocks: Blocks) -> "_Messages":
        return _Wrapped(blocks)

    def _steps(self) -> Iterator[bytes]:
        return (merged.batch().data for merged in self._merge.steps())

    def _decoded(self, batch: bytes) -> Iterable[RawMessage]:
        return filter(None, decode_recorded(batch))


class _Messages(LineStream):
    """Merge input of one raw replay: its messages without local times, one a line."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        self.malformed = 0
        self._taken = _NOTHING

    @property
    def pours(self) -> bool:
        return False

    def run(self, *, is_next: bool) -> None:
        del is_next
        self.next = len(self.lines)
        lines, stamps = self.lines, self.locals
        if "" in stamps:
            self.malformed += sum(
                bool(line) and not local for line, local in zip(lines, stamps, strict=True)
            )
            lines = list(compress(lines, stamps))
            stamps = list(filter(None, stamps))
        if lines:
            self.last = stamps[-1]
            messages = self._printed(lines)
            data = b"\n".join([*messages, b""])
            ends = [end + at for at, end in enumerate(accumulate(map(len, messages)), 1)]
            self._taken = Taken(data, len(lines), stamps, ends, range(1, len(lines) + 1))

    def _printed(self, lines: Sequence[bytes]) -> list[bytes]:
        return [line[MESSAGE:] for line in lines]

    def take(self) -> Taken:
        taken, self._taken = self._taken, _NOTHING
        return taken

    def take_hidden(self) -> None:
        return None


class _Wrapped(_Messages):
    """Merge input of one raw replay: its messages with local times, one JSON object a line."""

    def _printed(self, lines: Sequence[bytes]) -> list[bytes]:
        return [_BEFORE + line + b"}" for line in with_messages(lines, _BETWEEN)]
