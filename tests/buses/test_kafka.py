"""The Kafka bus on a real broker."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import BusUnavailableError
from tests.buses.arrivals import assert_promises_kept, from_kafka, topics
from tests.buses.events import CONTEXT, deliver, events, records, routed
from tests.servers.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

Make = Callable[..., EventBus]


def test_a_record_has_value_key_and_headers(kafka: KafkaBroker, kafka_bus: Make, name: str):
    bus = kafka_bus(kafka.address, static_headers={"desk": "a:b"}, meta_headers_prefix="meta-")
    [event] = events(1)

    result = bus.send(routed(bus, [event]), 20)

    assert (result.delivered, result.duplicates, result.failures) == (1, 0, [])
    [arrival] = from_kafka(kafka.address, name)
    assert arrival.key == "bitmex|S0|trade"
    assert arrival.value == event.value
    assert arrival.envelope.trade.trade_id == "0"
    assert arrival.headers == {
        "event-id": event.event_id,
        "payload-case": "trade",
        "content-type": "application/x-protobuf",
        "desk": "a:b",
        "meta-desk": CONTEXT.meta["desk"],
        "meta-request_id": "r1",
        "meta-transport": "http",
        "meta-route": "/replay-normalized",
    }


def test_everything_arrives_once_and_in_order(kafka: KafkaBroker, kafka_bus: Make, name: str):
    bus = kafka_bus(kafka.address)
    sent = records(bus, 2_000)

    assert deliver(bus, sent) == []

    arrived = from_kafka(kafka.address, name)
    assert len(arrived) == len(sent)
    assert_promises_kept(sent, arrived)


def test_routes_and_allow_list_decide_the_topic(kafka: KafkaBroker, kafka_bus: Make, name: str):
    bus = kafka_bus(
        kafka.address,
        topic_routing={"book_change": f"{name}-books"},
        include_payloads=("trade", "bookChange"),
        key_template="{{symbol}}",
    )
    sent = records(bus, 40)

    deliver(bus, sent)

    books = from_kafka(kafka.address, f"{name}-books")
    trades = from_kafka(kafka.address, name)
    assert {arrival.headers["payload-case"] for arrival in books} == {"bookChange"}
    assert {arrival.headers["payload-case"] for arrival in trades} == {"trade"}
    assert len(books) == 10
    assert len(trades) == 30
    assert {arrival.key for arrival in books + trades} == {f"S{n}" for n in range(5)}


def test_a_missing_topic_is_named_and_not_created(kafka: KafkaBroker, kafka_bus: Make, name: str):
    bus = kafka_bus(kafka.address, create=False)

    with pytest.raises(BusUnavailableError, match=f"{name}.*--kafka-create") as caught:
        bus.connect()

    assert caught.value.retriable
    assert name not in topics(kafka.address)


def test_sending_waits_for_the_topic_to_be_created(kafka: KafkaBroker, kafka_bus: Make, name: str):
    bus = kafka_bus(kafka.address, create=False)
    sent = records(bus, 10)
    before = bus.send(sent, 5)

    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    after = bus.send(sent, 20)

    assert all(failure.error.retriable for failure in before.failures)
    assert (before.delivered, after.delivered) == (0, 10)


def test_a_full_queue_is_waited_for(kafka: KafkaBroker, kafka_bus: Make, name: str):
    bus = kafka_bus(kafka.address, config={"queue.buffering.max.messages": "50"})
    sent = records(bus, 1_000)

    result = bus.send(sent, 30)

    assert result.delivered == 1_000
    assert_promises_kept(sent, from_kafka(kafka.address, name))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_can_be_read(kafka: KafkaBroker, kafka_bus: Make, name: str, compression: str):
    bus = kafka_bus(kafka.address, compression=compression)

    assert bus.send(records(bus, 20), 20).delivered == 20
    assert len(from_kafka(kafka.address, name)) == 20


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"acks": "0"}, {"idempotent": False}])
def test_weaker_settings_work_and_warn(
    kafka: KafkaBroker, kafka_bus: Make, name: str, settings: dict[str, object]
):
    bus = kafka_bus(kafka.address, **settings)

    assert bus.send(records(bus, 20), 20).delivered == 20
    assert len(from_kafka(kafka.address, name)) == 20
    [warning] = bus.config.warnings()
    assert "reorder" in warning


def test_check_reaches_the_broker_and_creates_nothing(
    kafka: KafkaBroker, kafka_bus: Make, name: str
):
    bus = kafka_bus(kafka.address)

    assert f"will be created: {name}" in bus.check()
    assert name not in topics(kafka.address)

    bus.connect()
    assert bus.check() == f"{kafka.address}, topics {name}"
