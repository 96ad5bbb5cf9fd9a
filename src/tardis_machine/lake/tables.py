"""The Delta tables under one path: where they are, how they are made, and how rows get in once."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tardis_machine.lake import bronze, silver
from tardis_machine.lake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
T = TypeVar("T")

_ATTEMPTS: Final = 12
_CREATE_ATTEMPTS: Final = 6
_CONFLICTS: Final = (
    "DELTA_CONCURRENT_",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "ConcurrentAppendException",
    "ConcurrentDeleteReadException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
)
# Another writer has begun to make the table; or something else is there, which does not pass.
_BEING_MADE: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
_MICROSECOND: Final = timedelta(microseconds=1)


class Table(NamedTuple):
    """A table: its path under the root, its columns, how its files are laid out."""

    path: str
    schema: str
    partitioned_by: tuple[str, ...] = ("exchange", "day")
    ordered_by: tuple[str, ...] = ("symbol", "local_ts")
    statistics: tuple[str, ...] = ("symbol", "local_ts", "event_id")
    properties: tuple[tuple[str, str], ...] = ()


QUARANTINE: Final = Table(
    "bronze/quarantine",
    "id STRING, stage STRING, reason STRING, event_id STRING, exchange STRING, symbol STRING, "
    "payload_case STRING, local_ts TIMESTAMP, " + bronze.schema_of(bronze.KEPT),
    partitioned_by=(),
    ordered_by=("id",),
    statistics=("id", "exchange", "local_ts"),
)
MANIFEST: Final = Table(
    "bronze/backfills",
    "exchange STRING, day DATE, start TIMESTAMP, end TIMESTAMP, data_type STRING, "
    "symbols ARRAY<STRING>, events BIGINT, unit STRING, finished TIMESTAMP",
    partitioned_by=(),
    ordered_by=("exchange", "day"),
    statistics=("exchange", "day"),
)
EVENTS: Final = Table(
    "bronze/events",
    bronze.schema(),
    statistics=("symbol", "payload_case", "local_ts", "event_id"),
    properties=(("delta.appendOnly", "true"),),
)
SILVER: Final[dict[str, Table]] = {
    case: Table(f"silver/{table.name}", silver.schema(case))
    for case, table in silver.TABLES.items()
}
"""By payload case."""
ALL: Final[dict[str, Table]] = {
    table.path.rpartition("/")[2]: table
    for table in (EVENTS, QUARANTINE, MANIFEST, *SILVER.values())
}
"""By name, such as `events` and `trades`."""


class Span(NamedTuple):
    """What a batch touches: exchanges, and local times from first to last."""

    exchanges: tuple[str, ...]
    first: datetime
    last: datetime

    def widened(self, slack: timedelta) -> "Span":
        """Reach further at both ends."""
        return Span(self.exchanges, self.first - slack, self.last + slack)

    def condition(self, alias: str) -> str:
        """Confine a query to files that may hold these: by literals, so that others are skipped."""
        exchanges = ", ".join(_literal(each) for each in self.exchanges)
        return (
            f"{alias}.exchange IN ({exchanges}) "
            f"AND {alias}.day BETWEEN {_day(self.first.date())} AND {_day(self.last.date())} "
            f"AND {alias}.local_ts BETWEEN {_instant(self.first)} AND {_instant(self.last)}"
        )


class Tables:
    """The tables under one path, in one Spark session."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self.spark = spark
        # SQL takes a relative path for the name of a schema.
        self.root = root.rstrip("/") if ":" in root else str(Path(root).absolute())
        self._known: set[str] = set()

    def path(self, table: Table) -> str:
        """Tell where a table is."""
        return f"{self.root}/{table.path}"

    def name(self, table: Table) -> str:
        """Give the table as SQL names it."""
        return "delta.`{}`".format(self.path(table).replace("`", "``"))

    def exists(self, table: Table) -> bool:
        """Tell whether a table has been made."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - an optional dependency

        if table.path not in self._known:
            try:
                self.spark.read.format("delta").load(self.path(table)).schema  # noqa: B018
            except AnalysisException:
                return False
            self._known.add(table.path)
        return True

    def create(self, table: Table) -> None:
        """Make a table unless it is there."""
        if table.path in self._known:
            return
        partitioned = (
            f"PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
        )
        properties = (
            ("delta.dataSkippingStatsColumns", ",".join(table.statistics)),
            *table.properties,
        )
        listed = ", ".join(f"{_literal(key)} = {_literal(value)}" for key, value in properties)
        statement = (
            f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({table.schema}) USING delta "
            f"{partitioned} TBLPROPERTIES ({listed})"
        )
        retried(
            f"create {table.path}",
            lambda: self.spark.sql(statement),
            conflicts=(*_CONFLICTS, _BEING_MADE),
            attempts=_CREATE_ATTEMPTS,
        )
        self._known.add(table.path)

    def read(self, table: Table) -> "DataFrame":
        """Read a table."""
        if not self.exists(table):
            raise LakeError(f"there is no table {self.path(table)}")
        return self.spark.read.format("delta").load(self.path(table))

    def append_once(self, rows: "DataFrame", table: Table, application: str, version: int) -> None:
        """Append rows, unless this version of this application's has been appended already."""
        self.create(table)
        writer = (
            rows.sortWithinPartitions(*table.partitioned_by, *table.ordered_by)
            .write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")
            .option("txnAppId", application)
            .option("txnVersion", version)
        )
        retried(f"append to {table.path}", lambda: writer.save(self.path(table)))

    def insert_new(
        self,
        rows: "DataFrame",
        table: Table,
        keys: Sequence[str],
        span: Span | None = None,
    ) -> int:
        """Insert the rows whose keys the table does not have; tell how many that were.

        `keys` are SQL expressions over the columns of either side, `{}` standing for its alias.
        """
        self.create(table)
        matched = [f"{key.replace('{}', 't')} = {key.replace('{}', 's')}" for key in keys]
        condition = " AND ".join([*([span.condition("t")] if span else []), *matched])
        statement = (
            f"MERGE WITH SCHEMA EVOLUTION INTO {self.name(table)} t USING {{source}} s "
            f"ON {condition} WHEN NOT MATCHED THEN INSERT *"
        )

        def merge() -> int:
            [result] = rows.sparkSession.sql(statement, source=rows).collect()
            inserted: int = result["num_inserted_rows"]
            return inserted

        return retried(f"merge into {table.path}", merge)


def retried(
    what: str,
    act: Callable[[], T],
    *,
    conflicts: Sequence[str] = _CONFLICTS,
    attempts: int = _ATTEMPTS,
) -> T:
    """Do it again when another writer was quicker: Delta refuses rather than mixing the two."""
    for attempt in range(1, attempts):
        try:
            return act()
        except Exception as error:
            if not any(conflict in str(error) for conflict in conflicts):
                raise
            wait = random.uniform(0.5, 1) * min(0.25 * 2**attempt, 10)  # noqa: S311
            log.info("table changed meanwhile", extra={"doing": what, "again_in_s": round(wait, 1)})
            time.sleep(wait)
    return act()


def _literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _day(day: date) -> str:
    return f"DATE'{day.isoformat()}'"


def _instant(moment: datetime) -> str:
    epoch = datetime(1970, 1, 1, tzinfo=moment.tzinfo)
    return f"timestamp_micros({(moment - epoch) // _MICROSECOND}L)"
