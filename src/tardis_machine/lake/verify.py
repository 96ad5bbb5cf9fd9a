"""Tables compared with a fresh replay: counts and checksums of each unit, and what to redo."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake import silver
from tardis_machine.lake.backfill import key, read
from tardis_machine.lake.manifest import MALFORMED
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.sources.projections import TROUBLE
from tardis_machine.lake.tables import SILVER, Tables
from tardis_machine.lake.units import DISCONNECT, Done, Unit
from tardis_machine.lake.units import SILVER as SILVER_LAYER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# They say how a row came here, not what it is.
_NOT_COMPARED: Final = ("ingest_ts", "producer_id", "position", "origin")


class Sum(NamedTuple):
    """How many rows, and a sum over their content that no order changes."""

    rows: int
    checksum: int


class Difference(NamedTuple):
    """A data type of a unit whose rows are not those of a fresh replay."""

    unit: Unit
    data_type: str
    held: Sum
    expected: Sum

    @property
    def command(self) -> str:
        """What mends it, as one types it."""
        symbols = [] if self.unit.symbols is None else ["--symbols", ",".join(self.unit.symbols)]
        words = [
            *("tardis-machine", "lake", "backfill", "--force", "--exchange", self.unit.exchange),
            *("--types", self.data_type, *symbols),
            *("--from", self.unit.start_text, "--to", self.unit.end_text),
        ]
        return shlex.join(words)


class Wanted(NamedTuple):
    """What is verified: some exchanges, or all; from a time, or the first; to one, or the last."""

    exchanges: Sequence[str] = ()
    start: int | None = None
    end: int | None = None

    def has(self, line: Done) -> bool:
        """Tell whether any of a line is wanted."""
        return (
            (not self.exchanges or line.exchange in self.exchanges)
            and (self.start is None or line.end > self.start)
            and (self.end is None or line.start < self.end)
        )


def units(done: Sequence[Done], wanted: Wanted = Wanted()) -> list[Unit]:  # noqa: B008 - immutable
    """Give what the manifest says is in Silver, as far as it is wanted."""
    latest: dict[object, Done] = {}  # a unit that was forced has several lines
    for line in done:
        compared = line.layer == SILVER_LAYER and line.data_type not in (DISCONNECT, MALFORMED)
        if compared and wanted.has(line):
            latest[line._replace(generation=0)] = line
    found: dict[tuple[str, int, int, tuple[str, ...] | None], list[str]] = {}
    for line in latest.values():
        found.setdefault((line.exchange, line.start, line.end, line.symbols), []).append(
            line.data_type
        )
    return [
        Unit(exchange, start, end, tuple(sorted(types)), symbols)
        for (exchange, start, end, symbols), types in sorted(found.items(), key=str)
    ]


def verify(
    tables: Tables,
    chosen: Sequence[Unit],
    source: Mapping[str, str],
    report: Callable[[Unit, list[Difference]], None] = lambda *_: None,
) -> list[Difference]:
    """Replay units and compare them with Silver."""
    tasks = parallelism(tables.spark)
    options = {**source, "concurrentTasks": str(tasks), "as": "rows"}
    found: list[Difference] = []
    with ThreadPoolExecutor(tasks) as pool:
        running = [(unit, pool.submit(_compared, tables, unit, options)) for unit in chosen]
        for unit, future in running:
            differences = future.result()
            report(unit, differences)
            found += differences
    return found


def _compared(tables: Tables, unit: Unit, source: Mapping[str, str]) -> list[Difference]:
    differences: list[Difference] = []
    for case, types in unit.cases.items():
        fresh = read(tables, unit, {**source, "case": case})
        expected = _sums(fresh.where(fresh[TROUBLE].isNull()).drop(TROUBLE), case, types)
        held: dict[str, Sum] = {}
        if tables.exists(SILVER[case]):
            rows = tables.read(SILVER[case]).where(f"{key(unit)} AND origin <> 'realtime'")
            held = _sums(rows, case, types)
        nothing = Sum(0, 0)
        differences += [
            Difference(unit, each, held.get(each, nothing), expected.get(each, nothing))
            for each in types
            if held.get(each, nothing) != expected.get(each, nothing)
        ]
    return differences


def _sums(rows: "DataFrame", case: str, types: Sequence[str]) -> dict[str, Sum]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    columns = silver.columns(case)
    compared = [name for name in columns if name not in _NOT_COMPARED]
    checksum = f.sum(f.xxhash64(*compared).cast("decimal(38,0)"))
    data_type = f.col("name") if "name" in columns else f.lit(types[0])
    found = rows.groupBy(data_type.alias("type")).agg(f.count("*"), checksum).collect()
    return {row[0]: Sum(row[1], int(row[2])) for row in found if row[0] in types}
