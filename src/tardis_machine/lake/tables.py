"""The Delta tables under one path: where they are, how they are made, and how rows get in once."""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tardis_machine.lake import silver
from tardis_machine.lake.comments import commented
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.events import EVENT
from tardis_machine.lake.lost import FILE_GONE, forget
from tardis_machine.lake.places import located
from tardis_machine.lake.records import KEPT
from tardis_machine.lake.session import is_own, moved, prepared
from tardis_machine.lake.spans import listed, literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = logging.getLogger(__name__)
T = TypeVar("T")

_ATTEMPTS: Final = 12
_CREATE_ATTEMPTS: Final = 6
_LATEST_COMMITS: Final = 1000
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
_NO_FILE_SYSTEM: Final = "No FileSystem for scheme"
# Another writer has begun to make the table; or something else is there, which does not pass.
_BEING_MADE: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
# Small files of a day are joined as it grows: never those that are large already.
_GROWING: Final = (
    ("delta.autoOptimize.autoCompact", "true"),
    # Every commit reads the names of all files that were joined so long ago at most, and every
    # checkpoint holds them: within a week, a batch every five seconds leaves 120,000.
    ("delta.deletedFileRetentionDuration", "interval 1 days"),
    # The log keeps a month of checkpoints: ten commits apart they can take more than the data.
    ("delta.checkpointInterval", "50"),
)
# What others keep up with by: Gold, and whoever reads the tables elsewhere.
FEED: Final = ("delta.enableChangeDataFeed", "true")


class Table(NamedTuple):
    """A table: its path under the root, its columns, how its files are laid out."""

    path: str
    columns: dict[str, str]
    partitioned_by: tuple[str, ...] = ("exchange", "day")
    ordered_by: tuple[str, ...] = ("symbol", "local_ts")
    statistics: tuple[str, ...] = ("symbol", "local_ts", "event_id")
    properties: tuple[tuple[str, str], ...] = (*_GROWING, FEED)
    comments: Mapping[str, str] = MappingProxyType({})
    """What columns mean that are not as in other tables."""


QUARANTINE: Final = Table(
    "bronze/quarantine",
    {
        "id": "STRING",
        "stage": "STRING",
        "reason": "STRING",
        "event_id": "STRING",
        "exchange": "STRING",
        "symbol": "STRING",
        "payload_case": "STRING",
        "data_type": "STRING",
        "local_ts": "TIMESTAMP",
        "unit": "STRING",
        **KEPT,
    },
    partitioned_by=(),
    ordered_by=("id",),
    statistics=("id", "exchange", "local_ts"),
)
MANIFEST: Final = Table(
    "bronze/backfills",
    {
        "exchange": "STRING",
        "day": "DATE",
        "start": "TIMESTAMP",
        "end": "TIMESTAMP",
        "layer": "STRING",
        "data_type": "STRING",
        "symbols": "ARRAY<STRING>",
        "events": "BIGINT",
        "rejected": "BIGINT",
        "filtered": "BIGINT",
        "unit": "STRING",
        "generation": "BIGINT",
        "finished": "TIMESTAMP",
    },
    partitioned_by=(),
    ordered_by=("exchange", "day"),
    statistics=("exchange", "day"),
)
EVENTS: Final = Table(
    "bronze/events",
    EVENT,
    statistics=("symbol", "payload_case", "data_type", "local_ts", "event_id"),
)
SILVER: Final[dict[str, Table]] = {
    case: Table(f"silver/{table.name}", silver.columns(case))
    for case, table in silver.TABLES.items()
}
"""By payload case."""
BREAKS: Final = Table(
    "silver/breaks",
    {
        "exchange": "STRING",
        "day": "DATE",
        "symbol": "STRING",
        "local_ts": "TIMESTAMP",
        "earliest_ts": "TIMESTAMP",
        "latest_ts": "TIMESTAMP",
        "symbols": "ARRAY<STRING>",
        "data_types": "ARRAY<STRING>",
        "unit": "STRING",
    },
    statistics=("local_ts", "unit"),
    comments={
        "local_ts": "when the last message came before the connection broke, of these, UTC",
        "earliest_ts": "when it can have broken first: then, or where a recorded slice begins, UTC",
        "latest_ts": "when it can have broken last: the next message came, or the part ended, UTC",
        "symbol": "empty: see symbols",
        "symbols": "whose messages, NULL for all",
        "data_types": "of which data types",
    },
)
"""Disconnects as each unit of a backfill saw them. A recorded one has no time of its own: it is
known by the last message before it, which is another one for other symbols and data types."""
ALL: Final[dict[str, Table]] = {
    table.path.rpartition("/")[2]: table
    for table in (EVENTS, QUARANTINE, MANIFEST, *SILVER.values(), BREAKS)
}
"""By name, such as `events` and `trades`."""


class Commit(NamedTuple):
    """What makes an append happen once: who writes, and which of its batches this is."""

    application: str
    version: int

    @property
    def label(self) -> str:
        """What the table's history shows of it."""
        return f"{self.application}#{self.version}"


class Tables:
    """The tables under one path, in a Spark session of the lake's own beside the given one."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        self.given = spark
        """The user's session: temporary views are made here, and nothing of it is changed."""
        self.spark = prepared(spark)
        self.root = located(root)
        self._known: set[str] = set()
        self._creating = threading.Lock()

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
            except Exception as error:
                if _NO_FILE_SYSTEM in str(error):
                    raise LakeError(
                        f"{self.root}: Spark has no file system for such a URL. Expected a folder "
                        "or s3a://bucket/lake; others need their jars (--spark "
                        "spark.jars.packages=…)"
                    ) from None
                raise
            self._known.add(table.path)
        return True

    def create(self, table: Table) -> None:
        """Make a table unless it is there."""
        # One thread at a time: others would only be refused, and wait.
        with self._creating:
            if table.path not in self._known:
                self._create(table)
                self._known.add(table.path)

    def _create(self, table: Table) -> None:
        partitioned = (
            f"PARTITIONED BY ({', '.join(table.partitioned_by)})" if table.partitioned_by else ""
        )
        properties = (
            ("delta.dataSkippingStatsColumns", ",".join(table.statistics)),
            *table.properties,
        )
        assigned = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties)
        columns = commented(table.columns, table.comments)
        statement = (
            f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({columns}) "
            f"USING delta {partitioned} TBLPROPERTIES ({assigned})"
        )
        retried(
            f"create {table.path}",
            lambda: self.spark.sql(statement),
            conflicts=(*_CONFLICTS, _BEING_MADE),
            attempts=_CREATE_ATTEMPTS,
        )

    def read(self, table: Table) -> "DataFrame":
        """Read a table."""
        if not self.exists(table):
            raise LakeError(f"there is no table {self.path(table)}")
        return self.spark.read.format("delta").load(self.path(table))

    def own(self, rows: "DataFrame") -> "DataFrame":
        """Return rows of any session as rows of one that is the lake's own, with its settings."""
        return rows if is_own(rows.sparkSession) else moved(rows, self.spark)

    def append_once(self, rows: "DataFrame", table: Table, commit: Commit) -> None:
        """Append rows, unless this commit has been made already."""
        self.create(table)
        writer = (
            rows.write.format("delta")
            .mode("append")
            .option("mergeSchema", "true")
            .option("txnAppId", commit.application)
            .option("txnVersion", commit.version)
            .option("userMetadata", commit.label)
        )
        retried(f"append to {table.path}", lambda: writer.save(self.path(table)))

    def has(self, table: Table, commit: Commit) -> bool:
        """Tell whether a commit is among the latest of a table.

        It never looks at all: a stream makes thousands a day, and the log keeps a month of them.
        So it is good for what is reported. Delta itself makes no commit of `append_once` twice.
        """
        if not self.exists(table):
            return False
        history = self.spark.sql(f"DESCRIBE HISTORY {self.name(table)} LIMIT {_LATEST_COMMITS}")
        return bool(history.where(history.userMetadata == commit.label).limit(1).collect())

    def insert_new(
        self,
        rows: Callable[[], "DataFrame"],
        table: Table,
        keys: Sequence[str],
        where: str = "",
    ) -> int:
        """Insert the rows whose keys the table does not have; tell how many that were.

        `where` confines the rows of the table, `t`, that are compared. `rows` is asked again when
        another writer was quicker, since it may have looked at the table.
        """
        self.create(table)
        matched = " AND ".join(
            [*([where] if where else []), *(f"t.{key} = s.{key}" for key in keys)]
        )
        into = f"MERGE WITH SCHEMA EVOLUTION INTO {self.name(table)} t"
        on = f"ON {matched} WHEN NOT MATCHED THEN INSERT *"

        def merge() -> int:
            inserted: int = _merged(into, rows(), on)["num_inserted_rows"]
            return inserted

        return retried(f"merge into {table.path}", merge)

    def replace(self, rows: Callable[[], "DataFrame"], table: Table, where: str) -> None:
        """Put these rows in the place of all that a condition meets, in one commit.

        Files of these days that are gone stand in its way, and are forgotten.
        """
        self.create(table)

        def overwrite() -> None:
            (
                rows()
                .write.format("delta")
                .mode("overwrite")
                .option("mergeSchema", "true")
                .option("replaceWhere", where)
                .save(self.path(table))
            )

        while True:
            try:
                return retried(f"replace in {table.path}", overwrite)
            except Exception as error:
                if FILE_GONE not in str(error) or not self._forget_lost(table, str(error)):
                    raise

    def _forget_lost(self, table: Table, error: str) -> int:
        """Forget what is gone of the days of which Spark names a file."""
        forgetting = partial(forget, self.spark, self.path(table), error)
        count = retried(f"forget files of {table.path}", forgetting)
        if count:
            log.warning(
                "data files are gone: what is not replaced of them is lost, `lake verify` tells",
                extra={"table": table.path, "files": count},
            )
        return count

    def delete(self, table: Table, where: str) -> None:
        """Delete the rows that a condition meets."""
        statement = f"DELETE FROM {self.name(table)} WHERE {where}"  # noqa: S608 - our own words
        retried(f"delete in {table.path}", lambda: self.spark.sql(statement).collect())

    def delete_matching(self, rows: "DataFrame", table: Table, key: str) -> None:
        """Delete the rows whose key is among these."""
        into = f"MERGE INTO {self.name(table)} t"
        on = f"ON t.{key} = s.{key} WHEN MATCHED THEN DELETE"
        keys = rows.select(key).distinct()
        retried(f"delete in {table.path}", lambda: _merged(into, keys, on))


def _merged(into: str, source: "DataFrame", on: str) -> "Row":
    """Merge rows, `s`, as SQL says; give what it tells of that."""
    # Spark looks for names in braces, in texts and paths as well.
    into, on = (part.replace("{", "{{").replace("}", "}}") for part in (into, on))
    statement = f"{into} USING {{source}} s {on}"
    [result] = source.sparkSession.sql(statement, source=source).collect()
    return result


def among(column: str, values: Sequence[str]) -> str:
    """Write that a column has one of these values."""
    return f"{column} IN ({listed(values)})"


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
