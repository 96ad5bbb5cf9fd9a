"""Tables compared with a fresh replay: counts and checksums of each unit, and what to redo."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake import silver
from tardis_machine.lake.backfill import key, read
from tardis_machine.lake.manifest import MALFORMED
from tardis_machine.lake.running import reason_of
from tardis_machine.lake.session import died, parallelism
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


_NOTHING: Final = Sum(0, 0)


class Difference(NamedTuple):
    """A data type of a unit whose rows are not those of a fresh replay, or cannot be told to be."""

    unit: Unit
    data_type: str
    held: Sum | str
    """Of the table's rows; or why they cannot be read."""
    expected: Sum | str
    """Of the replay's; or why there is none."""

    @property
    def command(self) -> str:
        """What mends it, as one types it."""
        symbols = [] if self.unit.symbols is None else ["--symbols", ",".join(self.unit.symbols)]
        words = [
            *("tardis-machine", "lake", "backfill", "--force", "--exchange", self.unit.exchange),
            *("--types", self.data_type, *symbols),
            *("--from", self.unit.start_text, "--to", self.unit.end_text, "--yes"),
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

        def replayed(case: str = case, types: Sequence[str] = types) -> dict[str, Sum]:
            fresh = read(tables, unit, {**source, "case": case})
            return _sums(fresh.where(fresh[TROUBLE].isNull()).drop(TROUBLE), case, types)

        def there(case: str = case, types: Sequence[str] = types) -> dict[str, Sum]:
            if not tables.exists(SILVER[case]):
                return {}
            rows = tables.read(SILVER[case]).where(f"{key(unit)} AND origin <> 'realtime'")
            return _sums(rows, case, types)

        expected, held = _told(replayed, types), _told(there, types)
        differences += [
            Difference(unit, each, held[each], expected[each])
            for each in types
            if held[each] != expected[each]
        ]
    return differences


def _told(sums: Callable[[], dict[str, Sum]], types: Sequence[str]) -> dict[str, Sum | str]:
    """Give the sums of each type, or why there are none: a bad day stops no other."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - an optional dependency
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        found = sums()
    except (PySparkException, Py4JError) as error:
        if died(error):
            raise
        return dict.fromkeys(types, reason_of(error))
    return {each: found.get(each, _NOTHING) for each in types}


def _sums(rows: "DataFrame", case: str, types: Sequence[str]) -> dict[str, Sum]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    columns = silver.columns(case)
    compared = [name for name in columns if name not in _NOT_COMPARED]
    checksum = f.sum(f.xxhash64(*compared).cast("decimal(38,0)"))
    data_type = f.col("name") if "name" in columns else f.lit(types[0])
    found = rows.groupBy(data_type.alias("type")).agg(f.count("*"), checksum).collect()
    return {row[0]: Sum(row[1], int(row[2])) for row in found if row[0] in types}
