"""Gold: how good the data is, a row for each symbol, data type, origin and minute."""

from functools import reduce
from typing import TYPE_CHECKING, Final

from tardis_machine.lake import quarantine
from tardis_machine.lake.gold.series import start
from tardis_machine.lake.gold.table import GoldTable, Job, gold
from tardis_machine.lake.spans import literal
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER
from tardis_machine.messages import CASES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LATE_S: Final = 10
"""Seconds after which a message counts as late."""
_CONTROL: Final = ("disconnect", "error")
_DISCONNECTS: Final = SILVER["disconnect"]
_CASES: Final = tuple(case for case in SILVER if case not in _CONTROL)
_DATA_TYPES: Final = {case: data_type for data_type, case in CASES.items()}
_STREAM: Final = ("exchange", "day", "symbol", "data_type", "origin")
_MINUTE: Final = (*_STREAM, "start_ts")
_PERCENTILES: Final = {"latency_p50_ms": 0.5, "latency_p90_ms": 0.9, "latency_p99_ms": 0.99}
_COLUMNS: Final[dict[str, str]] = {
    "exchange": "STRING",
    "day": "DATE",
    "symbol": "STRING",
    "data_type": "STRING",
    "origin": "STRING",
    "start_ts": "TIMESTAMP",
    "local_ts": "TIMESTAMP",
    "rows": "BIGINT",
    "largest_gap_s": "DOUBLE",
    "out_of_order": "BIGINT",
    "late": "BIGINT",
    **dict.fromkeys(_PERCENTILES, "DOUBLE"),
    "latency_max_ms": "DOUBLE",
    "disconnects": "BIGINT",
    "duplicates_dropped": "BIGINT",
}


def rows(job: Job) -> "DataFrame":
    """Give what can be said of some days."""
    counted = _counted(_messages(job))
    return _with_duplicates(job, _with_disconnects(job, counted))


def _messages(job: Job) -> "DataFrame":
    """Read what all Silver tables have in common."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    def narrow(case: str) -> "DataFrame":
        named = "name" in SILVER[case].columns
        data_type = f.col("name") if named else f.lit(_DATA_TYPES[case])
        return job.rows_of_any_origin(SILVER[case]).select(
            *("exchange", "day", "symbol", data_type.alias("data_type"), "origin"),
            *("local_ts", "event_ts", "position"),
        )

    there = [narrow(case) for case in _CASES if job.tables.exists(SILVER[case])]
    return reduce(lambda one, other: one.unionByName(other), there)


def _counted(messages: "DataFrame") -> "DataFrame":
    from pyspark.sql import Window  # noqa: PLC0415 - an optional dependency
    from pyspark.sql import functions as f  # noqa: PLC0415

    before = Window.partitionBy(*_STREAM).orderBy("local_ts", "position")
    local, event = f.unix_micros("local_ts"), f.unix_micros("event_ts")
    known = messages.select(
        *_STREAM,
        "local_ts",
        start("1m").alias("start_ts"),
        (local - event).alias("_latency"),
        (local - f.lag(local).over(before)).alias("_gap"),
        (event < f.lag(event).over(before)).alias("_earlier"),
    )
    percentiles = f.percentile_approx("_latency", list(_PERCENTILES.values()))
    return known.groupBy(*_MINUTE).agg(
        f.max("local_ts").alias("local_ts"),
        f.count("*").alias("rows"),
        (f.max("_gap") / 1_000_000).alias("largest_gap_s"),
        f.count_if("_earlier").alias("out_of_order"),
        f.count_if(f.col("_latency") > LATE_S * 1_000_000).alias("late"),
        *((percentiles[number] / 1000).alias(name) for number, name in enumerate(_PERCENTILES)),
        (f.max("_latency") / 1000).alias("latency_max_ms"),
    )


def _with_disconnects(job: Job, minutes: "DataFrame") -> "DataFrame":
    """Add how often the symbol's connection broke in a minute."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not job.tables.exists(_DISCONNECTS):
        return minutes.withColumn("disconnects", f.lit(0).cast("bigint"))
    everything = job.tables.read(_DISCONNECTS).where(
        " OR ".join(f"({each._replace(symbols=None).condition})" for each in job.parts)
    )
    keys = ("exchange", "day", "origin", "start_ts")
    broken = (
        everything.withColumn("start_ts", start("1m"))
        .groupBy(*keys)
        .agg(
            f.count_if("all_symbols").alias("_all"),
            f.flatten(f.collect_list(f.when(~f.col("all_symbols"), f.col("symbols")))).alias(
                "_some"
            ),
        )
    )
    own = f.expr("coalesce(_all, 0) + coalesce(size(filter(_some, each -> each = symbol)), 0)")
    return minutes.join(f.broadcast(broken), [*keys], "left").withColumn(
        "disconnects", own.cast("bigint")
    )


def _with_duplicates(job: Job, minutes: "DataFrame") -> "DataFrame":
    """Add how many events Bronze has that Silver has once, or another server's in their place.

    It is null where Bronze has no longer, or never had, what Silver has.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    tables = job.tables
    if not tables.exists(EVENTS):
        return minutes.withColumn("duplicates_dropped", f.lit(None).cast("bigint"))
    came = _per_minute(job.rows_of_any_origin(EVENTS), "_came")
    found = minutes.join(came, [*_MINUTE], "left")
    aside: Column = f.lit(0)
    if tables.exists(QUARANTINE):
        held = tables.read(QUARANTINE).where(f"stage = {literal(quarantine.SILVER)}")
        bronze = job.rows_of_any_origin(EVENTS).select("event_id", *_STREAM, "local_ts")
        rejected = bronze.join(held.select("event_id").distinct(), "event_id")
        found = found.join(_per_minute(rejected, "_aside"), [*_MINUTE], "left")
        aside = f.coalesce("_aside", f.lit(0))
    left = f.col("_came") - f.col("rows") - aside
    return found.withColumn("duplicates_dropped", f.when(left >= 0, left))


def _per_minute(events: "DataFrame", name: str) -> "DataFrame":
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return (
        events.withColumn("start_ts", start("1m")).groupBy(*_MINUTE).agg(f.count("*").alias(name))
    )


QUALITY: Final = GoldTable(
    gold(
        "quality",
        _COLUMNS,
        {
            "start_ts": "the minute of local time, UTC; one without rows has none here",
            "local_ts": "arrival of the minute's last message, UTC, microseconds",
            "rows": "how many rows Silver has",
            "largest_gap_s": "longest silence before a message of this minute, seconds",
            "out_of_order": "messages whose exchange time is before that of the one before them",
            "late": f"messages that arrived more than {LATE_S} s after their exchange time",
            "latency_p50_ms": "half of the messages arrived within, milliseconds",
            "latency_p90_ms": "nine in ten arrived within, milliseconds",
            "latency_p99_ms": "99 in 100 arrived within, milliseconds",
            "latency_max_ms": "all arrived within, milliseconds",
            "disconnects": "how often the symbol's connection broke",
            "duplicates_dropped": "events that Bronze has more often than Silver; null if unknown",
        },
        varied=False,
    ),
    tuple(SILVER[case] for case in _CASES),
    rows,
    beside=(_DISCONNECTS, EVENTS),
)
