"""Streams killed in the middle of a batch and taken up again: no row lost, none twice."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats as nats_client
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from tardis_machine.config.values import to_dict
from tardis_machine.lake import streaming
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.sources import kafka as kafka_source
from tardis_machine.lake.sources import records
from tardis_machine.lake.sources.streams import Asked
from tardis_machine.lake.tables import EVENTS, Tables
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.kinesis import KinesisConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.buses.redis import RedisConfig
from tardis_machine.publish.buses.sqs import SQSConfig
from tests.lake.events import trade
from tests.lake.records import produce
from tests.lake.spark_settings import SMALL, ZONE
from tests.support.command import environment
from tests.support.servers.aws import KEYS, REGION, Ministack
from tests.support.servers.certificates import Certificates
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.redis import RedisServer
from tests.support.servers.secure_kafka import PASSWORD
from tests.support.waiting import wait_until

LIMIT = 4
EVENTS_SENT = 10
STOPS_IN_THE_SECOND_BATCH = """
import json, sys, time
from pathlib import Path
from tardis_machine.config import from_dict
from tardis_machine.lake import streaming
from tardis_machine.lake.session import session
from tardis_machine.lake.sources import records
from tardis_machine.lake.sources.streams import Asked
from tardis_machine.lake.tables import Tables
from tardis_machine.publish.buses import BUSES
write_batch = streaming.write_batch
def stop_behind(tables, rows, commit, **how):
    written = write_batch(tables, rows, commit, **how)
    if commit.version == 1:
        Path(tables.root, "reached").touch()
        time.sleep(600)
    return written
streaming.write_batch = stop_behind
asked = json.loads(Path(sys.argv[1]).read_text())
spark = session(master="local[2]", settings=asked["settings"])
for bus, root, config in asked["streams"]:
    tables = Tables(spark, root)
    place = streaming.default_checkpoint(tables.root, bus)
    rows = records(
        spark, bus, from_dict(BUSES[bus].config_type, config), Asked("earliest", 4, False, place)
    )
    query = streaming.start(tables, rows, place, bronze_only=True)
    # One after the other: Spark gives Python ten seconds to start, however busy the machine is.
    while not Path(tables.root, "reached").exists() and query.isActive:
        time.sleep(0.05)
spark.streams.awaitAnyTermination()
"""
"""Streams of several buses, each stopped once Bronze has its second batch."""


def filled_nats(server: NatsServer, values: list[bytes]) -> NatsConfig:
    name = f"restart-{uuid4()}"

    async def publish() -> None:
        client = await nats_client.connect(server.url)
        js = client.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.>"])
        for value in values:
            await js.publish(f"{name}.events", value)
        await client.close()

    asyncio.run(publish())
    return NatsConfig(servers=(server.url,), subject=f"{name}.events", stream=name)


def filled_redis(server: RedisServer, values: list[bytes]) -> RedisConfig:
    name = f"restart-{uuid4()}"
    client = server.client()
    for value in values:
        client.xadd(name, {"value": value})
    client.close()
    return RedisConfig(url=server.url, stream=name)


def filled_kinesis(server: Ministack, values: list[bytes]) -> KinesisConfig:
    name = f"restart-{uuid4()}"
    client = server.client("kinesis")
    client.create_stream(StreamName=name, ShardCount=2)
    entries = [{"Data": value, "PartitionKey": str(n)} for n, value in enumerate(values)]
    client.put_records(StreamName=name, Records=entries)
    return KinesisConfig(stream=name, region=REGION, endpoint_url=server.url, **KEYS)


def filled_sqs(server: Ministack, values: list[bytes]) -> SQSConfig:
    client = server.client("sqs")
    url = client.create_queue(QueueName=f"restart-{uuid4()}")["QueueUrl"]
    for value in values:
        client.send_message(QueueUrl=url, MessageBody=base64.b64encode(value).decode())
    return SQSConfig(queue_url=url, region=REGION, endpoint_url=server.url, **KEYS)


def test_streams_go_on_after_a_kill_without_losing_or_repeating(
    spark: SparkSession,
    tmp_path: Path,
    nats: NatsServer,
    redis: RedisServer,
    ministack: Ministack,
) -> None:
    values = [trade(number) for number in range(EVENTS_SENT)]
    configs: dict[str, BusConfig] = {
        "nats": filled_nats(nats, values),
        "redis": filled_redis(redis, values),
        "kinesis": filled_kinesis(ministack, values),
        "sqs": filled_sqs(ministack, values),
    }
    roots = {bus: tmp_path / bus for bus in configs}
    streams = [(bus, str(roots[bus]), to_dict(config)) for bus, config in configs.items()]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({"settings": SMALL, "streams": streams}))
    job = subprocess.Popen(
        [sys.executable, "-c", STOPS_IN_THE_SECOND_BATCH, asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(TM_JARS_DIR=os.environ["TM_JARS_DIR"], TZ=ZONE),
        start_new_session=True,
    )
    try:
        wait_until(
            lambda: job.poll() is not None or all((r / "reached").exists() for r in roots.values()),
            "the second batches",
            patience_s=800,
        )
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        said, _ = job.communicate()
    for bus, root in roots.items():
        assert (root / "reached").exists(), bus + said[-3000:]
        tables = Tables(spark, str(root))
        before = tables.read(EVENTS).count()
        assert LIMIT < before < EVENTS_SENT, bus
        place = streaming.default_checkpoint(tables.root, bus)
        rows = records(spark, bus, configs[bus], Asked("earliest", LIMIT, False, place))
        streaming.wait(streaming.start(tables, rows, place, once=True, bronze_only=True))
        held = [bytes(row.value) for row in tables.read(EVENTS).select("value").collect()]
        assert Counter(held) == Counter(values), bus


class Collected:
    """What a stream of records gave, batch by batch."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = str(checkpoint)
        self.values: list[bytes] = []

    def run(self, rows: DataFrame) -> None:
        def take(batch: DataFrame, _: int) -> None:
            self.values += [bytes(row.value) for row in batch.select("value").collect()]

        writer = rows.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", self._checkpoint)
        streaming.wait(writer.trigger(availableNow=True).start())


@pytest.mark.kafka
def test_kafka_names_what_was_trimmed(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"trimmed-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(30)
    config = KafkaConfig(brokers=(kafka.address,), topic=topic)
    values = [b"%d" % number for number in range(10)]
    produce(kafka, topic, values[:4])
    found = Collected(tmp_path / "checkpoint")
    found.run(kafka_source.stream(spark, config, Asked()))
    assert found.values == values[:4]
    produce(kafka, topic, values[4:])
    trimmed = TopicPartition(topic, 0, 7)
    admin.delete_records([trimmed])[trimmed].result(30)
    with pytest.raises(LakeError, match=r"(?s)trimmed.*--on-data-loss skip") as refused:
        found.run(kafka_source.stream(spark, config, Asked()))
    assert f"{topic}-0" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 2
    found.run(kafka_source.stream(spark, config, Asked(skip_lost=True)))
    assert found.values == [*values[:4], *values[7:]]


@pytest.mark.kafka
def test_the_checkpoint_of_another_kafka_topic_is_refused_as_that(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topics = [f"other-{uuid4()}" for _ in range(2)]
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for made in admin.create_topics([NewTopic(topic) for topic in topics]).values():
        made.result(30)
    first, second = (KafkaConfig(brokers=(kafka.address,), topic=topic) for topic in topics)
    found = Collected(tmp_path / "checkpoint")
    for topic in topics:
        produce(kafka, topic, [topic.encode()])
    found.run(kafka_source.stream(spark, first, Asked()))
    said = rf"its place in Kafka partitions {topics[0]}-0, which are not read now.* --checkpoint"
    with pytest.raises(LakeError, match=said) as refused:
        found.run(kafka_source.stream(spark, second, Asked()))
    assert "trimmed" not in str(refused.value)
    found.run(kafka_source.stream(spark, second, Asked(skip_lost=True)))
    assert found.values == [topic.encode() for topic in topics]


@pytest.mark.kafka
def test_kafka_is_read_with_certificates_and_passwords(
    spark: SparkSession,
    secure_kafka: KafkaBroker,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    topic = f"secure-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": secure_kafka.address})
    admin.create_topics([NewTopic(topic)])[topic].result(30)
    produce(secure_kafka, topic, [b"secret"])
    login: dict[str, Any] = {"sasl_username": "writer", "sasl_password": PASSWORD}
    tls = {"ssl": True, "ssl_ca": certificates.authority}
    signed = {"ssl_cert": certificates.client, "ssl_key": certificates.client_key}
    ways: dict[str, dict[str, Any]] = {
        "SSL": {**tls, **signed},
        "SASL_PLAINTEXT": {**login, "sasl_mechanism": "SCRAM-SHA-256"},
        "SASL_SSL": {**login, **tls, "sasl_mechanism": "PLAIN"},
    }
    for listener, settings in ways.items():
        config = KafkaConfig(
            brokers=(f"127.0.0.1:{secure_kafka.ports[listener]}",), topic=topic, **settings
        )
        found = Collected(tmp_path / listener)
        found.run(kafka_source.stream(spark, config, Asked()))
        assert found.values == [b"secret"], listener
