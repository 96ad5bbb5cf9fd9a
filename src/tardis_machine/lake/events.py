"""Bronze: every event as it came, with its envelope's columns and where it was read."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as bronze_pb2
from tardis_machine.lake.decode.columns import TIME, outside_time, words
from tardis_machine.lake.decode.envelopes import PAYLOADS, data_types, envelopes, unframed
from tardis_machine.lake.groups import SUMMARY, TRADE, summary
from tardis_machine.lake.records import KEPT, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ENVELOPE: Final[dict[str, str]] = {
    "event_id": "STRING",
    "exchange": "STRING",
    "day": "DATE",
    "symbol": "STRING",
    "payload_case": "STRING",
    "data_type": "STRING",
    "local_ts": "TIMESTAMP",
    "ingest_ts": "TIMESTAMP",
    "origin": "STRING",
    "source": "STRING",
    "producer_id": "STRING",
    "position": "BIGINT",
    "meta": "MAP<STRING, STRING>",
}

EVENT: Final[dict[str, str]] = {**ENVELOPE, **KEPT}
"""The columns of `bronze/events`."""

INSPECTED: Final[dict[str, str]] = {**EVENT, "reason": "STRING", "summary": SUMMARY}
"""A record with its envelope; a `reason` keeps it out of Bronze. Now and then one has a summary of
some of them."""

NEWER: Final = "newer"
"""The payload case of an event whose payload this version does not know: kept for the one that
does."""

_ID: Final = r"^[0-9a-f]{32}$"
_FIRST_PAYLOAD: Final = 100
# A folder is named after it, which has 255 bytes at most: `exchange=`, and up to three for each.
_MOST_EXCHANGE_BYTES: Final = 80
# What Spark names the folder of those that have none.
_NO_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_FEW_ENTRIES: Final = 32


def inspected(records: "DataFrame") -> "DataFrame":
    """Read each record's envelope and find what keeps it out of Bronze, if anything does."""
    return records.select(*KEPT).mapInArrow(inspect, schema_of(INSPECTED))


def events(inspected: "DataFrame") -> "DataFrame":
    """Keep what can be read, as rows of `bronze/events`."""
    return inspected.where(inspected.reason.isNull()).select(*EVENT)


def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do what `inspected` says, on Arrow batches."""
    for batch in batches:
        values = unframed(batch.column("value"))
        decoded = envelopes(values)
        envelope = decoded.columns
        reasons = dict(decoded.bad)
        case, data_type = _payload(envelope)
        case = _named_newer(case, values, reasons)
        local = envelope.column("local_ts")
        for row in outside_time(local):
            reasons.setdefault(row, "local_ts lies outside the years 1970 to 9999")
        _refuse(pc.is_null(local), "no local_ts", reasons)
        _refuse_exchanges(envelope.column("exchange"), reasons)
        valid = pc.match_substring_regex(envelope.column("event_id"), _ID)
        _refuse(pc.invert(valid), "no event id of 32 hex characters", reasons)
        _refuse(pc.is_null(case), "no payload", reasons)
        sound = enveloped(envelope)
        columns = {
            **{name: batch.column(name) for name in KEPT},
            **sound,
            "meta": _told_last(sound["meta"]),
            "day": pc.if_else(_mask(reasons, len(batch)), None, sound["day"]),
            "payload_case": case,
            "data_type": data_type,
            "reason": texts(reasons, len(batch)),
        }
        columns["summary"] = summary(columns, envelope.column(TRADE))
        yield pa.RecordBatch.from_arrays(
            [columns[name] for name in INSPECTED], names=list(INSPECTED)
        )


def enveloped(envelope: pa.RecordBatch) -> dict[str, pa.Array]:
    """Give the columns that do not depend on the payload, from decoded envelopes."""
    local = envelope.column("local_ts")
    return {
        **{name: envelope.column(name) for name in ENVELOPE if name in envelope.schema.names},
        "day": local.cast(pa.date32(), safe=False),
        "ingest_ts": _within(envelope.column("ingest_ts")),
        "local_ts": _within(local),
        "origin": words(envelope.column("origin"), bronze_pb2.Origin.DESCRIPTOR, "unspecified"),
        "position": envelope.column("position").cast(pa.int64(), safe=False),
    }


def _told_last(meta: pa.MapArray) -> pa.MapArray:
    """Keep the last of several entries of a key, as Protobuf does: Spark's maps have each once."""
    listed = pa.ListArray.from_arrays(meta.offsets, meta.keys)
    rows, keys = pc.list_parent_indices(listed), listed.flatten().dictionary_encode().indices
    longest = pc.max(pc.list_value_length(listed)).as_py() or 0
    # Mostly there are a few in each, and none comes again: that is told sooner than grouped.
    if longest <= _FEW_ENTRIES and not any(_again(rows, keys, n) for n in range(1, longest)):
        return meta
    places = pa.array(range(len(keys)), pa.int32())
    told = pa.table({"row": rows, "key": keys, "place": places})
    last = told.group_by(["row", "key"]).aggregate([("place", "max")]).column("place_max")
    kept = pc.is_in(places, value_set=last)
    ends = pc.cumulative_sum(kept.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends]).take(meta.offsets)
    keys, items = meta.keys.filter(kept), meta.items.filter(kept)
    return pa.MapArray.from_arrays(offsets, keys, items, type=meta.type)


def _again(rows: pa.Array, keys: pa.Array, apart: int) -> bool:
    """Tell whether a row has the same key so many entries further on."""
    same = [pc.equal(each[apart:], each[:-apart]) for each in (rows, keys)]
    return bool(pc.any(pc.and_(*same)).as_py())


def _payload(envelope: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Tell each row's payload case, and its data type as a client asks for it."""
    case = pa.nulls(len(envelope), pa.string())
    data_type = pa.nulls(len(envelope), pa.string())
    for name in PAYLOADS:
        values = envelope.column(name)
        if values.null_count == len(values):
            continue
        present = values.is_valid()
        case = pc.if_else(present, name, case)
        own = data_types(name, values.drop_null())
        data_type = pc.replace_with_mask(data_type, present, own)
    return case, data_type


def _named_newer(case: pa.Array, values: pa.Array, reasons: dict[int, str]) -> pa.Array:
    """Tell a payload that this version does not know from none at all."""
    if not case.null_count:
        return case
    cases = case.to_pylist()
    for row in pc.indices_nonzero(pc.is_null(case)).to_pylist():
        if row in reasons:
            continue
        try:
            event = bronze_pb2.NormalizedEvent.FromString(values[row].as_py())
        except DecodeError as error:
            # Fields of unknown numbers, which are skipped elsewhere, are looked at only here.
            reasons[row] = f"failed to decode: {error}"
            continue
        fields = unknown_fields.UnknownFieldSet(event)
        numbers = (fields[index].field_number for index in range(len(fields)))
        if any(number >= _FIRST_PAYLOAD for number in numbers):
            cases[row] = NEWER
    return pa.array(cases, pa.string())


def _refuse_exchanges(exchanges: pa.Array, reasons: dict[int, str]) -> None:
    """Find exchanges that no folder of a table can be named after."""
    _refuse(pc.equal(exchanges, ""), "no exchange", reasons)
    _refuse(
        pc.greater(pc.binary_length(exchanges), _MOST_EXCHANGE_BYTES),
        f"exchange of more than {_MOST_EXCHANGE_BYTES} bytes",
        reasons,
    )
    _refuse(pc.match_substring(exchanges, "\0"), "exchange with a NUL", reasons)
    _refuse(pc.equal(exchanges, _NO_FOLDER), f"exchange of the name {_NO_FOLDER}", reasons)


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


def texts(rows: dict[int, str], length: int) -> pa.Array:
    """Give what is said of some rows as a column."""
    if not rows:
        return pa.nulls(length, pa.string())
    return pa.array([rows.get(row) for row in range(length)], pa.string())
