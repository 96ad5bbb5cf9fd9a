"""Gold kept up with Silver: days that changed are made anew, and nothing else is."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake.counting import Counted
from tardis_machine.lake.gold import changes, origins, progress
from tardis_machine.lake.gold.changes import Version
from tardis_machine.lake.gold.parts import Changes, Part, condition, days_of, merged
from tardis_machine.lake.gold.progress import Reached
from tardis_machine.lake.gold.table import GoldTable, Job
from tardis_machine.lake.spans import DAY_US, day, literal
from tardis_machine.lake.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Small tables are mostly Spark's planning: a few at once keep the cores busy.
_TABLES_AT_ONCE: Final = 3
# Days that one commit replaces: more of them would only make its condition longer.
_DAYS_AT_ONCE: Final = 16
_ANY: Final = ""
_NOTHING: Final = Reached({}, 0)


class Wanted(NamedTuple):
    """A Gold table, and which of its variants."""

    gold: GoldTable
    variant: str = ""

    @property
    def made(self) -> str:
        """How progress and logs name it."""
        return f"{self.gold.name}/{self.variant}" if self.variant else self.gold.name


class Refreshed(NamedTuple):
    """What keeping up meant for a table."""

    wanted: Wanted
    days: int
    rows: int
    seconds: float


def refresh(
    tables: Tables,
    wanted: Sequence[Wanted],
    report: Callable[[Refreshed], None] = lambda _: None,
    *,
    now_us: int | None = None,
) -> list[Refreshed]:
    """Make anew what changed in the sources since the last time; again, it changes nothing.

    `now_us` is the time that says which days are over.
    """
    before = progress.reached(tables)
    now = time.time_ns() // 1000 if now_us is None else now_us
    made = {each.gold.table.path for each in wanted}
    # What is made from Gold comes after that.
    later = [each for each in wanted if made & {table.path for table in each.gold.sources}]
    first = [each for each in wanted if each not in later]
    done: list[Refreshed] = []
    reached: dict[str, Reached] = {}
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        try:
            for stage in (first, later):
                sources = _Sources.of(tables, stage, before, pool)
                run = _Run(tables, sources, now)
                for each, outcome in zip(stage, pool.map(run.bring_up, stage), strict=True):
                    versions = sources.versions_of(each)
                    if outcome.days or sources.before(each).versions != versions:
                        reached[each.made] = Reached(versions, now)
                    done.append(outcome)
                    report(outcome)
        finally:
            progress.write_down(tables, reached)
    return done


class _Sources:
    """The sources of some tables: where they are, and what changed in them."""

    def __init__(
        self,
        reached: Mapping[str, Reached],
        versions: Mapping[str, Version],
        changed: Mapping[tuple[str, Version | None], Changes],
    ) -> None:
        self._reached = reached
        self._versions = versions
        self._changed = changed

    @classmethod
    def of(
        cls,
        tables: Tables,
        wanted: Sequence[Wanted],
        reached: Mapping[str, Reached],
        pool: ThreadPoolExecutor,
    ) -> "_Sources":
        """Ask each source once, however many tables are made from it."""
        every = {table.path: table for each in wanted for table in each.gold.watched}
        known = [table for table in every.values() if tables.exists(table)]
        # Taken before anything is read: what comes in meanwhile is seen again the next time.
        found = list(pool.map(lambda table: changes.version(tables, table), known))
        versions = {table.path: each for table, each in zip(known, found, strict=True)}
        asked = list(
            dict.fromkeys(
                (table.path, reached.get(each.made, _NOTHING).versions.get(table.path))
                for each in wanted
                for table in each.gold.watched
                if table.path in versions
            )
        )
        told = pool.map(
            lambda one: changes.since(tables, every[one[0]], one[1], versions[one[0]]), asked
        )
        return cls(reached, versions, dict(zip(asked, told, strict=True)))

    def before(self, wanted: Wanted) -> Reached:
        """Tell how far a table has come."""
        return self._reached.get(wanted.made, _NOTHING)

    def versions_of(self, wanted: Wanted) -> dict[str, Version]:
        """Tell where a table's sources are."""
        paths = [table.path for table in wanted.gold.watched]
        return {path: self._versions[path] for path in paths if path in self._versions}

    def changes(self, wanted: Wanted) -> Changes:
        """Tell what changed in a table's sources since it was made."""
        since = self.before(wanted).versions
        found: Changes = {}
        for path in self.versions_of(wanted):
            found = merged(found, self._changed[path, since.get(path)])
        return found


class _Run:
    """One time of keeping up."""

    def __init__(self, tables: Tables, sources: _Sources, now_us: int) -> None:
        self._tables = tables
        self._sources = sources
        self._now_us = now_us

    def bring_up(self, wanted: Wanted) -> Refreshed:
        """Bring one table up to its sources."""
        began = time.monotonic()
        changed = merged(self._sources.changes(wanted), self._ended(wanted))
        parts = self._parts(wanted, changed) if changed else []
        rows = sum(self._replace(wanted, some) for some in _several(parts))
        return Refreshed(wanted, len(parts), rows, time.monotonic() - began)

    def _ended(self, wanted: Wanted) -> Changes:
        """Give the days that ended since the last time, where that alone makes a difference."""
        at_us = self._sources.before(wanted).at_us
        ended = range(at_us // DAY_US, self._now_us // DAY_US)
        [source, *_] = wanted.gold.sources
        if not (wanted.gold.closes_days and at_us and ended and self._tables.exists(source)):
            return {}
        between = f"day BETWEEN {day(ended[0])} AND {day(ended[-1])}"
        return dict.fromkeys(_days(self._tables.read(source).where(between)))

    def _parts(self, wanted: Wanted, changed: Changes) -> list[Part]:
        """Give the days to make anew, without those that the sources have no longer."""
        gold, tables = wanted.gold, self._tables
        sources = [table for table in gold.sources if tables.exists(table)]
        if len(gold.sources) > 1:
            rows = [tables.read(table).where(days_of(changed)) for table in sources]
            held = {key for each in rows for key in _days(each)}
            chosen = dict.fromkeys(held, _ANY)
        else:
            chosen = origins.chosen(tables, sources[0], changed) if sources else {}
        # Of days that are made anew as a whole it does not matter what Gold has.
        partly = {key: each for key, each in chosen.items() if changed[key] is not None}
        taken = self._taken(wanted, partly)

        def part(key: origins.Day, origin: str) -> Part:
            replaced = taken.get(key, {origin}) != {origin}
            return Part(*key, None if replaced else changed[key], origin)

        return [part(key, chosen[key]) for key in sorted(chosen, key=lambda key: key[::-1])]

    def _taken(
        self, wanted: Wanted, days: Mapping[origins.Day, str]
    ) -> dict[origins.Day, set[str]]:
        """Tell which origins Gold has of these days: where another is chosen, all of it goes."""
        gold, tables = wanted.gold, self._tables
        if len(gold.sources) > 1 or not days or not tables.exists(gold.table):
            return {}
        rows = tables.read(gold.table).where(days_of(days)).where(_variant(wanted))
        return origins.present(rows)

    def _replace(self, wanted: Wanted, parts: Sequence[Part]) -> int:
        gold = wanted.gold
        job = Job(self._tables, wanted.variant, tuple(parts), self._now_us)
        counted = Counted(lambda: gold.rows(job).select(*gold.table.columns), {"rows": "true"})
        where = f"({condition(parts)}) AND {_variant(wanted)}"
        self._tables.replace(counted, gold.table, where)
        return counted.counts["rows"]


def _variant(wanted: Wanted) -> str:
    return f"name = {literal(wanted.variant)}" if wanted.variant else "true"


def _days(rows: "DataFrame") -> list[tuple[str, int]]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    found = rows.select("exchange", f.unix_date("day")).distinct().collect()
    return [(exchange, number) for exchange, number in found]


def _several(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    for first in range(0, len(parts), _DAYS_AT_ONCE):
        yield parts[first : first + _DAYS_AT_ONCE]
