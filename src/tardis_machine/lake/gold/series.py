"""Columns and sums of the Gold tables that have a row per interval of local time."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.gold.table import KEY, Job
from tardis_machine.lake.intervals import seconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SERIES: Final[dict[str, str]] = {**KEY, "start_ts": "TIMESTAMP", "local_ts": "TIMESTAMP"}
"""The columns that series begin with."""
COMMENTS: Final[dict[str, str]] = {
    "name": "the interval, such as 1m",
    "start_ts": "beginning of the interval of local time, UTC",
    "local_ts": "arrival of its last message, UTC, microseconds",
}


def start(interval: str) -> "Column":
    """Give the beginning of a row's interval."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    us = seconds(interval) * 1_000_000
    local = f.unix_micros("local_ts")
    return f.timestamp_micros(local - local % us)


def summed_up(job: Job, rows: "DataFrame", *columns: "Column") -> "DataFrame":
    """Sum rows up by symbol and interval; the origin is the day's."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return (
        rows.withColumn("start_ts", start(job.variant))
        .groupBy("exchange", "day", "symbol", "start_ts")
        .agg(f.max("local_ts").alias("local_ts"), f.first("origin").alias("origin"), *columns)
        .withColumn("name", f.lit(job.variant))
    )


def last(*names: str) -> "Column":
    """Give these columns of an interval's last row, as a struct."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return f.max_by(f.struct(*names), f.struct("local_ts", "position")).alias("last")
