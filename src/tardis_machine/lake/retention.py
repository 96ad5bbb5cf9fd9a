"""Days that are no longer kept."""

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from tardis_machine.lake.catalog import TABLES
from tardis_machine.lake.spans import literal
from tardis_machine.lake.tables import MANIFEST, QUARANTINE, Table, Tables, among


class Dropped(NamedTuple):
    """What a table lost, or would lose."""

    table: str
    days: int
    first: date
    last: date


def drop_days(
    tables: Tables,
    layers: Sequence[str],
    first_kept: date,
    exchanges: Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> list[Dropped]:
    """Drop days before one from layers; a later backfill may bring them in again.

    Gold keeps what was made of them, unless it is dropped as well. Files go with the next vacuum
    that finds them a week old.
    """
    until = f"DATE{literal(first_kept.isoformat())}"
    own = f" AND {among('exchange', exchanges)}" if exchanges else ""
    before = f"day < {until}{own}"
    if not dry_run:
        # First: a manifest that says less than there is does no harm.
        _forget(tables, MANIFEST, f"{among('layer', layers)} AND {before}")
        if "bronze" in layers:
            aside = f"local_ts < timestamp_micros(unix_date({until}) * 86400000000L){own}"
            _forget(tables, QUARANTINE, aside)
    found = []
    for name, table in TABLES.items():
        layer = table.path.partition("/")[0]
        if layer not in layers or "day" not in table.partitioned_by or not tables.exists(table):
            continue
        rows = tables.read(table).where(before).select("exchange", "day").distinct()
        [(count, first, last)] = rows.selectExpr("count(*)", "min(day)", "max(day)").collect()
        if count:
            found.append(Dropped(name, count, first, last))
            if not dry_run:
                tables.delete(table, before)
    return found


def _forget(tables: Tables, table: Table, where: str) -> None:
    if tables.exists(table):
        tables.delete(table, where)
