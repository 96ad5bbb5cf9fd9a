"""What a table cannot take: kept whole, with where it was read and why."""

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake import events as bronze
from tardis_machine.lake import silver
from tardis_machine.lake.records import KEPT
from tardis_machine.lake.tables import QUARANTINE, Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NORMALIZE: Final = "normalize"
"""The stage of a recorded line that cannot be normalized; its value is that line."""
ENCODE: Final = "encode"
"""The stage of a normalized message that has no envelope; its value is that message."""
BRONZE: Final = "bronze"
"""The stage of a record from a bus that cannot be read."""
SILVER: Final = "silver"
"""The stage of an event that Bronze has and Silver cannot hold."""

_ENVELOPE: Final = ("event_id", "exchange", "symbol", "payload_case", "data_type", "local_ts")
_UNIT: Final = "unit"


class Held(NamedTuple):
    """Records that are in quarantine for the same reason."""

    stage: str
    reason: str
    exchange: str | None
    day: date | None
    records: int


def set_aside_records(tables: Tables, inspected: "DataFrame") -> int:
    """Put what Bronze cannot read into quarantine, each record once; tell how many were new."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    bad = inspected.where(inspected.reason.isNotNull())
    unknown = [
        f.lit(None).cast(QUARANTINE.columns[name].lower()).alias(name)
        for name in (*_ENVELOPE, _UNIT)
    ]
    rejects = bad.select(
        place().alias("id"), f.lit(BRONZE).alias("stage"), "reason", *unknown, *KEPT
    )
    return set_aside(tables, lambda: rejects)


def set_aside_defects(tables: Tables, events: "DataFrame", case: str) -> int:
    """Put events that Silver cannot hold into quarantine."""
    found = silver.rows(events, case)
    defects = found.where(found.defect.isNotNull()).select("event_id", found.defect.alias("reason"))
    rejects = _rejected(events.join(defects, "event_id"), defects.reason)
    return set_aside(tables, lambda: rejects)


def set_aside_newer(tables: Tables, events: "DataFrame") -> int:
    """Put events whose payload this version does not know into quarantine, beside Bronze."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    newer = events.where(events.payload_case == bronze.NEWER)
    rejects = _rejected(newer, f.lit("a payload that only a newer version knows"))
    return set_aside(tables, lambda: rejects)


def set_aside(tables: Tables, rejects: Callable[[], "DataFrame"]) -> int:
    """Insert rows into quarantine that it does not have; tell how many that were."""
    return tables.insert_new(lambda: rejects().dropDuplicates(["id"]), QUARANTINE, ["id"])


def place() -> "Column":
    """Tell a record of a bus from all others."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    # A topic or stream that was made anew has other records in the same places.
    return f.concat_ws(":", "bus", "destination", "partition", "offset", f.md5("value"))


def event_place() -> "Column":
    """Tell an event from all others, wherever it is read again."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return f.concat(f.lit("event:"), "event_id")


def held(tables: Tables) -> list[Held]:
    """Tell what is in quarantine, most frequent first."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not tables.exists(QUARANTINE):
        return []
    found = (
        tables.read(QUARANTINE)
        .groupBy("stage", "reason", "exchange", f.to_date("local_ts").alias("day"))
        .count()
        .orderBy(f.desc("count"), "stage", "reason")
        .collect()
    )
    return [Held(*row) for row in found]


def _rejected(events: "DataFrame", reason: "Column") -> "DataFrame":
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return events.select(
        event_place().alias("id"),
        f.lit(SILVER).alias("stage"),
        reason.alias("reason"),
        *_ENVELOPE,
        f.lit(None).cast("string").alias(_UNIT),
        *KEPT,
    )
