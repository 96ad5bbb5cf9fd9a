"""Upkeep of the tables: fewer and ordered files, no leftovers, and how large they are."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from tardis_machine.lake.catalog import TABLES
from tardis_machine.lake.spans import literal
from tardis_machine.lake.tables import Table, Tables, retried

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WEEK_HOURS: Final = 168
_FIRST_LOOK: Final = 1000


Partition = tuple[tuple[str, str], ...]
"""The columns that a table is partitioned by, each with its value as text."""


class Size(NamedTuple):
    """A table's extent."""

    name: str
    rows: int
    files: int
    bytes: int


def existing(tables: Tables, names: Iterable[str] = ()) -> dict[str, Table]:
    """Give the tables of these names that are there; of all, if none is named."""
    chosen = {name: TABLES[name] for name in names} or TABLES
    return {name: table for name, table in chosen.items() if tables.exists(table)}


def compact(tables: Tables, table: Table) -> int:
    """Join files of the days that changed since the last time, ordered by what is asked for most.

    Tells how many days, or parts of a table without days, that were.
    """
    changed = _changed(tables, table)
    if not changed:
        return 0
    days = " OR ".join(
        "("
        + " AND ".join(f"{name} = {_value(table, name, text)}" for name, text in partition)
        + ")"
        for partition in changed
        if partition
    )
    confined = f"WHERE {days} " if days else ""
    ordered = ", ".join(table.ordered_by)
    statement = f"OPTIMIZE {tables.name(table)} {confined}ZORDER BY ({ordered})"
    retried(f"compact {table.path}", lambda: tables.spark.sql(statement).collect())
    return len(changed)


def vacuum(tables: Tables, table: Table, retain_hours: int = _WEEK_HOURS) -> None:
    """Delete files that no version of the last hours needs."""
    tables.spark.sql(f"VACUUM {tables.name(table)} RETAIN {retain_hours} HOURS").collect()


def size(tables: Tables, name: str) -> Size:
    """Measure a table."""
    table = TABLES[name]
    [detail] = tables.spark.sql(f"DESCRIBE DETAIL {tables.name(table)}").collect()
    return Size(name, tables.read(table).count(), detail["numFiles"], detail["sizeInBytes"])


def _changed(tables: Tables, table: Table) -> list[Partition]:
    """Find partitions of several files that are not as the last compaction left them."""
    now = _files(tables.read(table), table)
    joined = _last_joined(tables, table)
    return [
        partition
        for partition, files in sorted(now.items())
        if len(files) > 1 and joined.get(partition) != files
    ]


def _last_joined(tables: Tables, table: Table) -> dict[Partition, set[str]]:
    """Give each partition's files as they were after the last compaction.

    It left out those that had not changed since the one before.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

    last = _last_compaction(tables, table)
    if last is None:
        return {}
    reader = tables.spark.read.format("delta").option("versionAsOf", last)
    try:
        return _files(reader.load(tables.path(table)), table)
    except PySparkException:  # its log is too old to be read
        return {}


def _last_compaction(tables: Tables, table: Table) -> int | None:
    """Find the version, from the newest back: a stream makes thousands a day, each a file."""
    looked_at = _FIRST_LOOK
    while True:
        history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(table)} LIMIT {looked_at}")
        last: int | None
        [(versions, last)] = history.selectExpr(
            "count(*)",
            "max(version) FILTER (WHERE operation = 'OPTIMIZE' "
            "AND operationParameters.zOrderBy <> '[]')",
        ).collect()
        if last is not None or versions < looked_at:
            return last
        looked_at *= 10


def _files(rows: "DataFrame", table: Table) -> dict[Partition, set[str]]:
    found: dict[Partition, set[str]] = {}
    depth = len(table.partitioned_by)
    for path in rows.inputFiles():
        # Partitions' values are escaped in paths, and paths in what Spark gives of them. Folders
        # above the table may be named like those of a partition.
        *folders, _ = unquote(path).split("/")
        values = [folder.partition("=")[2] for folder in folders[len(folders) - depth :]]
        partition = tuple(zip(table.partitioned_by, map(unquote, values), strict=True))
        found.setdefault(partition, set()).add(path)
    return found


def _value(table: Table, name: str, text: str) -> str:
    return f"DATE{literal(text)}" if table.columns[name] == "DATE" else literal(text)
