"""Days of history into the tables: what is done is written down, and only the rest is done."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from tardis_machine.lake import manifest, quarantine, silver
from tardis_machine.lake.batches import EVENT_KEY
from tardis_machine.lake.counting import Counted
from tardis_machine.lake.joining import joining
from tardis_machine.lake.manifest import MALFORMED, Count
from tardis_machine.lake.running import Progress, Report, run_lanes
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.sources import tardis
from tardis_machine.lake.sources.projections import BUS, REJECTED, TROUBLE
from tardis_machine.lake.spans import DAY_US, day, instant, listed, literal, moment
from tardis_machine.lake.tables import BREAKS, EVENTS, QUARANTINE, SILVER, Table, Tables, among
from tardis_machine.lake.units import BRONZE, DISCONNECT, Unit
from tardis_machine.lake.units import SILVER as SILVER_LAYER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run(
    tables: Tables,
    units: Sequence[Unit],
    source: Mapping[str, str],
    *,
    attempts: int = 3,
    wait_s: float = 2.0,
    buckets: int = 1,
    report: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Do each unit, several at once; one that fails is tried again, and does not stop the rest.

    `source` are further options of the tardis source, such as `cacheDir`. `buckets` spread a day's
    symbols over tasks, each of which fetches slices of its own. Interrupted, it takes back what is
    queued and ends what is under way, which the next run does again.
    """
    tasks = parallelism(tables.spark)
    options = {**source, "concurrentTasks": str(tasks), "buckets": str(buckets)}

    def writer(unit: Unit) -> Callable[[], manifest.Counts]:
        return UnitWriter(tables, unit, options).write

    # A unit's files are few, and looking for others to join costs as much as writing.
    with joining(tables.spark, None):
        return run_lanes(
            tables.spark,
            # Parts of one day write to the same files, and would only be in each other's way.
            list(_by_day(units)),
            writer,
            threads=tasks,
            attempts=attempts,
            wait_s=wait_s,
            report=report,
        )


class UnitWriter:
    """Brings one unit into the tables; each table in one commit, and again without harm."""

    def __init__(self, tables: Tables, unit: Unit, source: Mapping[str, str]) -> None:
        self._tables = tables
        self._unit = unit
        self._source = source
        self._done: dict[str, Counted] = {}
        """What was written, by table, so that another attempt does only the rest."""

    def write(self) -> manifest.Counts:
        """Write what the unit has to each table at the same time, then write that down."""
        jobs: list[Callable[[], None]] = []
        if BRONZE in self._unit.layers:
            jobs.append(self._write_events)
        if SILVER_LAYER in self._unit.layers:
            jobs += [partial(self._write_rows, case) for case in self._unit.cases]
        with ThreadPoolExecutor(len(jobs)) as pool:
            for job in [pool.submit(job) for job in jobs]:
                job.result()
        counts = self._counts()
        manifest.write_down(self._tables, self._unit, counts)
        return counts

    def rows(self, kind: str, **options: str) -> "DataFrame":
        """Read the unit from history, as what one table takes."""
        return read(self._tables, self._unit, {**self._source, "as": kind, **options})

    def _write_events(self) -> None:
        unit, tables = self._unit, self._tables
        types = unit.data_types
        counted = Counted(
            partial(self.rows, "events"),
            {**_TROUBLES, **_of_types("data_type", types)},
            trouble=TROUBLE,
        )
        where = f"bus = {literal(BUS)} AND {among('data_type', types)} AND {key(unit)}"
        if unit.is_forced or not self._has(EVENTS, where):
            self._once(EVENTS, counted, lambda: tables.replace(counted, EVENTS, where))
            return
        # Only what is new: `lake silver` follows what is added, and leaves out what takes the
        # place of other rows.
        where = f"t.bus = {literal(BUS)} AND {among('t.data_type', types)} AND {key(unit, 't')}"
        keys = (*EVENT_KEY, *_BUS_OF[EVENTS.path])
        self._once(EVENTS, counted, lambda: tables.insert_new(counted, EVENTS, keys, where))

    def _has(self, table: Table, where: str) -> bool:
        """Tell whether there is any such row; if not, all are new, and none has to be compared."""
        return self._tables.exists(table) and not self._tables.read(table).where(where).isEmpty()

    def _write_rows(self, case: str) -> None:
        unit, table = self._unit, SILVER[case]
        types = unit.cases[case]
        named = "name" in table.columns
        by_type = _of_types("name", types) if named else {types[0]: f"{TROUBLE} IS NULL"}
        counted = Counted(
            partial(self.rows, "rows", case=case), {**_TROUBLES, **by_type}, trouble=TROUBLE
        )
        if unit.is_forced:
            where = " AND ".join(
                [key(unit), "origin <> 'realtime'", *([among("name", types)] if named else [])]
            )
            self._once(table, counted, lambda: self._tables.replace(counted, table, where))
            return
        where = key(unit, "t")
        self._once(
            table,
            counted,
            lambda: self._tables.insert_new(counted, table, EVENT_KEY, where),
        )

    def _once(self, table: Table, counted: Counted, write: Callable[[], object]) -> None:
        if table.path not in self._done:
            write()
            self._done[table.path] = counted

    def _counts(self) -> manifest.Counts:
        unit = self._unit
        found = {path: counted.counts for path, counted in self._done.items()}
        if unit.is_forced and self._tables.exists(QUARANTINE):
            self._tables.delete(QUARANTINE, _rejects_of(unit))
        rejected = dict.fromkeys((*unit.data_types, MALFORMED), 0)
        if any(each[REJECTED] for each in found.values()):
            rejected = self._write_rejects()
        seen = any(each[DISCONNECT] for each in found.values())
        if seen:
            self._write_breaks()
        if seen and unit.disconnects:
            self._write_disconnects()
        if unit.taken:
            self._take_disconnects()
        is_told = unit.taken or (seen and unit.disconnects)
        disconnects = self._disconnects() if is_told else 0
        told = {BRONZE: unit.disconnects, SILVER_LAYER: unit.taken or unit.disconnects}
        counts: dict[tuple[str, str], Count] = {}
        for layer in unit.layers:
            for case, types in unit.cases.items():
                path = EVENTS.path if layer == BRONZE else SILVER[case].path
                for data_type in types:
                    # Bronze has what only Silver cannot hold.
                    bad = rejected[data_type] if layer == SILVER_LAYER else 0
                    counts[layer, data_type] = Count(found[path][data_type], bad)
            if told[layer]:
                counts[layer, DISCONNECT] = Count(disconnects)
        if rejected[MALFORMED]:
            counts[unit.layers[0], MALFORMED] = Count(0, rejected[MALFORMED])
        return counts

    def _write_rejects(self) -> dict[str, int]:
        """Set aside what no table took; tell how many there were of each data type."""
        by_silver = f"stage = {literal(quarantine.SILVER)}"
        conditions = {
            data_type: f"{by_silver} AND data_type = {literal(data_type)}"
            for data_type in self._unit.data_types
        }
        counted = Counted(
            partial(self.rows, "rejects"), {**conditions, MALFORMED: f"NOT {by_silver}"}
        )
        quarantine.set_aside(self._tables, counted)
        return counted.counts

    def _write_breaks(self) -> None:
        """Write when connections broke as this unit saw it: Gold cuts what it brought there."""
        unit = self._unit
        own = {
            "exchange": literal(unit.exchange),
            "day": day(unit.day),
            "symbol": "''",
            "local_ts": "local_ts",
            "earliest_ts": "earliest_ts",
            "latest_ts": "latest_ts",
            # As rows may have them.
            "symbols": "array_union(symbols, transform(symbols, each -> upper(each)))",
            "data_types": f"array({listed(unit.data_types)})",
            "unit": literal(unit.id),
        }
        columns = [f"{value} AS {name}" for name, value in own.items()]
        where = " AND ".join(f"{name} = {own[name]}" for name in ("exchange", "day", "unit"))
        self._tables.replace(
            lambda: self.rows("breaks").selectExpr(*columns).coalesce(1), BREAKS, where
        )

    def _write_disconnects(self) -> None:
        """Write the disconnects that nobody else tells."""
        unit = self._unit
        if BRONZE in unit.layers:
            self._tell(EVENTS, lambda told: told)
        if SILVER_LAYER in unit.layers and not unit.taken:
            self._tell(SILVER[DISCONNECT], _silver_disconnects)

    def _take_disconnects(self) -> None:
        """Bring those that Bronze has of the day so far into Silver."""
        told = self._tables.read(EVENTS).where(f"{self._seen()} AND {_OWN[EVENTS.path]}")
        table, where = SILVER[DISCONNECT], self._seen("t")
        self._tables.insert_new(lambda: _silver_disconnects(told), table, EVENT_KEY, where)

    def _disconnects(self) -> int:
        """Tell how many disconnects the unit's time has now."""
        unit = self._unit
        table = SILVER[DISCONNECT] if SILVER_LAYER in unit.layers else EVENTS
        inside = _within(unit.exchange, unit.start, unit.end)
        return self._tables.read(table).where(f"{inside} AND {_OWN[table.path]}").count()

    def _seen(self, alias: str = "") -> str:
        """Confine to the day so far: one at the beginning has the time of what came before it."""
        unit = self._unit
        return _within(unit.exchange, unit.day * DAY_US, unit.end, alias)

    def _tell(self, table: Table, made: Callable[["DataFrame"], "DataFrame"]) -> None:
        unit, tables = self._unit, self._tables
        known = f"{self._seen()} AND {_OWN[table.path]}"
        tables.create(table)
        # Only a whole day knows that there are no others.
        if unit.is_forced and unit.is_whole_day:
            tables.replace(lambda: made(self.rows("disconnects")), table, known)
            return
        keys = (*EVENT_KEY, *_BUS_OF[table.path])
        tables.insert_new(lambda: made(self._untold(table, known)), table, keys, self._seen("t"))

    def _untold(self, table: Table, known: str) -> "DataFrame":
        """Read the disconnects of the unit's times, but for those that are there.

        Another unit may know such a one by other messages.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

        there = self._tables.read(table).where(known).select("local_ts", "event_id")
        seen = self._tables.read(BREAKS).where(self._seen()).groupBy("local_ts")
        times = seen.agg(f.min("earliest_ts").alias("first"), f.max("latest_ts").alias("last"))
        told = there.join(times, "local_ts", "left").selectExpr(
            *(f"unix_micros(coalesce({name}, local_ts))" for name in ("first", "last"))
        )
        return self.rows(
            "disconnects",
            disconnectsOf=json.dumps(self._unit.disconnects),
            disconnectsTold=json.dumps([tuple(each) for each in told.collect()]),
        )


def _silver_disconnects(told: "DataFrame") -> "DataFrame":
    return silver.rows(told, DISCONNECT).drop(silver.DEFECT)


def read(tables: Tables, unit: Unit, source: Mapping[str, str]) -> "DataFrame":
    """Read a unit from history."""
    options = {
        **source,
        "exchange": unit.exchange,
        "from": moment(unit.start).isoformat(),
        "to": moment(unit.end).isoformat(),
        "dataTypes": ",".join(unit.data_types),
        "withDisconnectMessages": "true",
        "requestId": unit.id,
    }
    if unit.symbols is not None:
        options["symbols"] = ",".join(unit.symbols)
    return tardis.replayed(tables.spark, options)


def key(unit: Unit, alias: str = "") -> str:
    """Write which rows of a table are a unit's, but for their types."""
    column = f"{alias}.symbol" if alias else "symbol"
    parts = [_within(unit.exchange, unit.start, unit.end, alias)]
    if unit.symbols is not None:
        parts.append(among(column, _spelled(unit.symbols)))
    return " AND ".join(parts)


def _spelled(symbols: Sequence[str]) -> list[str]:
    """Give symbols as rows may have them: most are printed in upper case, however asked for."""
    return list(dict.fromkeys([*symbols, *(each.upper() for each in symbols)]))


_BUS_OF: Final[Mapping[str, tuple[str, ...]]] = {EVENTS.path: ("bus",), SILVER[DISCONNECT].path: ()}
"""Bronze keeps what each source brought, Silver each event once."""
_OWN: Final[Mapping[str, str]] = {
    EVENTS.path: f"bus = {literal(BUS)} AND payload_case = {literal(DISCONNECT)}",
    SILVER[DISCONNECT].path: "origin <> 'realtime'",
}
"""Which rows of a table are disconnects that backfills told."""
_TROUBLES: Final = {kind: f"{TROUBLE} = {literal(kind)}" for kind in (REJECTED, DISCONNECT)}


def _of_types(column: str, types: Sequence[str]) -> dict[str, str]:
    return {each: f"{column} = {literal(each)}" for each in types}


def _within(exchange: str, start: int, end: int, alias: str = "") -> str:
    dot = f"{alias}." if alias else ""
    return (
        f"{dot}exchange = {literal(exchange)} AND {dot}day = {day(start // DAY_US)} "
        f"AND {dot}local_ts >= {instant(start)} AND {dot}local_ts < {instant(end)}"
    )


def _rejects_of(unit: Unit) -> str:
    """Write what in quarantine a unit put there, or one that was cut differently."""
    symbols = "" if unit.symbols is None else f" AND {among('symbol', _spelled(unit.symbols))}"
    return (
        f"bus = {literal(BUS)} AND (unit = {literal(unit.id)} OR "
        f"(exchange = {literal(unit.exchange)} AND local_ts >= {instant(unit.start)} "
        f"AND local_ts < {instant(unit.end)} AND {among('data_type', unit.data_types)}{symbols}))"
    )


def _by_day(units: Sequence[Unit]) -> Iterable[list[Unit]]:
    days: dict[tuple[str, int], list[Unit]] = {}
    for unit in units:
        days.setdefault((unit.exchange, unit.day), []).append(unit)
    return days.values()
