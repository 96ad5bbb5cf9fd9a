"""Upkeep of the tables: fewer and ordered files, no leftovers, and how large they are."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tardis_machine.lake.tables import ALL, Table, Tables

_WEEK_HOURS: Final = 168


class Size(NamedTuple):
    """A table's extent."""

    name: str
    rows: int
    files: int
    bytes: int


def existing(tables: Tables, names: Iterable[str] = ()) -> dict[str, Table]:
    """Give the tables of these names that are there; of all, if none is named."""
    chosen = {name: ALL[name] for name in names} or ALL
    return {name: table for name, table in chosen.items() if tables.exists(table)}


def compact(tables: Tables, table: Table) -> None:
    """Join small files, ordered by what is asked for most, with fresh statistics on each."""
    ordered = ", ".join(table.ordered_by)
    tables.spark.sql(f"OPTIMIZE {tables.name(table)} ZORDER BY ({ordered})").collect()


def vacuum(tables: Tables, table: Table, retain_hours: int = _WEEK_HOURS) -> None:
    """Delete files that no version of the last hours needs."""
    tables.spark.sql(f"VACUUM {tables.name(table)} RETAIN {retain_hours} HOURS").collect()


def size(tables: Tables, name: str) -> Size:
    """Measure a table."""
    table = ALL[name]
    [detail] = tables.spark.sql(f"DESCRIBE DETAIL {tables.name(table)}").collect()
    return Size(name, tables.read(table).count(), detail["numFiles"], detail["sizeInBytes"])
