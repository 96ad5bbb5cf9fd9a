"""What a batch of events holds, in groups, so that only files it concerns are touched."""

from binascii import unhexlify
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tardis_machine.lake.decode.envelopes import parts
from tardis_machine.lake.spans import LAST_US, Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRADE: Final = "trade"
LIVE: Final = "realtime"
"""The origin of what a server took from an exchange; all else has the times of a recording."""
SUMMARY: Final = (
    "ARRAY<STRUCT<payload_case: STRING, exchange: STRING, day: DATE, first: BIGINT, last: BIGINT, "
    "events: BIGINT, latest: BIGINT, traded_first: BIGINT, traded_last: BIGINT, ids: BINARY, "
    "trades: BINARY>>"
)
"""What some records hold. `ids` and `trades` have 16 bytes for each event, and for each live trade
with an id: where no two are the same, nothing is there twice."""

_PART: Final = pa.struct(
    [
        ("payload_case", pa.string()),
        ("exchange", pa.string()),
        ("day", pa.date32()),
        *((name, pa.int64()) for name in ("first", "last", "events", "latest")),
        *((name, pa.int64()) for name in ("traded_first", "traded_last")),
        ("ids", pa.binary()),
        ("trades", pa.binary()),
    ]
)
_KEYS: Final = ["payload_case", "exchange", "day"]
_ALL_TIMES: Final = (0, LAST_US)
_NO_ID: Final = "0" * 32
_TOLD: Final = pa.binary(16)


class Group(NamedTuple):
    """A payload case of an exchange's day in a batch."""

    case: str | None
    span: Span
    events: int
    latest_us: int | None = None
    repeats: bool = True
    """Whether an event may be there more than once."""
    twins: bool = True
    """Whether a trade may be there more than once, taken by several live servers."""
    traded: tuple[int, int] | None = _ALL_TIMES
    """The first and last exchange time of its live trades that have an id, if any have."""


def grouped(events: "DataFrame") -> list[Group]:
    """Tell what events of Bronze hold."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    # As numbers: a datetime would arrive in the zone of the driver's machine.
    local_us = f.unix_micros("local_ts")
    counts = (
        f.min(local_us).alias("first"),
        f.max(local_us).alias("last"),
        f.count("*"),
        f.max(f.unix_micros("timestamp")),
        f.count_distinct(f.xxhash64("event_id")),
        f.bool_or(f.col("origin") == LIVE),
    )
    return [
        Group(
            case,
            Span(exchange, first, last),
            count,
            latest,
            repeats=distinct < count,
            traded=_ALL_TIMES if live else None,
        )
        for case, exchange, _, first, last, count, latest, distinct, live in events.groupBy(*_KEYS)
        .agg(*counts)
        .collect()
    ]


def summed_up(inspected: "DataFrame") -> list[Group]:
    """Tell what inspected records hold; those that Bronze cannot take are without a case."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    found = inspected.select(f.inline("summary")).toArrow()
    groups = found.group_by(_KEYS, use_threads=False).aggregate(
        [
            *((name, "min") for name in ("first", "traded_first")),
            *((name, "max") for name in ("last", "latest", "traded_last")),
            ("events", "sum"),
            ("ids", "list"),
        ]
    )
    # Servers may take the same trade on different days.
    twins = _some_twice(found.column("trades").to_pylist())
    return [
        Group(
            group["payload_case"],
            Span(group["exchange"], group["first_min"], group["last_max"]),
            group["events_sum"],
            group["latest_max"],
            repeats=_some_twice(group["ids_list"]),
            twins=twins,
            traded=None
            if group["traded_first_min"] is None
            else (group["traded_first_min"], group["traded_last_max"]),
        )
        for group in groups.to_pylist()
    ]


def summary(columns: Mapping[str, pa.Array], trades: pa.Array) -> pa.Array:
    """Sum up an Arrow batch of inspected records, with their trades' payloads, in its first row."""
    count = len(trades)
    if not count:
        return pa.nulls(0, pa.list_(_PART))
    read = columns["reason"].is_null()
    traded, told = _told_trades(columns, trades)
    found = pa.table(
        {
            **{name: pc.if_else(read, columns[name], None) for name in _KEYS},
            "local": columns["local_ts"].cast(pa.int64()),
            "bus": columns["timestamp"].cast(pa.int64()),
            "id": _told_ids(pc.if_else(read, columns["event_id"], _NO_ID)),
            "traded": traded,
            "trade": told,
        }
    )
    groups = found.group_by(_KEYS, use_threads=False).aggregate(
        [
            *(("local", how) for how in ("min", "max")),
            *(("traded", how) for how in ("min", "max")),
            ("bus", "max"),
            *((name, "list") for name in ("id", "trade")),
        ]
    )
    told_parts = [
        {
            **{name: group[name] for name in _KEYS},
            "first": group["local_min"],
            "last": group["local_max"],
            "events": len(ids.values),
            "latest": group["bus_max"],
            "traded_first": group["traded_min"],
            "traded_last": group["traded_max"],
            "ids": _joined(ids.values),
            "trades": _joined(own.values.drop_null()),
        }
        for group, ids, own in zip(
            groups.drop_columns(["id_list", "trade_list"]).to_pylist(),
            groups.column("id_list"),
            groups.column("trade_list"),
            strict=True,
        )
    ]
    parts_type = pa.list_(_PART)
    return pa.concat_arrays([pa.array([told_parts], parts_type), pa.nulls(count - 1, parts_type)])


def _told_ids(ids: pa.Array) -> pa.Array:
    texts = ids.cast(pa.binary()).cast(pa.binary(len(_NO_ID)))
    return _sixteens(unhexlify(texts.buffers()[1]))


def _told_trades(columns: Mapping[str, pa.Array], trades: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Give the exchange time of each live trade with an id, and what only its copies share.

    Price, amount and side are left out: trades that differ in these alone are few.
    """
    nothing = pa.nulls(len(trades), pa.int64()), pa.nulls(len(trades), _TOLD)
    if trades.null_count == len(trades):
        return nothing
    own = parts(TRADE, trades.drop_null(), ("trade_id", "event_ts"))
    times = own.column("event_ts").cast(pa.int64())
    counts = pc.not_equal(pc.utf8_trim(own.column("trade_id"), "0-"), "")
    live = pc.equal(columns["origin"].filter(trades.is_valid()), LIVE)
    counts = pc.and_(pc.and_(counts, live), times.is_valid())
    times = times.filter(counts)
    there = pc.replace_with_mask(pa.repeat(False, len(trades)), trades.is_valid(), counts)
    shared = pc.binary_join_element_wise(
        columns["exchange"].filter(there),
        columns["symbol"].filter(there),
        own.column("trade_id").filter(counts),
        times.cast(pa.string()),
        "|",
    )
    told = b"".join(blake2b(each.encode(), digest_size=16).digest() for each in shared.to_pylist())
    return (
        pc.replace_with_mask(nothing[0], there, times),
        pc.replace_with_mask(nothing[1], there, _sixteens(told)),
    )


def _some_twice(told: Iterable[bytes]) -> bool:
    every = _sixteens(b"".join(told))
    return bool(pc.count_distinct(every).as_py() < len(every))


def _sixteens(data: bytes) -> pa.Array:
    size = _TOLD.byte_width
    return pa.Array.from_buffers(_TOLD, len(data) // size, [None, pa.py_buffer(data)])


def _joined(told: pa.Array) -> bytes:
    if not len(told):
        return b""
    start, size = told.offset, _TOLD.byte_width
    joined: bytes = told.buffers()[1][start * size : (start + len(told)) * size].to_pybytes()
    return joined
