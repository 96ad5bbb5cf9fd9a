"""Rows of Silver through the server's own emitter, so that what is computed is what it computes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tardis_machine import engine
from tardis_machine.engine import Emitter
from tardis_machine.engine.columns import Layout, reader
from tardis_machine.lake.gold.parts import days_of
from tardis_machine.lake.gold.table import Job
from tardis_machine.lake.records import schema_of
from tardis_machine.lake.spans import DAY_US
from tardis_machine.lake.tables import BREAKS, SILVER
from tardis_machine.messages.times import iso_us

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DISCONNECTS: Final = SILVER["disconnect"]
BROKEN: Final = (_DISCONNECTS, BREAKS)
"""The tables that tell when connections broke."""
_BACKFILLED: Final = "replay"
_SYMBOL_DAY: Final = ("exchange", "day", "symbol")
_ORDER: Final = ("local_ts", "position")

Feed = Callable[[pa.RecordBatch], Callable[[Emitter, int], None]]
"""Reads a batch of Silver, and gives what brings one of its rows to an emitter."""
Columns = Callable[[pa.RecordBatch], dict[str, pa.Array]]
"""Turns messages of a data type, as `engine/columns.py` has them, into columns of Gold."""
Day = tuple[str, int]
Break = tuple[int, frozenset[str] | None]
"""When a connection broke, in microseconds, and for which symbols; None for all."""


@dataclass(frozen=True)
class Plan:
    """What the executors need to know."""

    data_type: str
    feed: Feed
    columns: Columns
    names: tuple[str, ...]
    origins: Mapping[Day, str]
    breaks: Mapping[Day, list[Break]]
    """As others saw them, for what was not backfilled."""
    own_breaks: Mapping[Day, list[Break]]
    """As they were seen between these very messages."""
    closed_before: int
    """Days that end until then are over, and so are their bars."""


def emitted(
    job: Job,
    source: str,
    rows: "DataFrame",
    feed: Feed,
    columns: Columns,
    schema: Mapping[str, str],
) -> "DataFrame":
    """Compute a data type from rows of Silver, each symbol's day by itself and in its order.

    `source` is the rows' own data type. `rows` has `exchange`, `day`, `symbol`, `local_ts`,
    `position` and what `feed` reads. Nothing of a day is held but what the emitter holds.
    """
    plan = Plan(
        job.variant,
        feed,
        columns,
        tuple(schema),
        {(part.exchange, part.day): part.origin for part in job.parts},
        _breaks(job),
        _own_breaks(job, source),
        job.now_us,
    )
    ordered = rows.repartition(*_SYMBOL_DAY).sortWithinPartitions(*_SYMBOL_DAY, *_ORDER)
    return ordered.mapInArrow(partial(_emit, plan), schema_of(schema))


def texts(decimals: pa.Array) -> list[str]:
    """Give decimals as text, which emitters take as it is."""
    found: list[str] = decimals.cast(pa.string()).to_pylist()
    return found


def micros(values: pa.Array) -> list[int | None]:
    """Give times as microseconds."""
    found: list[int | None] = values.cast(pa.int64()).to_pylist()
    return found


def _breaks(job: Job) -> dict[Day, list[Break]]:
    """Read when connections broke: books and bars in progress end there, as the server's do."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not job.tables.exists(_DISCONNECTS):
        return {}
    symbols = f.when(~f.col("all_symbols"), f.col("symbols"))
    return _by_day(job.rows_of_all_symbols(_DISCONNECTS), symbols)


def _own_breaks(job: Job, source: str) -> dict[Day, list[Break]]:
    """Read when they broke by the messages of one data type, where a backfill brought them."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    backfilled = [part for part in job.parts if part.origin == _BACKFILLED]
    if not backfilled or not job.tables.exists(BREAKS):
        return {}
    days = days_of((part.exchange, part.day) for part in backfilled)
    seen = job.tables.read(BREAKS).where(days)
    return _by_day(seen.where(f.array_contains("data_types", source)), f.col("symbols"))


def _by_day(rows: "DataFrame", symbols: "Column") -> dict[Day, list[Break]]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    found: dict[Day, list[Break]] = {}
    told = rows.select("exchange", f.unix_date("day"), f.unix_micros("local_ts"), symbols)
    for exchange, day, us, names in told.collect():
        broken = us, None if names is None else frozenset(names)
        found.setdefault((exchange, day), []).append(broken)
    return {key: sorted(each, key=lambda one: one[0]) for key, each in found.items()}


def _emit(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    computing: _Computing | None = None
    for batch in batches:
        symbols = batch.column("symbol").to_pylist()
        exchanges = batch.column("exchange").to_pylist()
        days = batch.column("day").cast(pa.int32()).to_pylist()
        locals_ = batch.column("local_ts").cast(pa.int64()).to_pylist()
        bring = plan.feed(batch)
        for row, (day, symbol, local) in enumerate(
            zip(zip(exchanges, days, strict=True), symbols, locals_, strict=True)
        ):
            if computing is None or computing.day != day:
                if computing is not None:
                    yield from computing.end()
                computing = _Computing(plan, day)
            computing.begin(symbol, local)
            bring(computing.emitter, row)
        if computing is not None:
            yield from computing.take()
    if computing is not None:
        yield from computing.end()


class _Computing:
    """A day of an exchange on its way through an emitter, symbol by symbol."""

    def __init__(self, plan: Plan, day: Day) -> None:
        self._plan = plan
        self.day = day
        self.emitter = engine.create(day[0], engine.parse_all([plan.data_type]), ())
        self._layout = Layout(plan.data_type)
        self._symbol: str | None = None
        self._breaks: list[Break] = []

    def begin(self, symbol: str, local: int) -> None:
        """Begin a row; what came before it has ended."""
        if symbol != self._symbol:
            self._end_symbol()
            self._symbol = symbol
            self._breaks = self._of(self._plan.own_breaks) or self._of(self._plan.breaks)
        # A break has the time of what came before it.
        while self._breaks and local > self._breaks[-1][0]:
            self._breaks.pop()
            self.emitter.reset()
        self.emitter.begin(iso_us(local))

    def _of(self, breaks: Mapping[Day, list[Break]]) -> list[Break]:
        """Those of the symbol, latest first, to be taken from the end."""
        every = reversed(breaks.get(self.day, ()))
        return [each for each in every if each[1] is None or self._symbol in each[1]]

    def end(self) -> Iterator[pa.RecordBatch]:
        """End the day."""
        self._end_symbol()
        yield from self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Give what was computed since the last time."""
        plan = self._plan
        exchange, day = self.day
        for batch in reader([self.emitter.take().data], self._layout):
            every = {
                "name": pa.repeat(pa.scalar(plan.data_type), len(batch)),
                "exchange": pa.repeat(pa.scalar(exchange), len(batch)),
                "day": pa.repeat(pa.scalar(day, pa.int32()).cast(pa.date32()), len(batch)),
                "symbol": batch.column("symbol"),
                "origin": pa.repeat(pa.scalar(plan.origins[self.day]), len(batch)),
                **plan.columns(batch),
            }
            yield pa.RecordBatch.from_arrays(
                [every[name] for name in plan.names], names=list(plan.names)
            )

    def _end_symbol(self) -> None:
        end = (self.day[1] + 1) * DAY_US
        if self._symbol is not None and end <= self._plan.closed_before and not self._breaks:
            # Where the day's own replay ends.
            self.emitter.begin(iso_us(end - 1))
            self.emitter.close_bars()
        self.emitter.reset()
