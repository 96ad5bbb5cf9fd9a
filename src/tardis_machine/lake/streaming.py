"""From a bus into the tables, batch by batch, each exactly once for its checkpoint."""

import json
import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tardis_machine.lake.batches import Written, write_batch, write_silver
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.groups import grouped
from tardis_machine.lake.joining import joining
from tardis_machine.lake.running import TRACEBACK, reason_of
from tardis_machine.lake.tables import EVENTS, Commit, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

_CHECKPOINTS: Final = "_checkpoints"
_GONE: Final = re.compile(r"\nReason: Partitions \w+\((.+?)\) have been deleted")
_REASON: Final = re.compile(r"^Reason: (.+?)(?: SQLSTATE:.*)?$", re.MULTILINE)
_PLAN: Final = re.compile(r"\n(=== Streaming Query ===|\nJVM stacktrace).*", re.DOTALL)
_PATTERNS: Final = re.compile(r"[\\{}\[\]*?]")


def default_checkpoint(root: str, name: str) -> str:
    """Tell where a stream into these tables keeps its place unless told otherwise."""
    return f"{root.rstrip('/')}/{_CHECKPOINTS}/{name}"


def checkpoint_id(spark: "SparkSession", checkpoint: str) -> str:
    """Give the id that Spark wrote into a checkpoint: a new checkpoint has a new one.

    Batches are numbered from 0 in each checkpoint. With a name of our own in the id's place, the
    first batches of a new checkpoint would pass for those of the old one, and be skipped.
    """
    # A path that is read may be a pattern, one that is written is not.
    place = _PATTERNS.sub(r"\\\g<0>", checkpoint.rstrip("/"))
    [row] = spark.read.text(f"{place}/metadata").collect()
    identity: str = json.loads(row["value"])["id"]
    return identity


def start(
    tables: Tables,
    records: "DataFrame",
    checkpoint: str,
    *,
    once: bool = False,
    interval_s: float = 0,
    bronze_only: bool = False,
    wrote: Callable[[Written], None] = lambda _: None,
) -> "StreamingQuery":
    """Bring a stream of records into the tables: all there is now (`once`), or as it comes.

    `wrote` is told what each batch brought.
    """
    root = tables.root
    opened: list[tuple[Tables, str]] = []

    def batch(rows: "DataFrame", number: int) -> None:
        began = time.monotonic()
        # Only the first can be one that an earlier process began.
        may_repeat = not opened
        if not opened:
            own = Tables(rows.sparkSession, root)
            opened.append((own, f"stream/{checkpoint_id(own.spark, checkpoint)}"))
        [(own, application)] = opened
        written = write_batch(
            own,
            rows,
            Commit(application, number),
            bronze_only=bronze_only,
            may_repeat=may_repeat,
        )
        wrote(written)
        _log(number, written, time.monotonic() - began)

    writer = tables.own(records).writeStream.foreachBatch(batch)
    return _started(writer, checkpoint, once, interval_s)


def start_silver(tables: Tables, checkpoint: str, *, max_files: int = 100) -> "StreamingQuery":
    """Bring what Bronze gained since the last time into Silver."""
    root = tables.root
    events = (
        tables.spark.readStream.format("delta")
        .option("maxFilesPerTrigger", max_files)
        # A forced backfill replaces events in Bronze, and in Silver itself; all others only add.
        .option("skipChangeCommits", "true")
        .load(tables.path(EVENTS))
    )

    def batch(rows: "DataFrame", number: int) -> None:
        began = time.monotonic()
        own = Tables(rows.sparkSession, root)
        with joining(own.spark, number):
            inserted, rejected = write_silver(own, rows, grouped(rows))
        _log(number, Written(0, rejected, inserted), time.monotonic() - began)

    return _started(events.writeStream.foreachBatch(batch), checkpoint, once=True, interval_s=0)


def wait(query: "StreamingQuery", seconds: float | None = None) -> bool:
    """Wait for a stream to end, at most so long; tell whether it has."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - an optional dependency

    try:
        ended = query.awaitTermination(seconds)  # type: ignore[arg-type]
    except StreamingQueryException as error:
        raise LakeError(_explained(error)) from error
    return seconds is None or bool(ended)


def _started(
    writer: "DataStreamWriter", checkpoint: str, once: bool, interval_s: float
) -> "StreamingQuery":
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds").start()


def _log(number: int, written: Written, seconds: float) -> None:
    rows = max(written.events, sum(written.inserted.values()))
    log.info(
        "batch written",
        extra={
            "batch": number,
            "events": written.events,
            "rejected": written.rejected,
            "new_rows": sum(written.inserted.values()),
            "rows_per_s": round(rows / max(seconds, 1e-3)),
        },
    )


def _explained(failure: Exception) -> str:
    error = str(failure)
    first = _PLAN.sub("", error).strip()
    if gone := _GONE.search(error):
        return (
            f"the checkpoint has its place in Kafka partitions {gone[1]}, which are not read now: "
            "it belongs to other topics, or they were deleted. Use another --checkpoint, which "
            "begins at --starting; or --on-data-loss skip to go on with it and leave what is not "
            "read any more"
        )
    if "KAFKA_DATA_LOSS" in error or "failOnDataLoss" in error:
        reason = _REASON.search(error)
        return (
            "data was trimmed from the topic before it was read. "
            f"{first if reason is None else reason[1]}\n"
            "What is gone cannot be had again from this topic; a backfill may have it. To go on "
            "with what is left: --on-data-loss skip"
        )
    return reason_of(failure) if TRACEBACK in error else first
