"""Normalized replays: one or several streams of history, merged by local time."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future

from tardis_machine import exchanges
from tardis_machine.emit.datatypes import parse_all, sent, sources
from tardis_machine.history import History
from tardis_machine.merge import Batch, Merge
from tardis_machine.messages import Message, decode_lines
from tardis_machine.normalize import Malformed, Normalizer, normalizer_type
from tardis_machine.options import ReplayNormalizedOptions
from tardis_machine.replay.base import Replay
from tardis_machine.waiting import settled

log = logging.getLogger(__name__)


class NormalizedReplay(Replay):
    """Streams of history, normalized and merged by local time; of equal times the first is first.

    Iterate over it, by `for` or `async for`, for typed messages, or over `batches()` for the bytes.
    Each batch takes a few milliseconds, unless `pending()` tells what it has to wait for.

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
        super().__init__(history, owns_history=owns_history)
        self._strict = strict
        self._closes_bars = closes_bars
        self._fetched_types = fetched_types
        self._on_malformed = on_malformed
        with self._opening():
            self._streams = [self._open(each, options) for each in options]
        self._merge = Merge(self._streams)

    def _open(
        self, option: ReplayNormalizedOptions, options: Sequence[ReplayNormalizedOptions]
    ) -> Normalizer:
        exchange = exchanges.get(option.exchange)
        data_types = parse_all(option.data_types)
        # Types that any option of this exchange asks for are sent from all of its streams.
        everything = parse_all(
            name for each in options if each.exchange == exchange.name for name in each.data_types
        )
        fetched = sources((*data_types, *parse_all(self._fetched_types)))
        filters = exchange.filters(fetched, option.symbols, option.from_, option.to)
        return normalizer_type()(
            exchange,
            self._read(exchange.name, filters, option.from_, option.to, readers=len(options)),
            data_types=data_types,
            symbols=option.symbols,
            start=option.from_,
            sent=sent(everything),
            sends_disconnects=option.with_disconnect_messages,
            strict=self._strict,
            ends_bars_at=option.to - 1 if self._closes_bars else None,
            on_malformed=self._on_malformed,
        )

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

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        """Replay without holding the event loop for longer than a step takes."""
        batches = self.batches()
        try:
            while True:
                while (waiting := self.pending()) is not None and not waiting.done():
                    await settled(waiting)
                batch = next(batches, None)
                if batch is None:
                    return
                for message in decode_lines(batch.data):
                    yield message
                await asyncio.sleep(0)
        finally:
            batches.close()

    def pending(self) -> Future[object] | None:
        """What the next batch has to wait for; None if it will not block."""
        return self._merge.pending()

    def batches(self) -> Generator[Batch, None, None]:
        """Replay to the end."""
        try:
            for merged in self._merge.steps():
                yield merged.batch()
        finally:
            self._report()
            self.close()

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
