"""What has arrived at a bus, and whether that keeps the promises."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import nats
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from nats.js.errors import NotFoundError

from lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.publish.record import Record


class Arrival(NamedTuple):
    """A record as a consumer sees it."""

    destination: str
    key: str
    headers: dict[str, str]
    value: bytes

    @property
    def envelope(self) -> NormalizedEvent:
        return NormalizedEvent.FromString(self.value)


def from_kafka(address: str, *topics: str) -> list[Arrival]:
    """Read topics from the beginning to what is now their end."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "log_level": 2})
    try:
        found = []
        known = consumer.list_topics(timeout=20).topics
        for topic in topics:
            for partition in known[topic].partitions:
                place = TopicPartition(topic, partition, OFFSET_BEGINNING)
                _, end = consumer.get_watermark_offsets(place, timeout=20)
                consumer.assign([place])
                at = 0
                while at < end:
                    for message in consumer.consume(min(end - at, 10_000), timeout=5):
                        assert message.error() is None
                        at = message.offset() + 1
                        headers = {name: value.decode() for name, value in message.headers()}
                        key = message.key().decode()
                        found.append(Arrival(topic, key, headers, message.value()))
        return found
    finally:
        consumer.close()


def topics(address: str) -> set[str]:
    """Name the topics that a broker has."""
    return set(AdminClient({"bootstrap.servers": address}).list_topics(timeout=20).topics)


def from_stream(url: str, stream: str) -> list[Arrival]:
    """Read a JetStream stream from the beginning to what is now its end."""

    async def read() -> list[Arrival]:
        client = await nats.connect(url)
        try:
            js = client.jetstream()
            try:
                info = await js.stream_info(stream)
            except NotFoundError:
                return []
            found = []
            subscription = await js.subscribe(">", stream=stream, ordered_consumer=True)
            while len(found) < info.state.messages:
                message = await subscription.next_msg(timeout=20)
                headers = dict(message.headers or {})
                found.append(Arrival(message.subject, message.subject, headers, message.data))
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def assert_promises_kept(sent: Sequence[Record], arrived: Sequence[Arrival]) -> None:
    """Nothing lost, nothing made up, order kept per key; what came twice has the same id."""
    first: dict[str, Arrival] = {}
    for arrival in arrived:
        first.setdefault(arrival.headers["event-id"], arrival)
    expected: dict[tuple[str, str], list[str]] = {}
    for record in sent:
        key = (record.destination, record.key)
        expected.setdefault(key, []).append(record.event.event_id)
    actual: dict[tuple[str, str], list[str]] = {}
    for event_id, arrival in first.items():
        actual.setdefault((arrival.destination, arrival.key), []).append(event_id)
    assert actual == expected
    values = {record.event.event_id: record.value for record in sent}
    assert all(arrival.value == values[arrival.headers["event-id"]] for arrival in arrived)
