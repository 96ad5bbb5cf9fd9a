"""The consumers of docs/records.md, run as they are printed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.file import FileConfig, FileEventBus
from tests.publish.buses.benches import AwsBench, FifoBench, KinesisBench, RedisBench, SqsBench
from tests.support.events import deliver, records
from tests.support.servers.aws import KEYS, REGION
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer

PAGE = Path(__file__).parents[3] / "docs" / "records.md"
COUNT = 40

Make = Callable[..., EventBus]


def run(title: str, **names: Any) -> list[Any]:
    """Run the code under a title and give the events it handled."""
    [code] = re.findall(
        rf"^### {title}\n```python[^\n]*\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    handled: list[Any] = []
    exec(compile(code, f"{PAGE.name} {title}", "exec"), {"handle": handled.append, **names})
    return handled


def publish_twice(bus: EventBus) -> set[str]:
    """Publish events, and some of them again; give the ids."""
    sent = records(bus, COUNT)
    deliver(bus, sent)
    deliver(bus, sent[:10])
    return {record.event.event_id for record in sent}


@pytest.mark.kafka
def test_the_kafka_consumer(kafka: KafkaBroker, kafka_bus: Make, name: str):
    expected = publish_twice(kafka_bus(kafka.address))

    handled = run("Kafka", BROKERS=kafka.address, TOPIC=name, EXPECTED=COUNT)

    assert len(handled) == COUNT
    assert {event.event_id for event in handled} == expected


def test_the_nats_consumer(nats: NatsServer, nats_bus: Make, name: str):
    expected = publish_twice(nats_bus(nats.url))

    handled = run("NATS", SERVERS=nats.url, SUBJECT=name, EXPECTED=COUNT)

    assert len(handled) == COUNT
    assert {event.event_id for event in handled} == expected


def aws_client(bench: AwsBench) -> dict[str, str]:
    return {
        "region_name": REGION,
        "endpoint_url": bench.proxy.url,
        "aws_access_key_id": KEYS["access_key_id"],
        "aws_secret_access_key": KEYS["secret_access_key"],
    }


def test_the_kinesis_consumer(request: pytest.FixtureRequest):
    bench = KinesisBench(request)
    expected = publish_twice(bench.make())

    handled = run("Kinesis", CLIENT=aws_client(bench), STREAM=bench.name)
    bench.close()

    assert len(handled) == COUNT
    assert {event.event_id for event in handled} == expected


@pytest.mark.parametrize("kind", [SqsBench, FifoBench])
def test_the_sqs_consumer(request: pytest.FixtureRequest, kind: type[SqsBench]):
    bench = kind(request)
    expected = publish_twice(bench.make())
    queue = bench.destination()

    handled = run("SQS", CLIENT=aws_client(bench), QUEUE_URL=queue, EXPECTED=COUNT)
    bench.close()

    assert len(handled) == COUNT
    assert {event.event_id for event in handled} == expected


def test_the_redis_consumer(request: pytest.FixtureRequest):
    bench = RedisBench(request)
    expected = publish_twice(bench.make())

    handled = run("Redis", URL=bench.server.url, STREAM=bench.name, EXPECTED=COUNT)
    bench.close()

    assert len(handled) == COUNT
    assert {event.event_id for event in handled} == expected


def test_the_file_reader(tmp_path: Path):
    bus = FileEventBus(FileConfig(path=tmp_path / "events.ndjson"))
    expected = publish_twice(bus)
    bus.close()

    handled = run("File", PATH=tmp_path / "events.ndjson")

    assert len(handled) == COUNT
    assert {event.event_id for event in handled} == expected
