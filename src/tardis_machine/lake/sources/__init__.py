"""Where records come from: each source gives the same shape, `records.RECORD`."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.lake.sources.streams import Asked
    from tardis_machine.publish.buses.base import BusConfig

STREAMS: Final[dict[str, str]] = {
    name: f"{__name__}.{name}" for name in ("kafka", "nats", "kinesis", "redis", "sqs")
}
"""Buses that can be streamed from, with the module of each. It has `stream(spark, config, asked)`,
and all of them give the same shape, `records.RECORD`."""


def expect_client(bus: str, config: "BusConfig") -> None:
    """Refuse a bus whose client is not installed, before Spark starts; Kafka is read by Spark's."""
    if bus != "kafka":
        config.expect_client()


def records(spark: "SparkSession", bus: str, config: "BusConfig", asked: "Asked") -> "DataFrame":
    """Read a bus as a stream of records."""
    source = import_module(STREAMS[bus])
    rows: DataFrame = source.stream(spark, config, asked)
    return rows
