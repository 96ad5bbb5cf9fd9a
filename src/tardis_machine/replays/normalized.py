"""Normalized replays: one or several streams of history, merged by local time."""

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
    """A table has messages of one type, and this one is not among those of the replay."""

    def __init__(self, asked: str | None, data_types: Sequence[str]) -> None:
        which = "no data type is named" if asked is None else f"{asked!r} is not among them"
        super().__init__(
            f"a table has one data type, this replay has {', '.join(data_types)}, and {which}: "
            f'expected one of these, such as to_arrow("{data_types[0]}")'
        )
        self.asked = asked
        self.data_types = tuple(data_types)


class NormalizedReplay(MessageReplay[Batch, M_co]):
    """Streams of history, normalized and merged by local time; of equal times the first is first.

    Iterate over it, by `for` or `async for`, for typed messages, or over `batches()` for the bytes;
    or make a table of it. Each batch takes a few milliseconds, unless `due_in` or `pending` tell
    what it has to wait for.

    `closes_bars` ends the time bars in progress when a stream does, at its last microsecond: for
    whoever takes history day by day. `fetched_types` are fetched as well, so that replays of some
    of these types share the slices of all. `on_malformed` is told of each line that is left out.
    With `warns`, symbols without a message are a `NoDataWarning`, else a line of the log.
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
            options = [untrimmed(each) for each in options]
        except OptionsError as error:
            # There may be tables of it.
            self._refusal = error
        super().__init__(options, history=history, owns_history=owns_history, clock=clock)
        self._strict = strict
        self._closes_bars = closes_bars
        self._fetched_types = fetched_types
        self._on_malformed = on_malformed
        self._warns = warns
        self.data_types = tuple(dict.fromkeys(name for each in options for name in each.data_types))
        self._open_all(options)

    def _open_all(self, options: Sequence[ReplayNormalizedOptions]) -> None:
        with self._opening():
            self._streams = [self._open(each, options) for each in options]
        self._merge_all(options)

    def _merge_all(self, options: Sequence[ReplayNormalizedOptions]) -> None:
        self._opened = options
        self._merge = merge(self._streams, self._schedule, [window_of(each) for each in options])

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
        """Lines and messages that could not be normalized."""
        return sum(stream.malformed for stream in self._streams)

    @property
    def ignored_changes(self) -> int:
        """Book changes that came before their book's first snapshot."""
        return sum(stream.ignored_changes for stream in self._streams)

    def due_in(self) -> float:
        return self._merge.due_in()

    def pending(self) -> Future[object] | None:
        return self._merge.pending()

    @property
    def can_pour(self) -> bool:
        """Whether nothing has to be put in order: the messages may go as they are made."""
        return (
            len(self._streams) == 1
            and self._opened[0].window is None
            and self._schedule is None
            and kernel().module is not None
        )

    def chunks(self, pour: Pour | None = None) -> Iterator[Chunk]:
        """Replay to the end, as `batches` does, for who does nothing but send it.

        With a `pour`, once it is open, each has only what was not poured out on the way.
        """
        if pour is not None:
            self._streams[0].pour = pour
        return self._begin(self._run(Merged.chunk))

    def _begin(self, steps: Iterator[S]) -> Generator[S, None, None]:
        if self._refusal is not None:
            raise self._refusal
        return super()._begin(steps)

    def _table_batches(self) -> Iterator[Batch]:
        """Replay to the end, trimmed to the range that was asked for unless that is not wanted."""
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
            # No name holds what was given: its memory is free for what comes next.
            yield from map(give, self._merge.steps())
            self._report_missing()
        finally:
            self._report()

    def _decoded(self, batch: Batch) -> list[M_co]:
        return decode_lines(batch.data)  # type: ignore[return-value]  # by the types asked for

    def to_arrow_batches(
        self, data_type: str | None = None, **choice: Unpack[TableOptions]
    ) -> "pa.RecordBatchReader":
        """Read the messages of a data type as record batches of a few megabytes each.

        The replay runs as they are read. They begin and end with the range that was asked for, to
        the microsecond, unless it is not `exact`. `data_type` may be left out where there is one
        only.
        `columns` names those that are wanted, of all the messages' fields. `numbers` are "float",
        exact as "decimal" or "text". `levels` are "nested", or a column for each price and amount:
        "wide".
        """
        layout = arrow.Layout(self._table_type(data_type), **choice)
        return arrow.reader(self._table_batches(), layout)

    def to_arrow(self, data_type: str | None = None, **choice: Unpack[TableOptions]) -> "pa.Table":
        """Read all messages of a data type into an Arrow table; see `to_arrow_batches`."""
        return self.to_arrow_batches(data_type, **choice).read_all()

    def to_pandas(
        self, data_type: str | None = None, **choice: Unpack[TableOptions]
    ) -> "pd.DataFrame":
        """Read all messages of a data type into a pandas data frame; see `to_arrow_batches`."""
        for module in ("pandas", "pyarrow"):
            require(module, extra="pandas")
        frame: pd.DataFrame = self.to_arrow(data_type, **choice).to_pandas()
        return frame

    def to_polars(
        self, data_type: str | None = None, **choice: Unpack[TableOptions]
    ) -> "pl.DataFrame":
        """Read all messages of a data type into a Polars data frame; see `to_arrow_batches`."""
        polars = require("polars", extra="polars")
        require("pyarrow", extra="polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow(data_type, **choice))
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Let `pyarrow.table`, `polars.DataFrame`, DuckDB and others take a replay as it is."""
        layout = arrow.Layout(self._table_type(None))
        # Some open a first stream for its schema alone: only what is read begins the replay.
        begun_late = (batch for source in (self._table_batches,) for batch in source())
        return arrow.reader(begun_late, layout).__arrow_c_stream__(requested_schema)

    def _table_type(self, asked: str | None) -> str:
        if asked is None and len(self.data_types) == 1:
            return self.data_types[0]
        if asked is None or asked not in (*self.data_types, "disconnect"):
            raise TableTypeError(asked, self.data_types)
        return asked

    def _report_missing(self) -> None:
        """Name the symbols that had no message in the whole replay."""
        met = {(each.name, symbol) for each in self._streams for symbol in each.symbols_met()}
        asked = dict.fromkeys(
            (each.exchange, symbol)
            for each in self._opened
            if each.from_ < each.to
            for symbol in each.symbols or ()
        )
        missing = [pair for pair in asked if pair not in met]
        if not missing:
            return
        warning = NoDataWarning(missing)
        if self._warns:
            warnings.warn(warning, stacklevel=2)
        else:
            log.info("symbols without data", extra={"count": len(missing), "reason": str(warning)})

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
