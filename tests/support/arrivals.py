"""What has arrived at a bus, and whether that keeps the promises."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import nats
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from nats.js.errors import NotFoundError

from tardis_machine.bronze import NormalizedEvent
from tardis_machine.publish.record import Record

_PAGE = 10_000


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
                        offset, key, value = message.offset(), message.key(), message.value()
                        assert offset is not None
                        assert key is not None
                        assert value is not None
                        at = offset + 1
                        headers = {name: text.decode() for name, text in _headers(message)}
                        found.append(Arrival(topic, key.decode(), headers, value))
        return found
    finally:
        consumer.close()


def _headers(message: Message) -> list[tuple[str, bytes]]:
    headers: Any = message.headers()
    return list(headers)


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
            found: list[Arrival] = []
            subscription = await js.subscribe(">", stream=stream, ordered_consumer=True)
            while len(found) < info.state.messages:
                message = await subscription.next_msg(timeout=20)
                headers = dict(message.headers or {})
                found.append(Arrival(message.subject, message.subject, headers, message.data))
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def from_kinesis(client: Any, stream: str) -> list[Arrival]:
    """Read a stream's shards from the beginning to what is now their end."""
    found = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            answer = client.get_records(ShardIterator=iterator, Limit=10_000)
            for record in answer["Records"]:
                event = NormalizedEvent.FromString(record["Data"])
                case = _camel(event.WhichOneof("payload"))
                headers = {"event-id": event.event_id, "payload-case": case}
                found.append(Arrival(stream, record["PartitionKey"], headers, record["Data"]))
            iterator = answer.get("NextShardIterator")
            if not answer["Records"] or iterator is None:
                break
    return found


def _camel(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


def from_sqs(client: Any, queue: str) -> list[Arrival]:
    """Take everything out of a queue; a message without group has the key it would have had."""
    found: list[Arrival] = []
    while True:
        messages = client.receive_message(
            QueueUrl=queue,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
            VisibilityTimeout=600,
        ).get("Messages", [])
        if not messages:
            return found
        for message in messages:
            value = base64.b64decode(message["Body"], validate=True)
            headers = {n: a["StringValue"] for n, a in message["MessageAttributes"].items()}
            key = message["Attributes"].get("MessageGroupId")
            if key is None:
                event = NormalizedEvent.FromString(value)
                key = f"{event.exchange}|{event.symbol}|{headers['payload-case']}"
            found.append(Arrival(queue, key, headers, value))
        handles = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(messages)
        ]
        client.delete_message_batch(QueueUrl=queue, Entries=handles)


def from_redis(client: Any, stream: str) -> list[Arrival]:
    """Read a stream from the beginning to what is now its end."""
    found = []
    page = client.xrange(stream, count=_PAGE)
    while page:
        for _, fields in page:
            value = fields.pop(b"value")
            headers = {name.decode(): text.decode() for name, text in fields.items()}
            found.append(Arrival(stream, stream, headers, value))
        page = client.xrange(stream, min=b"(" + page[-1][0], count=_PAGE)
    client.close()
    return found


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
