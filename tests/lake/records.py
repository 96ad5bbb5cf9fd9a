"""Records as a stream reads them from a bus, made without one or sent to Kafka."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from tardis_machine.lake.records import RECORD, schema_of
from tests.support.servers.kafka import KafkaBroker


def records(
    spark: SparkSession, values: Sequence[bytes | None], *, bus: str = "test", offset: int = 0
) -> DataFrame:
    """Return records with these values, at offsets that follow each other."""
    rows: list[tuple[Any, ...]] = [
        (bus, "events", 0, offset + index, None, None, None, value)
        for index, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, schema_of(RECORD))


def produce(broker: KafkaBroker, topic: str, values: Sequence[bytes]) -> None:
    """Send values to a Kafka topic and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.address})
    for value in values:
        producer.produce(topic, value, key=b"bitmex", headers={"payload-case": b"trade"})
    assert producer.flush(30) == 0
    producer.close()
