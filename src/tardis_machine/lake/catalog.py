"""All tables by name, and how a catalog learns of them."""

from typing import Final

from tardis_machine.lake.comments import comments
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.changes import feed
from tardis_machine.lake.gold.progress import PROGRESS
from tardis_machine.lake.spans import literal
from tardis_machine.lake.tables import ALL, Table, Tables, retried

TABLES: Final[dict[str, Table]] = {
    **ALL,
    **{name: gold.table for name, gold in GOLD.items()},
    PROGRESS.path.rpartition("/")[2]: PROGRESS,
}
"""Of all layers, by name, such as `events`, `trades` and `bars`."""


def register(tables: Tables, database: str) -> list[str]:
    """Make every table that is there known to the session's catalog; give their names there.

    The files stay where they are. Tables of earlier versions get comments and change data feed.
    """
    spark = tables.spark
    quoted = ".".join(f"`{part}`" for part in database.split("."))
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
    made = []
    for name, table in TABLES.items():
        if not tables.exists(table):
            continue
        _describe(tables, table)
        there = f"{quoted}.`{name}`"
        if spark.catalog.tableExists(there):
            _refuse_another(tables, table, there)
        else:
            where = literal(tables.path(table))
            spark.sql(f"CREATE TABLE {there} USING delta LOCATION {where}")
        made.append(f"{database}.{name}")
    return made


def is_lasting(tables: Tables) -> bool:
    """Tell whether the session's catalog outlives it."""
    return tables.spark.conf.get("spark.sql.catalogImplementation") != "in-memory"


def _describe(tables: Tables, table: Table) -> None:
    """Give columns their comments, and the table its feed, where an earlier version did not."""
    name = tables.name(table)
    held = tables.read(table).schema
    wanted = dict(zip(table.columns, comments(table.columns, table.comments), strict=True))
    silent = [
        field.name
        for field in held.fields
        if field.name in wanted and field.metadata.get("comment") != wanted[field.name]
    ]
    if silent:
        changes = ", ".join(f"`{each}` COMMENT {literal(wanted[each])}" for each in silent)
        statement = f"ALTER TABLE {name} ALTER COLUMN {changes}"
        retried(f"comment {table.path}", lambda: tables.spark.sql(statement).collect())
    feed(tables, table)


def _refuse_another(tables: Tables, table: Table, there: str) -> None:
    ids = [
        tables.spark.sql(f"DESCRIBE DETAIL {each}").select("id", "location").collect()[0]
        for each in (there, tables.name(table))
    ]
    if ids[0]["id"] != ids[1]["id"]:
        raise LakeError(
            f"{there} is another table, at {ids[0]['location']}: drop it in the catalog, or choose "
            "another --database"
        )
