"""How far Gold has followed each of the tables that it is made from."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tardis_machine.lake.gold.changes import Version
from tardis_machine.lake.records import schema_of
from tardis_machine.lake.session import frame
from tardis_machine.lake.spans import moment
from tardis_machine.lake.tables import Table, Tables, among

PROGRESS: Final = Table(
    "gold/gold_progress",
    {
        "made": "STRING",
        "source": "STRING",
        "table_id": "STRING",
        "version": "BIGINT",
        "at": "TIMESTAMP",
    },
    partitioned_by=(),
    ordered_by=("made",),
    statistics=("made",),
    comments={
        "made": "a Gold table, and which of its variants",
        "source": "a table that it is made from",
        "table_id": "which table that was: one made anew has another",
        "version": "the version of the source that is in Gold",
        "at": "when that was, UTC",
    },
)


class Reached(NamedTuple):
    """How far something that was made follows its sources, and when that was, in microseconds."""

    versions: Mapping[str, Version]
    """By the source's path."""
    at_us: int


def reached(tables: Tables) -> dict[str, Reached]:
    """Tell, for whatever was made, how far its sources were followed."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not tables.exists(PROGRESS):
        return {}
    found: dict[str, dict[str, Version]] = {}
    times: dict[str, int] = {}
    lines = tables.read(PROGRESS).select(
        "made", "source", "table_id", "version", f.unix_micros("at")
    )
    for made, source, table_id, version, at_us in lines.collect():
        found.setdefault(made, {})[source] = Version(table_id, version)
        times[made] = at_us
    return {made: Reached(versions, times[made]) for made, versions in found.items()}


def write_down(tables: Tables, made: Mapping[str, Reached]) -> None:
    """Note how far these have come, in place of what was noted of them."""
    if not made:
        return
    lines = [
        (name, source, *version, moment(each.at_us))
        for name, each in made.items()
        for source, version in each.versions.items()
    ]
    rows = frame(tables.spark, lines, schema_of(PROGRESS.columns))
    tables.replace(lambda: rows, PROGRESS, among("made", sorted(made)))
