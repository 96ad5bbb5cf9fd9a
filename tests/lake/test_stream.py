"""From real buses into real tables."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import nats as nats_client
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tardis_machine.lake import stream
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.sources import kafka as kafka_source
from tardis_machine.lake.sources import nats as nats_source
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Tables
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tests.lake.events import trade
from tests.servers.kafka import KafkaBroker
from tests.servers.nats import NatsServer

LIMIT = 400
"""Events per batch, so that a test has several."""


def produce(broker: KafkaBroker, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for value in values:
        producer.produce(topic, value, key=b"bitmex", headers={"payload-case": b"trade"})
    assert producer.flush(30) == 0
    producer.close()


@pytest.fixture
def kafka_config(kafka: KafkaBroker) -> KafkaConfig:
    topic = f"lake-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(30)
    return KafkaConfig(brokers=(kafka.address,), topic=topic)


def run_kafka(tables: Tables, config: KafkaConfig, checkpoint: str) -> None:
    records = kafka_source.stream(
        tables.spark, config, starting="earliest", max_events=LIMIT, skip_lost=False
    )
    stream.wait(stream.start(tables, records, checkpoint, once=True))


@pytest.mark.kafka
def test_kafka_lands_in_bronze_quarantine_and_silver_once(
    kafka: KafkaBroker, kafka_config: KafkaConfig, tables: Tables
) -> None:
    assert kafka_config.topic
    checkpoint = stream.default_checkpoint(tables.root, "kafka")
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
    run_kafka(tables, kafka_config, stream.default_checkpoint(tables.root, "again"))
    assert tables.read(SILVER["trade"]).count() == 601
    assert tables.read(QUARANTINE).count() == 1


class JetStream:
    """A stream of its own on the shared server."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"lake-{uuid4()}"
        self.config = NatsConfig(
            servers=(server.url,), subject=f"{self.name}.events", stream=self.name
        )

    def publish(self, values: Sequence[bytes]) -> None:
        asyncio.run(self._publish(values))

    async def _publish(self, values: Sequence[bytes]) -> None:
        client = await nats_client.connect(self.server.url)
        js = client.jetstream()
        await js.add_stream(name=self.name, subjects=[f"{self.name}.>"])
        for value in values:
            await js.publish(f"{self.name}.events", value, headers={"payload-case": "trade"})
        await client.close()

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
        tables.spark,
        jetstream.config,
        starting="earliest",
        max_events=LIMIT,
        skip_lost=skip_lost,
    )
    stream.wait(stream.start(tables, records, checkpoint, once=True))


def test_nats_lands_once_and_names_what_was_trimmed(nats: NatsServer, tables: Tables) -> None:
    jetstream = JetStream(nats)
    checkpoint = stream.default_checkpoint(tables.root, "nats")
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


def test_nats_partitions_cover_each_sequence_once(nats: NatsServer) -> None:
    jetstream = JetStream(nats)
    jetstream.publish([trade(number) for number in range(30)])
    reading = nats_source.Reading(jetstream.name, "earliest", 10, 3, skip_lost=False)
    reader = nats_source.NatsStreamReader(jetstream.config, reading)
    assert reader.initialOffset() == {"next": 1}
    assert reader.latestOffset({"next": 1}, reader.getDefaultReadLimit()) == {"next": 11}
    assert [batch.num_rows for batch in reader.read(nats_source.Sequences(4, 9))] == [6]
    # Spread over tasks once there is enough for each.
    spread = reader.partitions({"next": 1}, {"next": 30_001})
    assert [(part.first, part.last) for part in spread] == [
        (1, 10_000),
        (10_001, 20_000),
        (20_001, 30_000),
    ]
    # What comes after the query began is left for the next one.
    reader.prepareForTriggerAvailableNow()
    jetstream.publish([trade(number) for number in range(30, 35)])
    assert reader.latestOffset({"next": 25}, reader.getDefaultReadLimit()) == {"next": 31}
    assert reader.latestOffset({"next": 31}, reader.getDefaultReadLimit()) == {"next": 31}
