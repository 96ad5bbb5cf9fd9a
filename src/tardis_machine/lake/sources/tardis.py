"""History as a batch source: `spark.read.format("tardis")`, replayed by the executors.

Options are those of a normalized replay: `exchange` (several by commas), `symbols`, `from`, `to`,
`dataTypes`, `withDisconnectMessages`. Rows have the columns of the Silver tables that these types
have; `columns` names those that are wanted. `as=records` gives Bronze records instead.
`cacheDir`, `endpoint`, `sampleData` say where history comes from; the API key is never an option:
executors take it from TM_API_KEY or TM_API_KEY_FILE in their own environment.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from tardis_machine.bronze import Context, Encoder, Event, Origin
from tardis_machine.config import resolve
from tardis_machine.emit import datatypes
from tardis_machine.history import History
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.lake import bronze, silver
from tardis_machine.lake.errors import LakeError
from tardis_machine.messages import CASES, snapshot_case
from tardis_machine.options import ReplayNormalizedOptions, parse_replay_normalized
from tardis_machine.replay import NormalizedReplay
from tardis_machine.sample import SAMPLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FORMAT: Final = "tardis"
_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_MINUTE_US: Final = 60_000_000
_FETCHES: Final = 60
"""How many fetches a whole job has under way, over all of its tasks."""
_ROWS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo)


def register(spark: "SparkSession") -> None:
    """Make the source known to a session, with filters pushed down to it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(TardisDataSource)


@dataclass(frozen=True)
class Slice(InputPartition):
    """What one task replays, and how many fetches it may have under way."""

    replay: ReplayNormalizedOptions
    index: int
    fetches: int


@dataclass(frozen=True)
class Where:
    """Where executors find history. The key is not in it: they look for it themselves."""

    cache_dir: str | None = None
    endpoint: str | None = None
    sample: bool = False

    def history(self, fetches: int, environ: Mapping[str, str] | None = None) -> History:
        """Open history with what this executor's environment says."""
        known = dict(os.environ if environ is None else environ)
        known.pop("TM_CONFIG", None)  # a file of the driver's machine
        config = resolve([HistoryConfig], {}, known)[HistoryConfig]
        return History(
            endpoint=self.endpoint or config.endpoint,
            api_key=config.api_key or "",
            cache_dir=Path(self.cache_dir) if self.cache_dir else config.cache_dir,
            cache_max_bytes=config.cache_max_bytes,
            source=SAMPLE if self.sample or config.sample_data else None,
            max_fetches=fetches,
        )


class TardisDataSource(DataSource):
    """Normalized history."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        if self._records:
            return bronze.schema_of(bronze.RECORD)
        return bronze.schema_of(self._columns())

    def reader(self, schema: Any) -> DataSourceReader:
        where = Where(
            self.options.get("cacheDir"),
            self.options.get("endpoint"),
            self.options.get("sampleData", "false").lower() == "true",
        )
        tasks = self.options.get("concurrentTasks")
        columns = None if self._records else tuple(self._columns())
        return TardisReader(
            self._replays(),
            where,
            columns=columns,
            concurrent_tasks=int(tasks) if tasks else None,
            request_id=self.options.get("requestId", ""),
        )

    @property
    def _records(self) -> bool:
        given = self.options.get("as", "columns")
        if given not in {"columns", "records"}:
            raise LakeError(f"as={given}: expected columns or records")
        return given == "records"

    def _replays(self) -> list[ReplayNormalizedOptions]:
        asked = {
            "from": self._required("from"),
            "to": self._required("to"),
            "dataTypes": _listed(self._required("dataTypes")),
            "withDisconnectMessages": self.options.get("withDisconnectMessages") == "true",
        }
        if self.options.get("symbols") is not None:
            asked["symbols"] = _listed(self.options["symbols"])
        every = [{"exchange": name, **asked} for name in _listed(self._required("exchange"))]
        return parse_replay_normalized(msgspec.json.encode(every).decode(), strict=True)

    def _columns(self) -> dict[str, str]:
        cases = cases_of(self._replays())
        known = {"payload_case": "STRING", **silver.KEY}
        for case in cases:
            known |= {column.name: column.spark_type for column in silver.TABLES[case].columns}
        wanted = _listed(self.options.get("columns") or ",".join(known))
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise LakeError(f"columns={unknown[0]}: expected some of {', '.join(known)}")
        return {name: known[name] for name in wanted}

    def _required(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise LakeError(f"the tardis source needs the option {name}")
        return str(value)


class TardisReader(DataSourceReader):
    """Plans slices of history and replays them."""

    def __init__(
        self,
        replays: Sequence[ReplayNormalizedOptions],
        where: Where,
        *,
        columns: Sequence[str] | None,
        concurrent_tasks: int | None = None,
        request_id: str = "",
    ) -> None:
        self._replays = list(replays)
        self._where = where
        self._columns = columns
        self._concurrent = concurrent_tasks
        self._request_id = request_id
        self._ingest_us = time.time_ns() // 1000

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Ask history for less. Spark filters all the same: slices are cut by the minute."""
        for each in filters:
            attribute = getattr(each, "attribute", ())
            if attribute in {("exchange",), ("symbol",)} and isinstance(each, EqualTo | In):
                values = {each.value} if isinstance(each, EqualTo) else set(each.value)
                self._replays = [
                    kept
                    for replay in self._replays
                    if (kept := _named(replay, attribute[0], values)) is not None
                ]
            elif attribute == ("local_ts",) and isinstance(each, _TIMES):
                self._confine(each, _us(each.value))
            elif attribute == ("day",) and isinstance(each, _TIMES):
                self._confine(each, _us(each.value), last=_DAY_US - 1)
        return filters

    def partitions(self) -> Sequence[Slice]:
        found = [part for replay in self._replays for part in slices(replay)]
        tasks = min(self._concurrent or len(found), len(found))
        return [
            Slice(part, index, max(1, _FETCHES // max(tasks, 1)))
            for index, part in enumerate(found)
        ]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        history = self._where.history(partition.fetches)
        try:
            for batch in self._records(partition, history):
                if self._columns is None:
                    yield batch
                else:
                    yield from rows(batch, self._columns)
        finally:
            history.close()

    def _records(self, partition: Slice, history: History) -> Iterator[pa.RecordBatch]:
        context = Context(
            producer_id="lake",
            origin=Origin.REPLAY,
            ingest_us=self._ingest_us,
            request_id=self._request_id,
            transport="spark",
        )
        encoder = Encoder(context)
        values: list[bytes] = []
        position = first = 0
        with NormalizedReplay([partition.replay], history=history) as replay:
            for batch in replay.batches():
                # A line without an envelope stays a record, and ends in quarantine.
                encoded = encoder.encode_lines(batch.data, position)
                if encoded.rejected:
                    values += [
                        event.value if isinstance(event, Event) else event.line
                        for event in encoded.in_order()
                    ]
                else:
                    values += encoded.values()
                position += batch.count
                if len(values) >= _ROWS:
                    yield self._batch(partition, first, values)
                    first, values = position, []
        if values:
            yield self._batch(partition, first, values)

    def _batch(self, partition: Slice, first: int, values: list[bytes]) -> pa.RecordBatch:
        count = len(values)
        columns = [
            pa.repeat(_FORMAT, count),
            pa.repeat(partition.replay.exchange, count),
            pa.repeat(pa.scalar(partition.index, pa.int32()), count),
            pa.arange(first, first + count),
            pa.repeat(pa.scalar(self._ingest_us, pa.timestamp("us", tz="UTC")), count),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            pa.array(values, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(bronze.RECORD))

    def _confine(self, each: Any, us: int, *, last: int = 0) -> None:
        start = us if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo) else None
        end = us + last + 1 if isinstance(each, LessThan | LessThanOrEqual | EqualTo) else None
        self._replays = [
            kept for replay in self._replays if (kept := confined(replay, start, end)) is not None
        ]


def slices(replay: ReplayNormalizedOptions) -> Iterator[ReplayNormalizedOptions]:
    """Cut a replay into what tasks can do apart: hours of trades, days of all that has state.

    Each day is recorded on its own and begins with fresh book snapshots.
    """
    step = _HOUR_US if stateless(replay) else _DAY_US
    start = replay.from_
    while start < replay.to:
        end = min((start // step + 1) * step, replay.to)
        yield msgspec.structs.replace(replay, from_=start, to=end)
        start = end


def stateless(replay: ReplayNormalizedOptions) -> bool:
    """Tell whether a replay can begin anywhere."""
    return set(replay.data_types) == {"trade"}


def confined(
    replay: ReplayNormalizedOptions, start: int | None, end: int | None
) -> ReplayNormalizedOptions | None:
    """Leave out what lies before `start` and from `end` on; None if nothing is left."""
    step = _MINUTE_US if stateless(replay) else _DAY_US
    first = replay.from_ if start is None else max(replay.from_, start // step * step)
    last = replay.to if end is None else min(replay.to, -(-end // _MINUTE_US) * _MINUTE_US)
    return msgspec.structs.replace(replay, from_=first, to=last) if first < last else None


def cases_of(replays: Iterable[ReplayNormalizedOptions]) -> list[str]:
    """Name the payload cases that these replays give."""
    found: dict[str, None] = {}
    for replay in replays:
        for data_type in datatypes.parse_all(replay.data_types):
            if isinstance(data_type, datatypes.BookSnapshots):
                found[snapshot_case(data_type.name, grouped=data_type.grouping is not None)] = None
            else:
                found[CASES[data_type.message_type]] = None
        if replay.with_disconnect_messages:
            found["disconnect"] = None
    return list(found)


def rows(records: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Turn Bronze records into rows of these columns; those of other payload cases are null."""
    for inspected in bronze.inspect([records]):
        for trouble in ("reason", "defect"):
            bad = inspected.column(trouble).drop_null()
            if len(bad):
                raise LakeError(
                    f"{bad[0]}. Read it with as=records, which keeps what it cannot hold"
                )
        for case in pc.unique(inspected.column("payload_case")).to_pylist():
            own = inspected.filter(pc.equal(inspected.column("payload_case"), case))
            yield silver.selected(case, own, columns)


def _named(
    replay: ReplayNormalizedOptions, attribute: str, values: set[Any]
) -> ReplayNormalizedOptions | None:
    if attribute == "exchange":
        return replay if replay.exchange in values else None
    # Control events have no symbol, and are not asked for by naming some.
    wanted = values if replay.symbols is None else values & set(replay.symbols)
    return msgspec.structs.replace(replay, symbols=tuple(sorted(wanted))) if wanted else None


def _us(value: datetime | date) -> int:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return (value - _EPOCH) // timedelta(microseconds=1)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
