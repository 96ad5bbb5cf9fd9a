"""Records that a table cannot take: kept whole, with where they were read and why."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.bronze import KEPT
from tardis_machine.lake.tables import QUARANTINE, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ENVELOPE: Final = ("event_id", "exchange", "symbol", "payload_case", "local_ts")


def rejected(inspected: "DataFrame") -> "DataFrame":
    """Give what Bronze cannot read, and what Silver cannot hold, as rows of the table."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    in_bronze = inspected.reason.isNotNull()
    place = f.concat_ws(":", "bus", "destination", "partition", "offset")
    return inspected.where(in_bronze | inspected.defect.isNotNull()).select(
        # A record has its place on the bus; an event its id, wherever it is read again.
        f.when(in_bronze, place).otherwise(f.concat(f.lit("event:"), "event_id")).alias("id"),
        f.when(in_bronze, "bronze").otherwise("silver").alias("stage"),
        f.coalesce("reason", "defect").alias("reason"),
        *(f.when(~in_bronze, f.col(name)).alias(name) for name in _ENVELOPE),
        *KEPT,
    )


def set_aside(tables: Tables, inspected: "DataFrame") -> int:
    """Put rejected records into quarantine, each once; tell how many were new."""
    fresh = rejected(inspected).dropDuplicates(["id"])
    return tables.insert_new(fresh, QUARANTINE, ["{}.id"])
