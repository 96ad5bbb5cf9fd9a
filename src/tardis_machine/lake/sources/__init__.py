"""Where records come from: each source gives the same shape, `records.RECORD`."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.publish.buses.base import BusConfig

STREAMS: Final[dict[str, str]] = {
    "kafka": "tardis_machine.lake.sources.kafka",
    "nats": "tardis_machine.lake.sources.nats",
}
"""Buses that can be streamed from, with the module of each. It has
`stream(spark, config, *, starting, max_events, skip_lost)`."""


def records(
    spark: "SparkSession",
    bus: str,
    config: "BusConfig",
    *,
    starting: str,
    max_events: int,
    skip_lost: bool,
) -> "DataFrame":
    """Read a bus as a stream of records."""
    source = import_module(STREAMS[bus])
    rows: DataFrame = source.stream(
        spark, config, starting=starting, max_events=max_events, skip_lost=skip_lost
    )
    return rows
