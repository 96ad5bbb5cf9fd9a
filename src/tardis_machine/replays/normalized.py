"""Normalized replays: messages, batches or tables of one or several requests."""

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar, Unpack

from tardis_machine import exchanges
from tardis_machine.engine import columns as arrow
from tardis_machine.engine.choice import kernel
from tardis_machine.engine.columns import TableOptions
from tardis_machine.engine.datatypes import parse_all, sent, sources
from tardis_machine.errors import NoDataWarning, TardisMachineError
from tardis_machine.extras import require
from tardis_machine.history import History
from tardis_machine.messages import decode_lines
from tardis_machine.replays.base import M_co, MessageReplay, span_of, window_of
from tardis_machine.replays.merger import Batch, Chunk, Merged, merge
from tardis_machine.replays.normalizer import Malformed, Normalizer, Pour, normalizer_type
from tardis_machine.replays.pacing import Clock
from tardis_machine.replays.requests import OptionsError, ReplayNormalizedOptions, untrimmed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Chunk)
S = TypeVar("S")


class TableTypeError(TardisMachineError):
    """A table was requested without a data type, or with one that the replay does not have."""

    def __init__(self, asked: str | None, data_types: Sequence[str]) -> None:
        which = "no data type is named" if asked is None else f"{asked!r} is not among them"
        super().__init__(
            f"a table has one data type, this replay has {', '.join(data_types)}, and {which}: "
            f'expected one of these, such as to_arrow("{data_types[0]}")'
        )
        self.asked = asked
        self.data_types = tuple(data_types)


class NormalizedReplay(MessageReplay[Batch, M_co]):
    """A normalized replay of one or several requests, merged by local time.

    Iterate over it, with `for` or `async for`, for typed messages, or over `batches()` for bytes;
    or read it into a table. Messages with equal local times keep the order of the requests. A
    batch takes a few milliseconds, unless `due_in` or `pending` say that it has to wait.

    `closes_bars` completes the open time bars at the last microsecond of each stream, for callers
    that read history day by day. The channels of `fetched_types` are fetched as well, so that
    replays of some of these types share cached slices. `on_malformed` is called in the thread that
    iterates, with each line that is left out; an error that it raises ends the replay. With
    `warns`, symbols without a message cause a `NoDataWarning`, otherwise they are logged.
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
        warns: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._refusal: OptionsError | None = None
        try:
            options = [untrimmed(option) for option in options]
        except OptionsError as error:
            # Messages need a whole minute, tables do not: only reading messages raises this.
            self._refusal = error
        super().__init__(options, history=history, owns_history=owns_history, clock=clock)
        self._strict = strict
        self._closes_bars = closes_bars
        self._fetched_types = fetched_types
        self._on_malformed = on_malformed
        self._warns = warns
        self.data_types = tuple(
            dict.fromkeys(name for option in options for name in option.data_types)
        )
        self._open_all(options)

    def _open_all(self, options: Sequence[ReplayNormalizedOptions]) -> None:
        with self._opening():
            self._streams = [self._open(option, options) for option in options]
        self._merge_all(options)

    def _merge_all(self, options: Sequence[ReplayNormalizedOptions]) -> None:
        self._opened = options
        self._merge = merge(
            self._streams, self._schedule, [window_of(option) for option in options]
        )

    def _open(
        self, option: ReplayNormalizedOptions, options: Sequence[ReplayNormalizedOptions]
    ) -> Normalizer:
        exchange = exchanges.get(option.exchange)
        data_types = parse_all(option.data_types)
        # A type that one request of this exchange names is sent from all of its streams.
        everything = parse_all(
            name
            for other in options
            if other.exchange == exchange.name
            for name in other.data_types
        )
        fetched = sources((*data_types, *parse_all(self._fetched_types)))
        filters = exchange.filters(fetched, option.symbols, option.from_, option.to)
        return normalizer_type()(
            exchange,
            self._read(option, filters, readers=len(options)),
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
        """Number of lines and messages that could not be normalized."""
        return sum(stream.malformed for stream in self._streams)

    @property
    def ignored_changes(self) -> int:
        """Number of book changes before the first snapshot of their book."""
        return sum(stream.ignored_changes for stream in self._streams)

    def due_in(self) -> float:
        return self._merge.due_in()

    def pending(self) -> Future[object] | None:
        return self._merge.pending()

    @property
    def can_pour(self) -> bool:
        """Whether the engine may write messages to a socket itself: there is nothing to merge."""
        return (
            len(self._streams) == 1
            and self._opened[0].window is None
            and self._schedule is None
            and kernel().module is not None
        )

    def chunks(self, pour: Pour | None = None) -> Iterator[Chunk]:
        """Yield the replay in chunks, without a copy of the engine's bytes.

        With an open `pour`, a chunk has only the messages that the engine did not write to it.
        """
        if pour is not None:
            self._streams[0].pour = pour
        return self._begin(self._run(Merged.chunk))

    def _begin(self, steps: Iterator[S]) -> Generator[S, None, None]:
        if self._refusal is not None:
            raise self._refusal
        return super()._begin(steps)

    def _table_batches(self) -> Iterator[Batch]:
        """Return the batches of a table, trimmed to the range unless `exact` is False."""
        self._refusal = None
        if not self._begun and not self._closed:
            options = self._options
            if list(map(span_of, options)) == list(map(span_of, self._opened)):
                self._merge_all(options)
            else:
                self._reopen(options)
                self._open_all(options)
        return self.batches()

    def _steps(self) -> Iterator[Batch]:
        return self._run(Merged.batch)

    def _run(self, give: Callable[[Merged], C]) -> Iterator[C]:
        try:
            # `map` keeps no reference to a step, so its memory is free for the next one.
            yield from map(give, self._merge.steps())
            self._report_missing()
        finally:
            self._report()

    def _decoded(self, batch: Batch) -> list[M_co]:
        return decode_lines(batch.data)  # type: ignore[return-value]  # the overloads choose the type

    def to_arrow_batches(
        self, data_type: str | None = None, **choice: Unpack[TableOptions]
    ) -> "pa.RecordBatchReader":
        """Return a reader of the messages of a data type, as record batches of a few megabytes.

        The replay runs while the reader is read. Unless `exact` is False, the rows begin and end
        with the requested range, to the microsecond.

        Args:
            data_type: Data type of the rows; may be left out if the replay has only one.
            **choice: `columns` names the fields to keep, all by default. `numbers` is "float" (the
                default), or "decimal" or "text" for exact numbers. `levels` is "nested" (the
                default), or "wide" for a column for each price and amount.

        Raises:
            TableTypeError: The replay does not have this data type, or has several.
        """
        layout = arrow.Layout(self._table_type(data_type), **choice)
        return arrow.reader(self._table_batches(), layout)

    def to_arrow(self, data_type: str | None = None, **choice: Unpack[TableOptions]) -> "pa.Table":
        """Return all messages of a data type as an Arrow table; see `to_arrow_batches`."""
        return self.to_arrow_batches(data_type, **choice).read_all()

    def to_pandas(
        self, data_type: str | None = None, **choice: Unpack[TableOptions]
    ) -> "pd.DataFrame":
        """Return all messages of a data type as a pandas data frame; see `to_arrow_batches`."""
        for module in ("pandas", "pyarrow"):
            require(module, extra="pandas")
        frame: pd.DataFrame = self.to_arrow(data_type, **choice).to_pandas()
        return frame

    def to_polars(
        self, data_type: str | None = None, **choice: Unpack[TableOptions]
    ) -> "pl.DataFrame":
        """Return all messages of a data type as a Polars data frame; see `to_arrow_batches`."""
        polars = require("polars", extra="polars")
        require("pyarrow", extra="polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow(data_type, **choice))
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the replay as an Arrow stream; called by pyarrow, Polars and DuckDB to read it."""
        layout = arrow.Layout(self._table_type(None))
        # Some libraries open a first stream for its schema only: reading rows starts the replay.
        begun_late = (batch for source in (self._table_batches,) for batch in source())
        return arrow.reader(begun_late, layout).__arrow_c_stream__(requested_schema)

    def _table_type(self, asked: str | None) -> str:
        if asked is None and len(self.data_types) == 1:
            return self.data_types[0]
        if asked is None or asked not in (*self.data_types, "disconnect"):
            raise TableTypeError(asked, self.data_types)
        return asked

    def _report_missing(self) -> None:
        """Warn about, or log, the symbols that had no message in the whole replay."""
        with_data = {(s.name, symbol) for s in self._streams for symbol in s.symbols_met()}
        requested = dict.fromkeys(
            (option.exchange, symbol)
            for option in self._opened
            if option.from_ < option.to
            for symbol in option.symbols or ()
        )
        missing = [pair for pair in requested if pair not in with_data]
        if not missing:
            return
        warning = NoDataWarning(missing)
        if self._warns:
            warnings.warn(warning, stacklevel=2)
        else:
            log.info("symbols without data", extra={"count": len(missing), "reason": str(warning)})

    def _report(self) -> None:
        """Log the totals of skipped lines and changes: warnings of single ones are rate-limited."""
        if self.malformed or self.ignored_changes:
            log.warning(
                "replay left messages out",
                extra={
                    "exchanges": ",".join(dict.fromkeys(stream.name for stream in self._streams)),
                    "malformed": self.malformed,
                    "ignored_changes": self.ignored_changes,
                },
            )
