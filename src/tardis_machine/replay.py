"""Replays: history, normalized or raw, as the batches of bytes that the server sends."""

import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Final, Self, TypedDict, Unpack

import msgspec

from tardis_machine import exchanges, times
from tardis_machine.emit import Taken
from tardis_machine.emit.datatypes import parse_all, sent, sources
from tardis_machine.history import Filter, History, Reader
from tardis_machine.log import Throttle
from tardis_machine.messages import Message, decode_lines
from tardis_machine.normalize import Malformed, NormalizeError, Normalizer
from tardis_machine.options import (
    ReplayNormalizedOptions,
    ReplayOptions,
    parse_replay,
    parse_replay_normalized,
)

log = logging.getLogger(__name__)

# A step is meant to take this long, so that others on the same event loop get their turn.
_STEP_S: Final = 0.002
_STEP_BYTES: Final = 512 * 1024
_MAX_LINES: Final = 1024
# Waiting for a processor makes a step longer, too: that must not make steps ever smaller.
_MIN_LINES: Final = 8
# A replay begins with book snapshots, each worth hundreds of ordinary lines.
_FIRST_LINES: Final = 1
# After every local time.
_END: Final = b"~"
_LINE_END: Final = b'}\n{"localTimestamp":"'
_MESSAGE: Final = b'Z","message":'
_TIME_END: Final = itemgetter(slice(27, 29))


class HistoryOptions(TypedDict, total=False):
    """Where history comes from, for a replay that makes its own."""

    endpoint: str
    api_key: str
    cache_dir: Path | str | None
    cache_max_bytes: int | None
    sample: bool


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Whole lines that never end inside a local timestamp; may be empty.

    `hidden` are control events that follow, and that the client did not ask for.
    """

    data: bytes
    count: int
    hidden: bytes = b""
    hidden_count: int = 0


_NOTHING: Final = Batch(b"", 0)


class NormalizedReplay:
    """Streams of history, normalized and merged by local time; of equal times the first is first.

    Iterate over it for typed messages, or over `batches()` for the bytes. Each batch takes a few
    milliseconds, unless `pending()` tells what it has to wait for.

    `closes_bars` ends the time bars in progress when a stream does, at its last microsecond: for
    whoever takes history day by day. `fetched_types` are fetched as well, so that replays of some
    of these types share the slices of all. `on_malformed` is told of each line that is left out.
    """

    def __init__(
        self,
        options: Sequence[ReplayNormalizedOptions],
        *,
        history: History,
        strict: bool = False,
        owns_history: bool = False,
        closes_bars: bool = False,
        fetched_types: Sequence[str] = (),
        on_malformed: Callable[[Malformed], None] | None = None,
    ) -> None:
        self._owned = history if owns_history else None
        self._closes_bars = closes_bars
        self._fetched_types = fetched_types
        self._on_malformed = on_malformed
        self._ends = [each.to for each in options]
        self._readers: list[Reader] = []
        self._streams: list[Normalizer] = []
        self._lines = _FIRST_LINES
        self._parts: list[bytes] = []
        self._count = 0
        self._hidden: list[Taken] = []
        self._last = b""
        try:
            for each in options:
                self._open(each, options, history, strict)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        option: ReplayNormalizedOptions,
        options: Sequence[ReplayNormalizedOptions],
        history: History,
        strict: bool,
    ) -> None:
        exchange = exchanges.get(option.exchange)
        data_types = parse_all(option.data_types)
        # Types that any option of this exchange asks for are sent from all of its streams.
        everything = parse_all(
            name for each in options if each.exchange == exchange.name for name in each.data_types
        )
        fetched = sources((*data_types, *parse_all(self._fetched_types)))
        filters = exchange.filters(fetched, option.symbols, option.from_, option.to)
        reader = history.read(exchange.name, filters, option.from_, option.to, readers=len(options))
        self._readers.append(reader)
        self._streams.append(
            Normalizer(
                exchange,
                reader,
                data_types=data_types,
                symbols=option.symbols,
                start=option.from_,
                sent=sent(everything),
                sends_disconnects=option.with_disconnect_messages,
                strict=strict,
                on_malformed=self._on_malformed,
            )
        )

    @property
    def progress(self) -> float:
        """The share of minutes that were read."""
        total = sum(reader.total_minutes for reader in self._readers)
        return sum(reader.done_minutes for reader in self._readers) / max(total, 1)

    @property
    def malformed(self) -> int:
        """Lines and messages that could not be normalized."""
        return sum(stream.malformed for stream in self._streams)

    @property
    def ignored_changes(self) -> int:
        """Book changes that came before their book's first snapshot."""
        return sum(stream.ignored_changes for stream in self._streams)

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            yield from decode_lines(batch.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def pending(self) -> Future[object] | None:
        """What the next batch has to wait for; None if it will not block."""
        for stream in self._streams:
            if stream.needs_piece:
                return stream.pieces.pending()
        return None

    def close(self) -> None:
        """Stop at once."""
        for reader in self._readers:
            reader.close()
        if self._owned is not None:
            self._owned.close()

    def batches(self) -> Iterator[Batch]:
        """Replay to the end."""
        try:
            while True:
                stream = next((each for each in self._streams if each.needs_piece), None)
                if stream is not None:
                    stream.read()
                    yield _NOTHING
                    continue
                if self._is_over():
                    break
                try:
                    self._step()
                except Exception:
                    # What came before the line that ends the replay is whole, and is sent.
                    for each in self._streams:
                        self._collect(each)
                    yield self._flush()
                    raise
                yield self._flush() if self._is_border() else _NOTHING
            if self._closes_bars:
                self._close_bars()
            if self._parts or self._hidden:
                yield self._flush()
            for each in self._streams:
                if each.failure is not None:
                    raise each.failure
        finally:
            self._report()
            self.close()

    def _close_bars(self) -> None:
        for stream, end in zip(self._streams, self._ends, strict=True):
            if stream.failure is None:
                stream.close_bars(times.iso_us(end - 1))
                self._collect(stream)

    def _report(self) -> None:
        """Sum up what the rate-limited warnings on the way may not have told."""
        if self.malformed or self.ignored_changes:
            log.warning(
                "replay left messages out",
                extra={
                    "exchanges": ",".join(dict.fromkeys(each.name for each in self._streams)),
                    "malformed": self.malformed,
                    "ignored_changes": self.ignored_changes,
                },
            )

    def _is_over(self) -> bool:
        """Whether every stream is at its end, or one failed that has nothing left before that."""
        ended = [stream for stream in self._streams if stream.stamp is None]
        return len(ended) == len(self._streams) or any(stream.failure for stream in ended)

    def _step(self) -> None:
        started = perf_counter()
        done = 0
        streams = self._streams
        stamps = [_END if stream.stamp is None else stream.stamp for stream in streams]
        while done < self._lines and (earliest := min(stamps)) != _END:
            at = stamps.index(earliest)
            stream = streams[at]
            stamps[at] = _END
            limit = min(stamps)
            # At equal times the stream whose option came first goes first.
            inclusive = stamps.index(limit) > at
            done += stream.run(
                self._lines - done, None if limit == _END else limit, inclusive=inclusive
            )
            stamps[at] = _END if stream.stamp is None else stream.stamp
            self._last = stream.last_stamp
            self._collect(stream)
            if self._hidden or stream.needs_piece:
                break
        elapsed = perf_counter() - started
        if done >= self._lines:
            size = sum(map(len, self._parts))
            share = min(2.0, _STEP_S / max(elapsed, 1e-6), _STEP_BYTES / max(size, 1))
            self._lines = min(_MAX_LINES, max(_MIN_LINES, int(self._lines * max(0.5, share))))

    def _collect(self, stream: Normalizer) -> None:
        taken = stream.take()
        if taken.count:
            self._parts.append(taken.data)
            self._count += taken.count
        hidden = stream.take_hidden()
        if hidden is not None:
            self._hidden.append(hidden)

    def _is_border(self) -> bool:
        """Whether every stream has left the last local timestamp."""
        return all(stream.stamp != self._last for stream in self._streams)

    def _flush(self) -> Batch:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        hidden = b"".join(taken.data for taken in self._hidden)
        batch = Batch(data, self._count, hidden, sum(taken.count for taken in self._hidden))
        self._parts = []
        self._hidden = []
        self._count = 0
        return batch


class RawReplay:
    """History as it was recorded: one JSON object per line, with its local time."""

    def __init__(
        self,
        options: ReplayOptions,
        *,
        history: History,
        strict: bool = False,
        owns_history: bool = False,
    ) -> None:
        self._owned = history if owns_history else None
        self._strict = strict
        self._exchange = options.exchange
        self._with_disconnects = options.with_disconnects
        self._disconnected = False
        self._reader = history.read(options.exchange, options.filters, options.from_, options.to)
        self._throttle = Throttle()
        self.messages = 0
        self.malformed = 0

    @property
    def progress(self) -> float:
        """The share of minutes that were read."""
        return self._reader.done_minutes / self._reader.total_minutes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def pending(self) -> Future[object] | None:
        """What the next batch has to wait for; None if it will not block."""
        return self._reader.pending()

    def close(self) -> None:
        """Stop at once."""
        self._reader.close()
        if self._owned is not None:
            self._owned.close()

    def batches(self) -> Iterator[bytes]:
        """Replay to the end, in NDJSON."""
        try:
            for piece in self._reader:
                lines = piece.split(b"\n")
                lines.pop()
                yield self._wrapped(lines)
                if self._strict and self.malformed:
                    time = lines[0][:28].decode(errors="replace")
                    raise NormalizeError(
                        self._exchange,
                        "raw lines",
                        f"or after {time}",
                        "it does not begin with a local time",
                    )
        finally:
            self.close()

    def _wrapped(self, lines: list[bytes]) -> bytes:
        if set(map(_TIME_END, lines)) == {b"Z "}:
            self._disconnected = False
            return self._printed(lines)
        malformed = [line for line in lines if line and line[27:29] != b"Z "]
        if malformed:
            self._report(malformed)
        parts: list[bytes] = []
        for disconnect, group in groupby(lines, operator.not_):
            proper = [line for line in group if line[27:29] == b"Z "]
            if proper:
                parts.append(self._printed(proper))
            elif disconnect and self._with_disconnects and not self._disconnected:
                parts.append(b"\n")
            self._disconnected = not proper and (disconnect or self._disconnected)
        return b"".join(parts)

    def _printed(self, lines: Sequence[bytes]) -> bytes:
        self.messages += len(lines)
        # The first of these in a line ends its time: quicker than cutting the line in two.
        joined = _LINE_END.join([line.replace(b"Z ", _MESSAGE, 1) for line in lines])
        return b'{"localTimestamp":"%b}\n' % joined

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


def replay_normalized_many(
    options: Sequence[ReplayNormalizedOptions],
    *,
    history: History,
    strict: bool = False,
    closes_bars: bool = False,
    fetched_types: Sequence[str] = (),
    on_malformed: Callable[[Malformed], None] | None = None,
) -> NormalizedReplay:
    """Replay several streams merged into one."""
    return NormalizedReplay(
        options,
        history=history,
        strict=strict,
        closes_bars=closes_bars,
        fetched_types=fetched_types,
        on_malformed=on_malformed,
    )


def replay_normalized(
    *,
    exchange: str,
    from_: str | datetime,
    to: str | datetime,
    data_types: Sequence[str],
    symbols: Sequence[str] | None = None,
    with_disconnect_messages: bool = False,
    strict: bool = False,
    history: History | None = None,
    **where: Unpack[HistoryOptions],
) -> NormalizedReplay:
    """Replay one exchange's normalized and computed messages.

    >>> for trade in replay_normalized(exchange="bitmex", from_="2024-03-01", to="2024-03-02",
    ...                                symbols=["XBTUSD"], data_types=["trade"]): ...
    """
    asked = {
        "exchange": exchange,
        "from": _iso(from_),
        "to": _iso(to),
        "dataTypes": list(data_types),
        "symbols": None if symbols is None else list(symbols),
        "withDisconnectMessages": with_disconnect_messages,
    }
    options = parse_replay_normalized(msgspec.json.encode(asked).decode())
    return NormalizedReplay(
        options,
        history=history or History(**where),
        strict=strict,
        owns_history=history is None,
    )


def replay_raw(options: ReplayOptions, *, history: History, strict: bool = False) -> RawReplay:
    """Replay what an exchange sent, for validated options."""
    return RawReplay(options, history=history, strict=strict)


def replay(
    *,
    exchange: str,
    from_: str | datetime,
    to: str | datetime,
    filters: Sequence[Filter] = (),
    with_disconnects: bool = False,
    history: History | None = None,
    **where: Unpack[HistoryOptions],
) -> RawReplay:
    """Replay what an exchange sent, as it was recorded; a disconnect can be an empty line."""
    asked = {
        "exchange": exchange,
        "from": _iso(from_),
        "to": _iso(to),
        "filters": list(filters),
        "withDisconnects": with_disconnects,
    }
    options = parse_replay(msgspec.json.encode(asked).decode())
    return RawReplay(options, history=history or History(**where), owns_history=history is None)


def _iso(time: str | datetime) -> str:
    if isinstance(time, str):
        return time
    moment = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat()
