"""The whole way of a batch of records from a bus: Bronze, quarantine, Silver."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake import events as bronze
from tardis_machine.lake import quarantine, silver
from tardis_machine.lake.counting import Counted
from tardis_machine.lake.groups import TRADE, Group, summed_up
from tardis_machine.lake.joining import joining
from tardis_machine.lake.spans import condition, instant
from tardis_machine.lake.tables import EVENTS, SILVER, Commit, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Two servers receive one live trade moments apart, and a reconnect brings older ones again.
TRADE_SLACK_US: Final = 3_600_000_000
# Small merges are mostly Spark's planning: a few at once keep the cores busy.
MERGES_AT_ONCE: Final = 4
# As many rows as go to Python at once. A file for each task would have to be joined with others
# soon, and the log of its table names it for a day after that.
_ONE_FILE_EVENTS: Final = 20_000

EVENT_KEY: Final = ("exchange", "day", "local_ts", "event_id")
"""What tells events apart: the id alone would do, the rest says which files can have it."""


class Written(NamedTuple):
    """What a batch brought: none of it, where it had been written before."""

    events: int
    """Rows that Bronze gained."""
    rejected: int
    """Records that quarantine gained."""
    inserted: dict[str, int]
    """Rows that Silver gained, by payload case."""
    latest_us: int | None = None
    """When the bus took the newest of its records."""


def write_batch(
    tables: Tables,
    records: "DataFrame",
    commit: Commit,
    *,
    bronze_only: bool = False,
    may_repeat: bool = True,
) -> Written:
    """Bring a batch of records into the tables; doing so again changes nothing.

    `may_repeat` says that an earlier process may have written the batch in part.
    """
    inspected = bronze.inspected(tables.own(records)).persist()
    try:
        events = bronze.events(inspected)
        groups = summed_up(inspected)
        latest = max((g.latest_us for g in groups if g.latest_us is not None), default=None)
        rejected = 0
        if any(group.case is None for group in groups):
            rejected = quarantine.set_aside_records(tables, inspected)
            groups = [group for group in groups if group.case is not None]
        if sum(group.events for group in groups) <= _ONE_FILE_EVENTS:
            events = events.coalesce(1)
        # A batch that was written in part is written again: which table has it first is all one.
        with joining(tables.spark, commit.version), ThreadPoolExecutor(1) as beside:
            appending = beside.submit(_append, tables, events, commit, groups, may_repeat)
            inserted: dict[str, int] = {}
            if not bronze_only:
                inserted, defective = write_silver(tables, events, groups)
                rejected += defective
            return Written(appending.result(), rejected, inserted, latest)
    finally:
        inspected.unpersist()


def _append(
    tables: Tables, events: "DataFrame", commit: Commit, groups: list[Group], may_repeat: bool
) -> int:
    if not groups or (may_repeat and tables.has(EVENTS, commit)):
        return 0
    tables.append_once(events, EVENTS, commit)
    return sum(group.events for group in groups)


def write_silver(
    tables: Tables, events: "DataFrame", groups: list[Group]
) -> tuple[dict[str, int], int]:
    """Bring Bronze events into Silver; tell what each payload case and quarantine gained."""
    events = tables.own(events)
    cases: dict[str, list[Group]] = {}
    for group in groups:
        if group.case is not None:
            cases.setdefault(group.case, []).append(group)
    newer = cases.pop(bronze.NEWER, [])
    with ThreadPoolExecutor(MERGES_AT_ONCE) as pool:
        running = {
            case: pool.submit(_insert, tables, events, case, own) for case, own in cases.items()
        }
        outcomes = {case: future.result() for case, future in running.items()}
    defective = sum(rejected for _, rejected in outcomes.values())
    if newer:
        defective += quarantine.set_aside_newer(tables, events)
    return {case: inserted for case, (inserted, _) in outcomes.items()}, defective


def _insert(tables: Tables, events: "DataFrame", case: str, groups: list[Group]) -> tuple[int, int]:
    table = SILVER[case]
    spans = [group.span for group in groups]
    repeats = any(group.repeats for group in groups)
    traded = [group for group in groups if group.traded and case == TRADE]
    tables.create(table)
    counted = Counted(
        lambda: silver.rows(events, case),
        {"defects": f"{silver.DEFECT} IS NOT NULL"},
        trouble=silver.DEFECT,
    )

    def fresh() -> "DataFrame":
        rows = counted()
        if repeats:
            # Rows are sorted for it, which costs more than to write them.
            rows = rows.dropDuplicates(list(EVENT_KEY))
        if not traded:
            return rows
        known = tables.read(table).alias("t").where(_taken_before(traded, "t"))
        return silver.one_of_each_trade(rows, known, twins=any(group.twins for group in groups))

    inserted = tables.insert_new(fresh, table, EVENT_KEY, condition(spans, "t"))
    if not counted.counts["defects"]:
        return inserted, 0
    return inserted, quarantine.set_aside_defects(tables, events, case)


def _taken_before(traded: list[Group], alias: str) -> str:
    """Confine a query to trades that may be among those of a batch, taken by another server."""
    near = condition([group.span.widened(TRADE_SLACK_US) for group in traded], alias)
    times = [time for group in traded for time in group.traded or ()]
    # The slack is long, and may hold millions.
    return f"{near} AND {alias}.event_ts BETWEEN {instant(min(times))} AND {instant(max(times))}"
