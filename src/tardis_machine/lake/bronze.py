"""Bronze: every event as it came, with its envelope's columns and where it was read."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.bronze.v1 import normalized_event_pb2 as bronze_pb2
from tardis_machine.lake import silver
from tardis_machine.lake.columns import TIME, outside_time, words
from tardis_machine.lake.decode import PAYLOADS, envelopes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD: Final[dict[str, str]] = {
    "bus": "STRING",
    "destination": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "value": "BINARY",
}
"""A record as every source gives it."""

_ENVELOPE: Final[dict[str, str]] = {
    "event_id": "STRING",
    "exchange": "STRING",
    "day": "DATE",
    "symbol": "STRING",
    "payload_case": "STRING",
    "local_ts": "TIMESTAMP",
    "ingest_ts": "TIMESTAMP",
    "origin": "STRING",
    "source": "STRING",
    "producer_id": "STRING",
    "position": "BIGINT",
    "meta": "MAP<STRING, STRING>",
}

EVENT: Final[dict[str, str]] = {
    **_ENVELOPE,
    "bus": "STRING",
    "destination": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "value": "BINARY",
}
"""The columns of `bronze/events`."""

KEPT: Final[dict[str, str]] = {name: kind for name, kind in RECORD.items() if name != "headers"}
"""What tables keep of a record. Headers repeat what the envelope has; and a column of lists makes
Spark measure the whole Arrow batch anew with each row that it adds."""

INSPECTED: Final[dict[str, str]] = {**KEPT, **_ENVELOPE, "reason": "STRING", "defect": "STRING"}
"""A record with its envelope; `reason` keeps it out of Bronze, `defect` out of Silver."""

_ID: Final = r"^[0-9a-f]{32}$"


def inspected(records: "DataFrame") -> "DataFrame":
    """Read each record's envelope and find what is wrong with it, if anything is."""
    return records.select(*KEPT).mapInArrow(inspect, schema_of(INSPECTED))


def events(inspected: "DataFrame") -> "DataFrame":
    """Keep what can be read, as rows of `bronze/events`."""
    return inspected.where(inspected.reason.isNull()).select(*EVENT)


def schema() -> str:
    """Give the table's columns as Spark writes them."""
    return schema_of(EVENT)


def schema_of(columns: Mapping[str, str]) -> str:
    """Write columns as Spark does."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do what `inspected` says, on Arrow batches."""
    for batch in batches:
        decoded = envelopes(batch.column("value"))
        envelope = decoded.columns
        reasons = dict(decoded.bad)
        case, defects = _payload(envelope, reasons)
        local = envelope.column("local_ts")
        for row in outside_time(local):
            reasons.setdefault(row, "local_ts lies outside the years 1970 to 9999")
        _refuse(pc.is_null(local), "no local_ts", reasons)
        _refuse(pc.equal(envelope.column("exchange"), ""), "no exchange", reasons)
        valid = pc.match_substring_regex(envelope.column("event_id"), _ID)
        _refuse(pc.invert(valid), "no event id of 32 hex characters", reasons)
        _refuse(pc.is_null(case), "no payload of a known case", reasons)
        day = local.cast(pa.date32(), safe=False)
        columns = {
            **{name: batch.column(name) for name in KEPT},
            **{name: envelope.column(name) for name in _ENVELOPE if name in envelope.schema.names},
            "day": pc.if_else(_mask(reasons, len(batch)), None, day),
            "payload_case": case,
            "ingest_ts": _within(envelope.column("ingest_ts")),
            "local_ts": _within(local),
            "origin": words(envelope.column("origin"), bronze_pb2.Origin.DESCRIPTOR, "unspecified"),
            "position": envelope.column("position").cast(pa.int64(), safe=False),
            "reason": _texts(reasons, len(batch)),
            "defect": _texts(defects, len(batch)),
        }
        yield pa.RecordBatch.from_arrays(
            [columns[name] for name in INSPECTED], names=list(INSPECTED)
        )


def _payload(envelope: pa.RecordBatch, reasons: dict[int, str]) -> tuple[pa.Array, dict[int, str]]:
    """Tell each row's payload case, and what keeps its payload out of Silver."""
    case = pa.nulls(len(envelope), pa.string())
    defects: dict[int, str] = {}
    for name in PAYLOADS:
        values = envelope.column(name)
        if values.null_count == len(values):
            continue
        present = values.is_valid()
        case = pc.if_else(present, name, case)
        found = silver.defects(name, values.drop_null())
        if found:
            where = pc.indices_nonzero(present).to_pylist()
            defects |= {where[row]: defect for row, defect in found.items()}
    return case, {row: defect for row, defect in defects.items() if row not in reasons}


def _refuse(mask: pa.Array, reason: str, reasons: dict[int, str]) -> None:
    if pc.any(mask).as_py():
        for row in pc.indices_nonzero(mask).to_pylist():
            reasons.setdefault(row, reason)


def _within(times: pa.Array) -> pa.Array:
    outside = outside_time(times)
    if not outside:
        return times
    return pc.if_else(_mask(dict.fromkeys(outside, ""), len(times)), None, times).cast(TIME)


def _mask(rows: dict[int, str], length: int) -> pa.Array:
    if not rows:
        return pa.repeat(False, length)
    return pa.array([row in rows for row in range(length)])


def _texts(rows: dict[int, str], length: int) -> pa.Array:
    if not rows:
        return pa.nulls(length, pa.string())
    return pa.array([rows.get(row) for row in range(length)], pa.string())
