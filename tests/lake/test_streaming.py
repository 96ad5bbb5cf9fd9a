"""From real buses into real tables."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats as nats_client
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tardis_machine.lake import streaming
from tardis_machine.lake.errors import DataLossError, LakeError
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sources import kafka as kafka_source
from tardis_machine.lake.sources import nats as nats_source
from tardis_machine.lake.sources.streams import Asked
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Tables
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tests.lake.events import trade
from tests.lake.records import produce
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer

LIMIT = 400
"""Events per batch, so that a test has several."""


@pytest.fixture
def kafka_config(kafka: KafkaBroker) -> KafkaConfig:
    topic = f"lake-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(30)
    return KafkaConfig(brokers=(kafka.address,), topic=topic)


def run_kafka(tables: Tables, config: KafkaConfig, checkpoint: str) -> None:
    records = kafka_source.stream(tables.spark, config, Asked(max_events=LIMIT))
    streaming.wait(streaming.start(tables, records, checkpoint, once=True))


@pytest.mark.kafka
def test_kafka_lands_in_bronze_quarantine_and_silver_once(
    kafka: KafkaBroker, kafka_config: KafkaConfig, tables: Tables
) -> None:
    assert kafka_config.topic
    checkpoint = streaming.default_checkpoint(tables.root, "kafka")
    values = [trade(number, trade_id=f"t{number}") for number in range(600)]
    produce(kafka, kafka_config.topic, [*values[:300], b"garbage", *values[200:]])
    run_kafka(tables, kafka_config, checkpoint)
    assert tables.read(EVENTS).count() == 700
    assert tables.read(SILVER["trade"]).count() == 600
    [bad] = tables.read(QUARANTINE).collect()
    assert (bytes(bad.value), bad.bus, bad.destination) == (b"garbage", "kafka", kafka_config.topic)
    assert bytes(bad.key) == b"bitmex"

    # The checkpoint goes on where it was; a new one reads all again, which Silver does not show.
    produce(kafka, kafka_config.topic, [trade(600, trade_id="t600")])
    run_kafka(tables, kafka_config, checkpoint)
    assert tables.read(EVENTS).count() == 701
    run_kafka(tables, kafka_config, streaming.default_checkpoint(tables.root, "again"))
    assert tables.read(SILVER["trade"]).count() == 601
    assert tables.read(QUARANTINE).count() == 1


def test_a_checkpoint_is_found_by_its_very_name(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "{env}[a]*"
    place.mkdir()
    (place / "metadata").write_text('{"id": "that one"}')
    assert streaming.checkpoint_id(spark, f"{place}/") == "that one"


class JetStream:
    """A stream of its own on the shared server."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"lake-{uuid4()}"
        self.limits: dict[str, Any] = {}
        self.config = NatsConfig(
            servers=(server.url,), subject=f"{self.name}.events", stream=self.name
        )

    def publish(self, values: Sequence[bytes]) -> None:
        self.publish_to("events", values)

    def publish_to(self, subject: str, values: Sequence[bytes]) -> None:
        asyncio.run(self._publish(subject, values))

    async def _publish(self, subject: str, values: Sequence[bytes]) -> None:
        client = await nats_client.connect(self.server.url)
        js = client.jetstream()
        await js.add_stream(name=self.name, subjects=[f"{self.name}.>"], **self.limits)
        for value in values:
            await js.publish(f"{self.name}.{subject}", value, headers={"payload-case": "trade"})
        await client.close()

    def remake(self) -> None:
        async def remake() -> None:
            client = await nats_client.connect(self.server.url)
            await client.jetstream().delete_stream(self.name)
            await client.close()

        asyncio.run(remake())

    def purge(self, below: int) -> None:
        async def purge() -> None:
            client = await nats_client.connect(self.server.url)
            await client.jetstream().purge_stream(self.name, seq=below)
            await client.close()

        asyncio.run(purge())

    def delete(self, sequence: int) -> None:
        async def delete() -> None:
            client = await nats_client.connect(self.server.url)
            await client.jetstream().delete_msg(self.name, sequence)
            await client.close()

        asyncio.run(delete())


def run_nats(
    tables: Tables, jetstream: JetStream, checkpoint: str, *, skip_lost: bool = False
) -> None:
    records = nats_source.stream(
        tables.spark, jetstream.config, Asked(max_events=LIMIT, skip_lost=skip_lost)
    )
    streaming.wait(streaming.start(tables, records, checkpoint, once=True))


def test_nats_lands_once_and_names_what_was_trimmed(nats: NatsServer, tables: Tables) -> None:
    jetstream = JetStream(nats)
    checkpoint = streaming.default_checkpoint(tables.root, "nats")
    jetstream.publish([*(trade(number) for number in range(500)), b"garbage"])
    # Taken out by hand, which is no loss.
    jetstream.delete(20)
    run_nats(tables, jetstream, checkpoint)
    events = tables.read(EVENTS)
    assert events.count() == 499
    assert {row.offset for row in events.select("offset").collect()} == {*range(1, 501)} - {20}
    assert tables.read(SILVER["trade"]).count() == 499
    [bad] = tables.read(QUARANTINE).collect()
    assert (bad.bus, bad.destination, bad.offset) == ("nats", jetstream.name, 501)

    jetstream.publish([trade(number) for number in range(500, 520)])
    jetstream.purge(below=512)
    with pytest.raises(LakeError, match=r"502 to 511 were trimmed.*--on-data-loss skip"):
        run_nats(tables, jetstream, checkpoint)
    run_nats(tables, jetstream, checkpoint, skip_lost=True)
    assert tables.read(EVENTS).count() == 499 + 10
    assert tables.read(SILVER["trade"]).count() == 499 + 10


def test_a_stream_that_was_made_anew_is_not_resumed_at_the_old_sequence(
    nats: NatsServer, tables: Tables
) -> None:
    jetstream = JetStream(nats)
    checkpoint = streaming.default_checkpoint(tables.root, "nats")
    jetstream.publish([trade(number) for number in range(10)])
    run_nats(tables, jetstream, checkpoint)
    jetstream.remake()
    # More than before, so that the old sequence is one of the new ones.
    jetstream.publish([trade(number) for number in range(100, 120)])
    with pytest.raises(LakeError, match=r"its sequences are others. Use a new --checkpoint"):
        run_nats(tables, jetstream, checkpoint, skip_lost=True)
    run_nats(tables, jetstream, f"{checkpoint}-2")
    assert tables.read(SILVER["trade"]).count() == 30


def reader_of(jetstream: JetStream, *, skip_lost: bool = False) -> nats_source.NatsStreamReader:
    reading = nats_source.Reading(jetstream.name, "earliest", 10, 3, skip_lost=skip_lost)
    return nats_source.NatsStreamReader(Shipped(jetstream.config), reading)


def read(reader: nats_source.NatsStreamReader, first: int, last: int) -> list[int]:
    batches = reader.read(nats_source.Sequences(first, last))
    return [row for batch in batches for row in batch.column("offset").to_pylist()]


def test_a_gap_is_told_apart_from_what_someone_deleted(nats: NatsServer) -> None:
    deleted = JetStream(nats)
    deleted.publish([trade(number) for number in range(10)])
    deleted.delete(4)
    deleted.delete(10)
    assert read(reader_of(deleted), 2, 10) == [2, 3, 5, 6, 7, 8, 9]
    # A stream that keeps the last two of a subject has let go of the others by itself.
    limited = JetStream(nats)
    limited.limits = {"max_msgs_per_subject": 2}
    limited.publish([trade(number) for number in range(3)])
    limited.publish_to("other", [trade(3)])
    limited.publish([trade(4)])
    with pytest.raises(DataLossError, match=r"1 to 2 were trimmed"):
        read(reader_of(limited), 1, 5)
    limited.publish_to("other", [trade(5)])
    limited.publish([trade(6), trade(7)])
    # 3 and 5 went from the middle; 4 is still there.
    with pytest.raises(DataLossError, match=r"5 to 5 were trimmed"):
        read(reader_of(limited), 4, 8)
    assert read(reader_of(limited, skip_lost=True), 4, 8) == [4, 6, 7, 8]


def test_nats_partitions_cover_each_sequence_once(nats: NatsServer) -> None:
    jetstream = JetStream(nats)
    jetstream.publish([trade(number) for number in range(30)])
    reader = reader_of(jetstream)
    begin = reader.initialOffset()
    assert (begin["next"], begin["stream"]) == (1, jetstream.name)

    def at(sequence: int) -> nats_source.Offset:
        return {**begin, "next": sequence}

    assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == at(11)
    assert [batch.num_rows for batch in reader.read(nats_source.Sequences(4, 9))] == [6]
    # Spread over tasks once there is enough for each.
    spread = reader.partitions(begin, at(30_001))
    assert [(part.first, part.last) for part in spread] == [
        (1, 10_000),
        (10_001, 20_000),
        (20_001, 30_000),
    ]
    # What comes after the query began is left for the next one.
    reader.prepareForTriggerAvailableNow()
    jetstream.publish([trade(number) for number in range(30, 35)])
    assert reader.latestOffset(at(25), reader.getDefaultReadLimit()) == at(31)
    assert reader.latestOffset(at(31), reader.getDefaultReadLimit()) == at(31)
    # An offset of an older version does not say whose it is.
    with pytest.raises(LakeError, match=r"a stream that it does not name"):
        reader.latestOffset({"next": 25}, reader.getDefaultReadLimit())
