"""What changed in a table since a version of it, by its change data feed."""

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake.gold.parts import Changes
from tardis_machine.lake.spans import literal
from tardis_machine.lake.tables import FEED, Table, Tables, retried

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# With more symbols than this a day is made anew as a whole.
_MOST_SYMBOLS: Final = 50
# The feed does not reach back so far: its log was cleaned up, its files vacuumed, or it was off.
_GONE: Final = (
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_CHANGE_TABLE_FEED_DISABLED",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE",
    "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_FILE_NOT_FOUND",
    "DELTA_VERSION_NOT_CONTIGUOUS",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_VERSION_NOT_FOUND",
    "FILE_NOT_EXIST",
)


class Version(NamedTuple):
    """A state of a table: which table it is, since one made anew begins at 0 again."""

    table_id: str
    number: int


def version(tables: Tables, table: Table) -> Version:
    """Tell a table's present state; from then on, what changes in it can be told."""
    table_id = feed(tables, table)
    history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(table)} LIMIT 1")
    [last] = history.select("version").collect()
    return Version(table_id, last["version"])


def feed(tables: Tables, table: Table) -> str:
    """Make a table of an earlier version tell its changes, too; give its id."""
    name = tables.name(table)
    [detail] = tables.spark.sql(f"DESCRIBE DETAIL {name}").select("id", "properties").collect()
    key, value = FEED
    if (detail["properties"] or {}).get(key) != value:
        statement = f"ALTER TABLE {name} SET TBLPROPERTIES ({literal(key)} = {literal(value)})"
        retried(f"alter {table.path}", lambda: tables.spark.sql(statement).collect())
    return str(detail["id"])


def since(tables: Tables, table: Table, before: Version | None, now: Version) -> Changes:
    """Give what changed between two states: everything, where that cannot be told."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

    if before == now:
        return {}
    if before is not None and before.table_id == now.table_id:
        told = (
            tables.spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", before.number + 1)
            .option("endingVersion", now.number)
            .load(tables.path(table))
        )
        try:
            return _changes(told)
        except PySparkException as error:
            if not any(code in str(error) for code in _GONE):
                raise
            log.warning(
                "change data feed is gone: everything is made anew",
                extra={"table": table.path, "since_version": before.number},
            )
    return dict.fromkeys(_changes(tables.read(table)))


def _changes(rows: "DataFrame") -> Changes:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    # Rows without a symbol, such as disconnects, concern all.
    symbol = f.when(f.col("symbol") != "", f.col("symbol"))
    symbols = f.collect_set(symbol)
    known = (f.size(symbols) <= _MOST_SYMBOLS) & (f.count(symbol) == f.count("*"))
    found = rows.groupBy("exchange", f.unix_date("day")).agg(f.when(known, symbols)).collect()
    return {
        (exchange, day): None if names is None else frozenset(names)
        for exchange, day, names in found
    }
