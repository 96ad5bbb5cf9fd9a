"""The Kafka bus on a real broker."""

import random
import time
from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import BusUnavailableError, RecordRejectedError
from tests.support.arrivals import assert_promises_kept, from_kafka, topics
from tests.support.events import CONTEXT, deliver, events, records, resized, routed
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.proxy import Proxy

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


def test_check_tells_that_a_user_may_not_write_to_a_topic(
    start_kafka: Callable[..., KafkaBroker], kafka_bus: Make, name: str
):
    broker = start_kafka(
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "allow.everyone.if.no.acl.found=true"
    )
    bus = kafka_bus(broker.address)
    bus.connect()
    assert bus.check() == f"{broker.address}, topics {name}"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
    everybody = ("User:ANONYMOUS", "*")
    read = (AclOperation.READ, AclPermissionType.ALLOW)
    rule = AclBinding(ResourceType.TOPIC, name, ResourcePatternType.LITERAL, *everybody, *read)
    for made in admin.create_acls([rule]).values():
        made.result()
    deadline = time.monotonic() + 10
    while bus.send(records(bus, 1), 10).delivered:  # the controller has it; the broker follows
        assert time.monotonic() < deadline

    with pytest.raises(BusUnavailableError, match=f"{name}: no permission to write"):
        bus.check()


def limit_topic(address: str, topic: str, size: int, *, setting: str = "max.message.bytes") -> None:
    """Change how large a message a topic takes, or another bound."""
    entry = ConfigEntry(setting, str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address})
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result()
    # The controller has it; the broker follows.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        if described.result()[setting].value == str(size):
            return
    raise TimeoutError("the topic's limit did not change")


def produce_requests(said: bytearray) -> int:
    """Count the produce requests in what one client said to a broker."""
    count, place = 0, 0
    while place + 6 <= len(said):
        size = int.from_bytes(said[place : place + 4], "big")
        count += said[place + 4 : place + 6] == b"\0\0"
        place += 4 + size
    return count


def test_mistake_2_and_3_a_refused_batch_is_neither_repeated_whole_nor_overtaken(
    kafka: KafkaBroker, kafka_bus: Make, name: str
):
    """The topic's limit falls while the producer runs: the broker refuses a whole batch.

    Those behind it are small enough, and would get in before the innocent ones of that batch.
    """
    bus = kafka_bus(kafka.address, config={"batch.num.messages": "10"})
    first, rest = records(bus, 10), records(bus, 3_000, start=10)
    deliver(bus, first)
    large = 1_703
    # Noise, since the broker looks at what compression has made of it.
    rest[large] = resized(bus, rest[large], 8_000, noise=8)
    limit_topic(kafka.address, name, 5_000)

    rejected = deliver(bus, rest, batch=3_000, timeout_s=20)

    assert len(rejected) == 1
    assert isinstance(rejected[0].error, RecordRejectedError)
    del rest[large]
    arrived = from_kafka(kafka.address, name)
    assert len(arrived) == len(first) + len(rest)
    assert_promises_kept(first + rest, arrived)


def test_a_topic_may_take_less_than_the_client_can_be_told(
    kafka: KafkaBroker, kafka_bus: Make, name: str
):
    """The library refuses a bound below 1,000 bytes."""
    bus = kafka_bus(kafka.address)
    bus.connect()
    bus.close()
    limit_topic(kafka.address, name, 800)
    sent = records(bus, 100)
    sent[50] = resized(bus, sent[50], 800)

    [rejected] = deliver(bus, sent)

    assert "the topic takes 800 at most" in str(rejected.error)
    del sent[50]
    assert_promises_kept(sent, from_kafka(kafka.address, name))


def test_a_clock_that_the_broker_does_not_believe_costs_no_record(
    kafka: KafkaBroker, kafka_bus: Make, name: str
):
    """By default one that is an hour ahead; here any clock is too late."""
    bus = kafka_bus(kafka.address)
    bus.connect()
    bound = "message.timestamp.before.max.ms"
    limit_topic(kafka.address, name, 0, setting=bound)
    sent = records(bus, 100)

    result = bus.send(sent, 20)

    assert result.delivered == 0
    assert all(error.retriable for _, error in result.failures)
    assert "Invalid timestamp" in str(result.failures[0].error)
    limit_topic(kafka.address, name, 1 << 40, setting=bound)
    assert deliver(bus, sent) == []
    assert_promises_kept(sent, from_kafka(kafka.address, name))


def test_mistake_2_and_3_a_record_refused_for_itself_is_found_among_its_batch(
    kafka: KafkaBroker, kafka_bus: Make, name: str
):
    """A compacted topic refuses records without a key, and says so of the whole batch."""
    admin = AdminClient({"bootstrap.servers": kafka.address})
    compacted = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([compacted])[name].result()
    bus = kafka_bus(kafka.address, config={"batch.num.messages": "10"})
    sent = records(bus, 400)
    keyless = {7, 250}
    for place in keyless:
        target = sent[place].target._replace(key=None)
        sent[place] = msgspec.structs.replace(sent[place], target=target)

    rejected = deliver(bus, sent, batch=400, timeout_s=20)

    assert len(rejected) == len(keyless)
    accepted = [record for place, record in enumerate(sent) if place not in keyless]
    arrived = from_kafka(kafka.address, name)
    assert len(arrived) == len(accepted)
    assert_promises_kept(accepted, arrived)


def test_mistake_2_and_3_a_cut_connection_repeats_nothing_and_breaks_no_order(
    proxied_kafka: tuple[KafkaBroker, Proxy], kafka_bus: Make, name: str
):
    broker, proxy = proxied_kafka
    bus = kafka_bus(f"127.0.0.1:{proxy.port}", config={"batch.num.messages": "10"})
    sent = records(bus, 6_000, padding=300)
    chance = random.Random(5)
    for start in range(0, len(sent), 1_000):
        proxy.cut_after(chance.randrange(2_000, 60_000))
        deliver(bus, sent[start : start + 1_000], timeout_s=30)

    arrived = from_kafka(broker.address, name)
    assert_promises_kept(sent, arrived)
    # One producer lived through all of it, and the broker knows what it has from it already.
    assert len(arrived) == len(sent)


def test_mistake_4_a_batch_is_bounded_by_bytes_and_takes_few_requests(
    proxied_kafka: tuple[KafkaBroker, Proxy], kafka_bus: Make
):
    _, proxy = proxied_kafka
    bus = kafka_bus(f"127.0.0.1:{proxy.port}")
    bus.connect()
    bus.send(records(bus, 1), 20)
    proxy.cut()
    proxy.said.clear()

    assert bus.send(records(bus, 2_000, start=1), 20).delivered == 2_000

    assert 1 <= produce_requests(proxy.said) <= 20
    assert bus.limits.bytes <= 64 << 20
    assert bus.limits.records <= 100_000
