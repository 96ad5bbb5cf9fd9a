"""What the sources of buses share that Spark itself has no connector for."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tardis_machine.lake import session
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.records import RECORD, schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARROW: Final = pa.schema(
    [
        ("bus", pa.string()),
        ("destination", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("value", pa.binary()),
    ]
)
"""`RECORD` in Arrow's words."""
OFFSETS: Final = 1 << 63
"""Places that a column of numbers can tell apart. What a bus calls a place may be longer: it is in
the headers then."""


class Asked(NamedTuple):
    """How a bus is to be read."""

    starting: str = "earliest"
    max_events: int = 200_000
    skip_lost: bool = False
    checkpoint: str = ""
    """Where the stream keeps its place, for a bus that has none to come back to."""


class Row(NamedTuple):
    """A record, before it is in columns."""

    destination: str
    partition: int
    offset: int
    timestamp_us: int | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]
    value: bytes


def batch(bus: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """Put records into columns."""
    headers = [[{"key": name, "value": text} for name, text in row.headers] for row in rows]
    columns = [
        pa.repeat(bus, len(rows)),
        pa.array([row.destination for row in rows], pa.string()),
        pa.array([row.partition for row in rows], pa.int32()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp_us for row in rows], ARROW.field("timestamp").type),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array(headers, ARROW.field("headers").type),
        pa.array([row.value for row in rows], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def load(
    spark: "SparkSession", name: str, reader: Callable[[], DataSourceStreamReader]
) -> "DataFrame":
    """Register a source and read it; its settings are in the reader, since plans show options."""
    session.register(spark, data_source(name, reader))
    return spark.readStream.format(name).load()


def data_source(format_name: str, reader: Callable[[], DataSourceStreamReader]) -> type[DataSource]:
    """Make a source of records."""

    class RecordDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return schema_of(RECORD)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return reader()

    return RecordDataSource


def most(limit: ReadLimit, bus: str) -> int | None:
    """Give the number of records that Spark wants at most; None for all there are."""
    if isinstance(limit, ReadMaxRows):
        return int(limit.max_rows)
    if isinstance(limit, ReadAllAvailable):
        return None
    raise LakeError(f"a {bus} stream cannot be limited by {type(limit).__name__}")


def shares(total: int | None, names: Iterable[str]) -> dict[str, int | None]:
    """Divide what may be read among several, each at least one."""
    wanted = list(names)
    if total is None or not wanted:
        return dict.fromkeys(wanted)
    return dict.fromkeys(wanted, max(1, total // len(wanted)))
