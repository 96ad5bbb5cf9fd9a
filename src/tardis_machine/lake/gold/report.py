"""The quality of what is there, to be read: by exchange and data type, and what is missing."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake.gold.quality import QUALITY
from tardis_machine.lake.manifest import MALFORMED
from tardis_machine.lake.spans import DAY_US, day, instant, moment
from tardis_machine.lake.tables import SILVER, Tables, among
from tardis_machine.lake.units import DISCONNECT, Done
from tardis_machine.lake.units import SILVER as SILVER_LAYER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DISCONNECTS: Final = SILVER["disconnect"]
_TEXTS: Final = ("exchange", "data type", "origin")
_SUMS: Final = {
    "days": "count(DISTINCT day)",
    "symbols": "count(DISTINCT symbol)",
    "minutes": "count(DISTINCT start_ts)",
    "rows": "sum(rows)",
    "gap s": "max(largest_gap_s)",
    "disorder": "sum(out_of_order)",
    "late": "sum(late)",
    "dropped": "sum(duplicates_dropped)",
    # Of the minutes, each as much as it has rows.
    "p50 ms": "percentile(latency_p50_ms, 0.5, rows)",
    "p99 ms": "percentile(latency_p99_ms, 0.99, rows)",
    "max ms": "max(latency_max_ms)",
}


class Span(NamedTuple):
    """What is asked about: some exchanges or all, from a time to another, in microseconds."""

    exchanges: Sequence[str] = ()
    start: int | None = None
    end: int | None = None

    def condition(self, time: str) -> str:
        """Write it as a condition on a table with days and times."""
        parts = [among("exchange", self.exchanges)] if self.exchanges else []
        if self.start is not None:
            parts += [f"day >= {day(self.start // DAY_US)}", f"{time} >= {instant(self.start)}"]
        if self.end is not None:
            parts += [f"day <= {day((self.end - 1) // DAY_US)}", f"{time} < {instant(self.end)}"]
        return " AND ".join(parts) or "true"


class Missing(NamedTuple):
    """A time that no backfill has finished, between times that some have."""

    exchange: str
    data_type: str
    start: int
    end: int

    def __str__(self) -> str:
        start, end = moment(self.start), moment(self.end)
        return f"{self.exchange} {self.data_type} {start:%Y-%m-%dT%H:%M} to {end:%Y-%m-%dT%H:%M}"


class Broken(NamedTuple):
    """How often an exchange's connections broke."""

    exchange: str
    origin: str
    disconnects: int


def minutes(tables: Tables, span: Span) -> "DataFrame":
    """Give the minutes that are asked about."""
    return tables.read(QUALITY.table).where(span.condition("start_ts"))


def summary(tables: Tables, span: Span, limit: int) -> list[str]:
    """Write what can be said of each exchange's data types, aligned, under a head."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    sums = [f.expr(sql).alias(name) for name, sql in _SUMS.items()]
    found = (
        minutes(tables, span)
        .groupBy("exchange", "data_type", "origin")
        .agg(*sums)
        .orderBy("exchange", "data_type", "origin")
        .limit(limit)
        .collect()
    )
    cells = [[*_TEXTS, *_SUMS], *([_cell(value) for value in row] for row in found)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_placed(row, widths)).rstrip() for row in cells]


def broken(tables: Tables, span: Span) -> list[Broken]:
    """Count disconnects, each once, however many symbols it concerned."""
    if not tables.exists(_DISCONNECTS):
        return []
    rows = tables.read(_DISCONNECTS).where(span.condition("local_ts"))
    counted = rows.groupBy("exchange", "origin").count().orderBy("exchange", "origin")
    return [Broken(*row) for row in counted.collect()]


def missing(done: Sequence[Done], span: Span) -> list[Missing]:
    """Find what no unit of a backfill has, of any symbol, between the first and the last that do.

    Of each exchange's data type by itself, since not all are wanted from the same day on.
    """
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for line in done:
        counts = line.layer == SILVER_LAYER and line.data_type not in (DISCONNECT, MALFORMED)
        if counts and (not span.exchanges or line.exchange in span.exchanges):
            spans.setdefault((line.exchange, line.data_type), []).append((line.start, line.end))
    return [
        Missing(exchange, data_type, start, end)
        for (exchange, data_type), covered in sorted(spans.items())
        for start, end in _gaps(sorted(covered))
        if (span.end is None or start < span.end) and (span.start is None or end > span.start)
    ]


def _gaps(covered: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    reached = covered[0][0]
    for start, end in covered:
        if start > reached:
            yield reached, start
        reached = max(reached, end)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _placed(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if at < len(_TEXTS) else cell.rjust(width)
