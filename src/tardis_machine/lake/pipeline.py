"""The whole way of a batch of records, in one place: Bronze, quarantine, Silver."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake import bronze, quarantine, silver
from tardis_machine.lake.tables import EVENTS, SILVER, Span, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Two servers receive one live trade moments apart, and a reconnect brings older ones again.
_IDENT_SLACK: Final = timedelta(hours=1)
# Small merges are mostly Spark's planning: a few at once keep the cores busy.
_MERGES_AT_ONCE: Final = 4


class Commit(NamedTuple):
    """What makes a batch's append happen once: who writes, and which of its batches this is."""

    application: str
    version: int


class Landed(NamedTuple):
    """What became of a batch of records."""

    events: int
    rejected: int
    inserted: dict[str, int]
    """New rows, by payload case."""


def land(
    tables: Tables, records: "DataFrame", commit: Commit, *, bronze_only: bool = False
) -> Landed:
    """Bring a batch of records into the tables; doing so again changes nothing."""
    inspected = bronze.inspected(records).persist()
    try:
        groups = summarized(inspected)
        events = sum(group.events for group in groups)
        rejects = sum(group.rejected for group in groups)
        if events:
            tables.append_once(bronze.events(inspected), EVENTS, commit.application, commit.version)
        if rejects:
            quarantine.set_aside(tables, inspected)
        inserted = {} if bronze_only else refine(tables, inspected, groups)
        return Landed(events, rejects, inserted)
    finally:
        inspected.unpersist()


def build_silver(tables: Tables, events: "DataFrame") -> Landed:
    """Bring rows of `bronze/events` into Silver; doing so again changes nothing."""
    inspected = bronze.inspected(events).persist()
    try:
        groups = summarized(inspected)
        if any(group.rejected for group in groups):
            quarantine.set_aside(tables, inspected)
        return Landed(
            sum(group.events for group in groups),
            sum(group.rejected for group in groups),
            refine(tables, inspected, groups),
        )
    finally:
        inspected.unpersist()


class Group(NamedTuple):
    """A payload case of an exchange in a batch."""

    case: str | None
    exchange: str | None
    events: int
    sound: int
    rejected: int
    first: datetime
    last: datetime


def summarized(inspected: "DataFrame") -> list[Group]:
    """Tell what a batch holds, so that only tables and files it concerns are touched."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    readable = inspected.reason.isNull()
    sound = readable & inspected.defect.isNull()
    # As numbers: a datetime would arrive in the zone of the driver's machine.
    local_us = f.when(sound, f.unix_micros("local_ts"))
    found = (
        inspected.groupBy(
            f.when(readable, inspected.payload_case).alias("case"),
            f.when(readable, inspected.exchange).alias("exchange"),
        )
        .agg(
            f.count_if(readable).alias("events"),
            f.count_if(sound).alias("sound"),
            f.count_if(~sound).alias("rejected"),
            f.min(local_us).alias("first"),
            f.max(local_us).alias("last"),
        )
        .collect()
    )
    return [
        Group(*row[:5], *(_EPOCH + timedelta(microseconds=us or 0) for us in row[5:]))
        for row in found
    ]


def refine(tables: Tables, inspected: "DataFrame", groups: Iterable[Group]) -> dict[str, int]:
    """Insert what is new into Silver; tell how many rows each payload case gained."""
    spans: dict[str, Span] = {}
    for group in groups:
        if group.sound and group.case is not None and group.exchange is not None:
            known = spans.get(group.case, Span((), group.first, group.last))
            spans[group.case] = Span(
                tuple(sorted({*known.exchanges, group.exchange})),
                min(known.first, group.first),
                max(known.last, group.last),
            )
    with ThreadPoolExecutor(_MERGES_AT_ONCE) as pool:
        running = {
            case: pool.submit(insert, tables, inspected, case, span) for case, span in spans.items()
        }
        return {case: future.result() for case, future in running.items()}


def insert(tables: Tables, inspected: "DataFrame", case: str, span: Span) -> int:
    """Insert what is new of one payload case."""
    rows = silver.distinct(silver.rows(inspected, case), case)
    ident = silver.TABLES[case].ident
    if ident is None:
        keys = [f"{{}}.{name}" for name in silver.EVENT_KEY]
        return tables.insert_new(rows, SILVER[case], keys, span)
    keys = ["{}.exchange", "{}.symbol", silver.ident_key(case)]
    return tables.insert_new(rows, SILVER[case], keys, span.widened(_IDENT_SLACK))
