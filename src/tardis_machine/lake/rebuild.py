"""Silver rebuilt from Bronze: only where Bronze has events, and each day in one commit."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.engine import DataTypeError
from tardis_machine.lake import manifest, quarantine, silver
from tardis_machine.lake.batches import EVENT_KEY, MERGES_AT_ONCE, TRADE_SLACK_US
from tardis_machine.lake.counting import Counted
from tardis_machine.lake.events import NEWER
from tardis_machine.lake.groups import TRADE
from tardis_machine.lake.joining import joining
from tardis_machine.lake.spans import DAY_US, Span, condition, day, literal, moment
from tardis_machine.lake.tables import EVENTS, SILVER, Tables
from tardis_machine.lake.units import DISCONNECT, case_of
from tardis_machine.lake.units import SILVER as SILVER_LAYER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_EVENT: Final = ("exchange", "day", "event_id")


class Part(NamedTuple):
    """A day of an exchange in one Silver table, compared with Bronze."""

    case: str
    exchange: str
    day: int
    """Counted from 1970."""
    events: int = 0
    """Events of Bronze, from which the day is rebuilt; without any it is not."""
    lacking: int = 0
    """Rows of Silver whose event Bronze does not have."""

    @property
    def table(self) -> str:
        """The name of the Silver table."""
        return SILVER[self.case].path.rpartition("/")[2]

    @property
    def day_text(self) -> str:
        """The day as `YYYY-MM-DD`."""
        return f"{moment(self.day * DAY_US):%Y-%m-%d}"

    @property
    def condition(self) -> str:
        """The SQL condition for the day's partition, in Bronze and in Silver."""
        return f"exchange = {literal(self.exchange)} AND day = {day(self.day)}"


def compare(tables: Tables) -> list[Part]:
    """Compare each day of each Silver table with Bronze, ordered by day; nothing is changed."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    number = f.unix_date("day")
    events = tables.read(EVENTS)
    counted = events.groupBy("payload_case", "exchange", number).count().collect()
    parts = {
        (case, exchange, of): Part(case, exchange, of, events=count)
        for case, exchange, of, count in counted
    }
    for case, table in SILVER.items():
        if not tables.exists(table):
            continue
        lacking = tables.read(table).join(events.select(*_EVENT), [*_EVENT], "left_anti")
        for exchange, of, count in lacking.groupBy("exchange", number).count().collect():
            key = (case, exchange, of)
            parts[key] = parts.get(key, Part(*key))._replace(lacking=count)
    return sorted(parts.values(), key=lambda part: (part.day, part.exchange, part.case))


def rebuild(
    tables: Tables, parts: Sequence[Part] | None = None, *, drop_what_bronze_lacks: bool = False
) -> None:
    """Rebuild days of Silver from Bronze, each day of a table in one commit.

    Rows whose event Bronze does not have are kept, unless `drop_what_bronze_lacks`. Interrupted, it
    leaves each day as it was or rebuilt, and can be run again. `parts` are those of `compare`.
    """
    chosen = compare(tables) if parts is None else parts
    # First: a manifest that lists fewer days than Silver has only costs another backfill.
    _forget_finished(tables, chosen, drop=drop_what_bronze_lacks)
    changed = [part for part in chosen if part.events or (drop_what_bronze_lacks and part.lacking)]
    write = partial(_rebuild_part, tables, drop=drop_what_bronze_lacks)
    done = 0
    # The commits of a rebuild write few files: to join small files would cost as much again.
    with joining(tables.spark, None), ThreadPoolExecutor(MERGES_AT_ONCE) as pool:
        for (number, exchange), group in groupby(changed, lambda part: (part.day, part.exchange)):
            own = list(group)
            list(pool.map(write, own))
            done += len(own)
            log.info(
                "day rebuilt",
                extra={
                    "exchange": exchange,
                    "day": f"{moment(number * DAY_US):%Y-%m-%d}",
                    "events": sum(part.events for part in own),
                    "done": f"{done}/{len(changed)}",
                },
            )


def _rebuild_part(tables: Tables, part: Part, *, drop: bool) -> None:
    events = tables.read(EVENTS).where(part.condition)
    if part.case == NEWER:
        quarantine.set_aside_newer(tables, events)
        return
    table = SILVER[part.case]
    counted = Counted(
        lambda: silver.rows(events, part.case),
        {"defects": f"{silver.DEFECT} IS NOT NULL"},
        trouble=silver.DEFECT,
    )

    def rows() -> "DataFrame":
        fresh = counted().dropDuplicates(list(EVENT_KEY))
        there = tables.read(table)
        own = events.where(events.payload_case == part.case).select("event_id")
        kept = there.where(part.condition).join(own, "event_id", "left_anti")
        if drop:
            # What `quarantine --release` added comes from Bronze, too, under another payload case.
            kept = kept.join(events.select("event_id"), "event_id", "left_semi")
        if part.case == TRADE:
            near = _near(tables, part, there, drop=drop)
            fresh = silver.one_of_each_trade(fresh, near.unionByName(kept))
        return fresh.unionByName(kept, allowMissingColumns=True)

    tables.replace(rows, table, part.condition)
    if counted.counts["defects"]:
        quarantine.set_aside_defects(tables, events, part.case)


def _near(tables: Tables, part: Part, trades: "DataFrame", *, drop: bool) -> "DataFrame":
    """Read trades of the days beside this one, where another server may have had the same trade."""
    start = part.day * DAY_US
    span = Span(part.exchange, start, start + DAY_US - 1).widened(TRADE_SLACK_US)
    near = trades.alias("t").where(f"{condition([span], 't')} AND NOT ({part.condition})")
    if not drop:
        return near
    # Trades that are about to be dropped must not keep another copy out.
    events = tables.read(EVENTS).alias("e").where(condition([span], "e"))
    return near.join(events.select(*_EVENT), [*_EVENT], "left_semi")


def _forget_finished(tables: Tables, parts: Sequence[Part], *, drop: bool) -> None:
    """Delete from the manifest the days that Silver does not have, or is about to lose."""
    left = {part[:3] for part in parts if not (drop and part.lacking)}
    gone = []
    for line in manifest.with_events(tables, SILVER_LAYER):
        try:
            case = DISCONNECT if line.data_type == DISCONNECT else case_of(line.data_type)
        except DataTypeError:  # of a newer version
            continue
        if (case, line.exchange, line.day) not in left:
            gone.append(line)
    manifest.forget(tables, SILVER_LAYER, gone)
