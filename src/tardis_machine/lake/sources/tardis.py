"""History as a batch source: `spark.read.format("tardis")`, replayed by the executors.

Options are those of a normalized replay: `exchange` (several by commas), `symbols` (all where it
is empty), `from`, `to`, `dataTypes`, `withDisconnectMessages`. Rows have the columns of the Silver
tables that these types have; `columns` names those that are wanted. With `as=` they are what one
table takes instead: `records`, `events` or `rejects` of Bronze, `disconnects`, `breaks`, or `rows`
of the payload case that `case` names; `disconnectsOf`, a JSON list of times, confines disconnects
to them, and those that `disconnectsTold` has are left out. `buckets` spreads a day's symbols over
so many tasks. `cacheDir`, `endpoint`, `sampleData` say where history comes from, `cacheMaxBytes`
how much of it each executor's machine may keep, `apiWaitS` how long a task waits for an API that
cannot be reached; the API key is never an option: executors take it from TM_API_KEY or
TM_API_KEY_FILE in their own environment.
"""

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
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

from tardis_machine.config import resolve
from tardis_machine.history import History
from tardis_machine.history.sample import SAMPLE
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.lake import session, silver
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.records import schema_of
from tardis_machine.lake.sources.projections import (
    Breaks,
    Chosen,
    Disconnects,
    Events,
    Part,
    Projection,
    Records,
    Rejects,
    Rows,
    project,
)
from tardis_machine.lake.sources.resumptions import Stretch
from tardis_machine.lake.spans import DAY_US
from tardis_machine.lake.units import DISCONNECT, case_of
from tardis_machine.replays.requests import (
    ReplayNormalizedOptions,
    Request,
    replay_normalized_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMAT: Final = "tardis"
_HOUR_US: Final = 3_600_000_000
_MINUTE_US: Final = 60_000_000
_FETCHES: Final = 60
"""How many fetches a whole job has under way, over all of its tasks."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo)
_Times = tuple[Stretch, ...]
_WHOLE: Final[dict[str, type[Events | Rejects | Breaks | Records]]] = {
    "events": Events,
    "rejects": Rejects,
    "breaks": Breaks,
    "records": Records,
}


def register(spark: "SparkSession") -> None:
    """Make the source known to a session, whose settings stay as they are.

    Filters reach history where the session pushes them down to sources in Python
    (`spark.sql.python.filterPushdown.enabled`), as the lake's own sessions do.
    """
    pushes = spark.conf.get(session.PUSHDOWN, "false") == "true"
    session.register(spark, TardisDataSource if pushes else _Unfiltered)


@dataclass(frozen=True)
class Slice(InputPartition):
    """What one task replays, and how many fetches it may have under way."""

    part: Part
    fetches: int


@dataclass(frozen=True)
class Where:
    """Where executors find history. The key is not in it: they look for it themselves."""

    cache_dir: str | None = None
    endpoint: str | None = None
    sample: bool = False
    cache_max_bytes: int | None = None
    api_wait_s: float | None = None

    def history(self, fetches: int, environ: Mapping[str, str] | None = None) -> History:
        """Open history with what this executor's environment says.

        Nobody waits for a task's first line, and a network that is back soon should not cost it.
        """
        known = dict(os.environ if environ is None else environ)
        known.pop("TM_CONFIG", None)  # a file of the driver's machine
        config = resolve([HistoryConfig], {}, known)[HistoryConfig]
        wait_s = config.api_wait_s if self.api_wait_s is None else self.api_wait_s
        return History(
            endpoint=self.endpoint or config.endpoint,
            api_key=config.api_key or "",
            cache_dir=Path(self.cache_dir) if self.cache_dir else config.cache_dir,
            cache_max_bytes=self.cache_max_bytes or config.cache_max_bytes,
            source=SAMPLE if self.sample or config.sample_data else None,
            max_fetches=fetches,
            api_wait_s=math.inf if wait_s is None else wait_s,
        )


class TardisDataSource(DataSource):
    """Normalized history."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return schema_of(self._projection().columns)

    def reader(self, schema: Any) -> "TardisReader":
        where = Where(
            self.options.get("cacheDir"),
            self.options.get("endpoint"),
            self.options.get("sampleData", "false").lower() == "true",
            int(self.options.get("cacheMaxBytes", "0")) or None,
            float(wait_s) if (wait_s := self.options.get("apiWaitS")) else None,
        )
        tasks = self.options.get("concurrentTasks")
        return self._reader(
            self._replays,
            where,
            self._projection(),
            concurrent_tasks=int(tasks) if tasks else None,
            buckets=int(self.options.get("buckets", "1")),
            request_id=self.options.get("requestId", ""),
        )

    @property
    def _reader(self) -> "type[TardisReader]":
        return TardisReader

    def _projection(self) -> Projection:
        given = self.options.get("as", "columns")
        if given == "columns":
            return Chosen(self._columns())
        if given == "rows":
            return Rows(self._required("case"))
        if given == "disconnects":
            times, told = (self.options.get(name) for name in ("disconnectsOf", "disconnectsTold"))
            return Disconnects(
                None if times is None else msgspec.json.decode(times, type=_Times),
                msgspec.json.decode(told or "[]", type=_Times),
            )
        if given in _WHOLE:
            return _WHOLE[given]()
        raise LakeError(f"as={given}: expected columns, rows, disconnects, {', '.join(_WHOLE)}")

    @cached_property
    def _replays(self) -> list[ReplayNormalizedOptions]:
        asked = {
            "from": self._required("from"),
            "to": self._required("to"),
            "dataTypes": _listed(self._required("dataTypes")),
            "withDisconnectMessages": self.options.get("withDisconnectMessages") == "true",
        }
        if self.options.get("symbols") is not None:
            asked["symbols"] = _listed(self.options["symbols"])
        names = _listed(self._required("exchange"))
        return replay_normalized_options([Request({"exchange": name, **asked}) for name in names])

    def _columns(self) -> dict[str, str]:
        known = {"payload_case": "STRING", **silver.KEY}
        for case in cases_of(self._replays):
            known |= silver.columns(case)
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
        projection: Projection,
        *,
        concurrent_tasks: int | None = None,
        buckets: int = 1,
        request_id: str = "",
    ) -> None:
        self._replays = list(replays)
        self._where = where
        self._projection = projection
        self._concurrent = concurrent_tasks
        self._buckets = buckets
        self._request_id = request_id
        self._ingest_us = time.time_ns() // 1000

    def partitions(self) -> Sequence[Slice]:
        found = [
            (kept_from, part)
            for replay in self._replays
            for bucket in self._bucketed(replay)
            for kept_from, part in slices(bucket)
        ]
        tasks = min(self._concurrent or len(found), len(found))
        fetches = max(1, _FETCHES // max(tasks, 1))
        return [
            Slice(Part(part, kept_from, index, self._request_id, self._ingest_us), fetches)
            for index, (kept_from, part) in enumerate(found)
        ]

    def _bucketed(self, replay: ReplayNormalizedOptions) -> list[ReplayNormalizedOptions]:
        buckets = bucketed(replay, self._buckets)
        # All of them see a disconnect, each after its own last message: the first one tells.
        return buckets[:1] if isinstance(self._projection, Disconnects) else buckets

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Slice):
            return  # where there are no partitions Spark reads one of its own making
        with self._where.history(partition.fetches) as history:
            yield from project(self._projection, partition.part, history)

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
                self._confine(each, _us(each.value), last=DAY_US - 1)
        return filters

    def _confine(self, each: Any, us: int, *, last: int = 0) -> None:
        start = us if isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo) else None
        end = us + last + 1 if isinstance(each, LessThan | LessThanOrEqual | EqualTo) else None
        self._replays = [
            kept for replay in self._replays if (kept := confined(replay, start, end)) is not None
        ]


class _UnfilteredReader(TardisReader):
    """A reader for sessions without filter pushdown: Spark refuses one with `pushFilters`."""

    pushFilters = DataSourceReader.pushFilters  # noqa: N815


class _Unfiltered(TardisDataSource):
    """Normalized history, for sessions that do not push filters down to sources in Python."""

    @property
    def _reader(self) -> type[TardisReader]:
        return _UnfilteredReader


def replayed(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """Read what `spark.read.format("tardis")` would, planned in this process.

    A source in Python is asked for its schema, filters and tasks in processes of their own, which
    costs more than a small day.
    """
    source = TardisDataSource(dict(options))
    reader = source.reader(None)
    parts = reader.partitions()
    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(
        partial(_read, reader, parts), source.schema()
    )


def _read(
    reader: "TardisReader", parts: Sequence[Slice], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from reader.read(parts[number])


def bucketed(replay: ReplayNormalizedOptions, count: int) -> list[ReplayNormalizedOptions]:
    """Spread a replay's symbols over as many replays; those of all symbols stay one."""
    if replay.symbols is None or count <= 1 or len(replay.symbols) <= 1:
        return [replay]
    return [
        msgspec.structs.replace(replay, symbols=replay.symbols[first::count])
        for first in range(min(count, len(replay.symbols)))
    ]


def slices(
    replay: ReplayNormalizedOptions,
) -> Iterator[tuple[int, ReplayNormalizedOptions]]:
    """Cut a replay into what tasks can do apart, each with the time from which rows are kept.

    Each day is recorded on its own and begins with fresh book snapshots: what has state is
    replayed from there. Trades have none, and are cut by the hour.
    """
    step = _HOUR_US if stateless(replay) else DAY_US
    start = replay.from_
    while start < replay.to:
        end = min((start // step + 1) * step, replay.to)
        begin = start if stateless(replay) else start // DAY_US * DAY_US
        yield start, msgspec.structs.replace(replay, from_=begin, to=end)
        start = end


def stateless(replay: ReplayNormalizedOptions) -> bool:
    """Tell whether a replay can begin anywhere: disconnects have the time of what came before."""
    return set(replay.data_types) == {"trade"} and not replay.with_disconnect_messages


def confined(
    replay: ReplayNormalizedOptions, start: int | None, end: int | None
) -> ReplayNormalizedOptions | None:
    """Leave out minutes before `start` and from `end` on; None if nothing is left."""
    first = replay.from_ if start is None else max(replay.from_, start // _MINUTE_US * _MINUTE_US)
    last = replay.to if end is None else min(replay.to, -(-end // _MINUTE_US) * _MINUTE_US)
    return msgspec.structs.replace(replay, from_=first, to=last) if first < last else None


def cases_of(replays: Iterable[ReplayNormalizedOptions]) -> list[str]:
    """Name the payload cases that these replays give."""
    found: dict[str, None] = {}
    for replay in replays:
        found |= dict.fromkeys(case_of(data_type) for data_type in replay.data_types)
        if replay.with_disconnect_messages:
            found[DISCONNECT] = None
    return list(found)


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
