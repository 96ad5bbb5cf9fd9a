"""Kinesis, Redis Streams and SQS read by explicit places: again, in parts, trimmed, resharded."""

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tardis_machine import extras
from tardis_machine.cli import lake
from tardis_machine.errors import TardisMachineError
from tardis_machine.lake.aws import Service
from tardis_machine.lake.errors import DataLossError, LakeError
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sources import kinesis as kinesis_source
from tardis_machine.lake.sources import redis as redis_source
from tardis_machine.lake.sources import sqs as sqs_source
from tardis_machine.lake.sources.redis import Id
from tardis_machine.lake.sources.streams import Asked
from tardis_machine.publish.buses.kinesis import KinesisConfig
from tardis_machine.publish.buses.redis import RedisConfig
from tardis_machine.publish.buses.sqs import SQSConfig
from tests.support.servers.aws import KEYS, REGION, Ministack
from tests.support.servers.redis import RedisServer

TEN = ReadMaxRows(10)


def values(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Read what is between two offsets, as tasks would."""
    return [
        value
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


class Redis:
    """A stream of its own on the shared server."""

    def __init__(self, server: RedisServer, **settings: Any) -> None:
        self.client = server.client()
        self.name = f"lake-{uuid4()}"
        self.config = RedisConfig(url=server.url, stream=self.name, **settings)

    def add(self, wanted: Sequence[bytes], *, ms: int, stream: str | None = None) -> None:
        for number, value in enumerate(wanted):
            self.client.xadd(stream or self.name, {"value": value}, id=f"{ms + number}-0")

    def reader(self, pattern: str | None = None, **asked: Any) -> redis_source.RedisStreamReader:
        reading = redis_source.Reading((self.name,), pattern, Asked(**asked), 3)
        return redis_source.RedisStreamReader(Shipped(self.config), reading)


def test_redis_batches_repeat_and_are_bounded(redis: RedisServer) -> None:
    own = Redis(redis)
    own.add(numbers(0, 25), ms=1000)
    reader = own.reader()
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, TEN)
    assert first == {"streams": {own.name: "1009-0"}}
    second = reader.latestOffset(first, TEN)
    assert values(reader, begin, first) == numbers(0, 10)
    # By another process, in several tasks, whatever was added meanwhile.
    own.add(numbers(25, 30), ms=1025)
    again = own.reader()
    assert len(again.partitions(first, second)) == 3
    assert values(again, first, second) == numbers(10, 20)
    # What comes after the query began is left for the next one.
    reader.prepareForTriggerAvailableNow()
    own.add(numbers(30, 32), ms=1030)
    third = reader.latestOffset(reader.latestOffset(second, TEN), TEN)
    assert values(reader, second, third) == numbers(20, 30)
    assert reader.latestOffset(third, TEN) == third
    assert own.reader(starting="latest").initialOffset() == {"streams": {own.name: "1031-0"}}
    own.client.close()


def test_redis_tells_trimmed_streams_from_deleted_entries(redis: RedisServer) -> None:
    own = Redis(redis)
    own.add(numbers(0, 20), ms=1000)
    reader = own.reader()
    begin = {"streams": {own.name: "1004-0"}}
    end = {"streams": {own.name: "1014-0"}}
    own.client.xdel(own.name, "1007-0", "1014-0")
    assert values(reader, begin, end) == [b"5", b"6", *numbers(8, 14)]
    own.client.xtrim(own.name, minid="1006-0", approximate=False)
    with pytest.raises(DataLossError, match=r"entries after 1004-0 to 1006-0 were trimmed"):
        reader.latestOffset(begin, TEN)
    with pytest.raises(DataLossError):
        values(reader, begin, end)
    assert values(own.reader(skip_lost=True), begin, end) == [b"6", *numbers(8, 14)]
    # Nothing is lost to one who had read all of it.
    read = {"streams": {own.name: "1019-0"}}
    own.client.xtrim(own.name, maxlen=0, approximate=False)
    assert reader.latestOffset(read, TEN) == read
    own.client.delete(own.name)
    with pytest.raises(DataLossError):
        reader.latestOffset(read, TEN)
    own.add([b"new"], ms=10)
    with pytest.raises(LakeError, match=r"it was made anew. Use a new --checkpoint"):
        reader.latestOffset(read, TEN)
    own.client.close()


def test_the_checkpoint_of_another_redis_stream_is_refused_as_that(redis: RedisServer) -> None:
    own, other = Redis(redis), Redis(redis)
    for each in (own, other):
        each.add(numbers(0, 5), ms=1000)
    read = {"streams": {other.name: "1004-0"}}
    said = rf"its place in Redis stream {other.name}, .* read now: {own.name}\..* --checkpoint"
    with pytest.raises(LakeError, match=said):
        own.reader().latestOffset(read, TEN)
    # Both are told apart from one that is read, and was deleted.
    own.client.delete(own.name, other.name)
    with pytest.raises(LakeError, match=said):
        own.reader().latestOffset(read, TEN)
    with pytest.raises(DataLossError):
        own.reader().latestOffset({"streams": {own.name: "1004-0"}}, TEN)
    with pytest.raises(DataLossError):
        own.reader("lake-*").latestOffset(read, TEN)
    with pytest.raises(LakeError, match=rf"read now: {own.name}, md\.\*"):
        own.reader("md.*").latestOffset(read, TEN)
    # Whoever has left one out for good says so.
    assert own.reader(skip_lost=True).latestOffset(read, TEN) == read
    for each in (own, other):
        each.client.close()


@pytest.mark.parametrize(
    ("template", "name", "same"),
    [
        ("md.{{exchange}}.{{symbol}}", "md.bitmex.XBTUSD", True),
        ("md.{{exchange}}", "mdxbitmex", False),
        ("a*[b]?^\\{{symbol}}", "a*[b]?^\\X\nY", True),
        ("a*[b]?^\\{{symbol}}", "aXb?^\\X", False),
        ("{{symbol}}.", "a.b", False),
    ],
)
def test_a_name_is_matched_as_redis_does(
    redis: RedisServer, template: str, name: str, same: bool
) -> None:
    assert redis_source.matches(redis_source.pattern(template), name) == same
    with redis.client() as client:
        client.xadd(name, {"value": b"1"})
        found = set(client.scan_iter(match=redis_source.pattern(template), count=1000))
        client.delete(name)
    assert (name.encode() in found) == same


def test_a_redis_entry_with_any_fields_is_read(redis: RedisServer) -> None:
    own = Redis(redis)
    own.client.xadd(own.name, {b"\xff": b"\xff", b"value": b"a"})
    own.client.xadd(own.name, {b"\xff": b"alone"})
    reader = own.reader()
    begin = reader.initialOffset()
    assert values(reader, begin, reader.latestOffset(begin, TEN)) == [b"a", b""]
    own.client.close()


def test_redis_streams_of_a_template_are_found_as_they_come(redis: RedisServer) -> None:
    own = Redis(redis, key_template="x")
    pattern = redis_source.pattern(own.name + "[1].{{exchange}}.{{symbol}}")
    own.add([b"a"], ms=5, stream=f"{own.name}[1].bitmex.XBTUSD")
    own.add([b"no"], ms=5, stream=f"{own.name}1.bitmex.XBTUSD")
    reader = own.reader(pattern)
    begin = reader.initialOffset()
    own.add([b"b"], ms=5, stream=f"{own.name}[1].deribit.BTC")
    end = reader.latestOffset(begin, TEN)
    assert sorted(values(reader, begin, end)) == [b"a", b"b"]
    own.client.close()


def test_a_range_of_ids_is_cut_without_gaps() -> None:
    parts = redis_source.cut("s", Id(100, 7), Id(1100, 3), 4)
    assert [part.after for part in parts] == [Id(100, 7), Id(350), Id(600), Id(850)]
    assert [part.last for part in parts] == [Id(350), Id(600), Id(850), Id(1100, 3)]
    assert len(redis_source.cut("s", Id(100, 7), Id(100, 9), 4)) == 1
    assert len(redis_source.cut("s", Id(0), Id(1100, 3), 4)) == 1


class Kinesis:
    """A stream of its own, of one shard."""

    def __init__(self, ministack: Ministack) -> None:
        self.client = ministack.client("kinesis")
        self.name = f"lake-{uuid4()}"
        self.client.create_stream(StreamName=self.name, ShardCount=1)
        self.config = KinesisConfig(
            stream=self.name, region=REGION, endpoint_url=ministack.url, **KEYS
        )

    def put(self, wanted: Sequence[bytes]) -> None:
        entries = [{"Data": value, "PartitionKey": "key"} for value in wanted]
        self.client.put_records(StreamName=self.name, Records=entries)

    def reader(self, **asked: Any) -> kinesis_source.KinesisStreamReader:
        return kinesis_source.KinesisStreamReader(
            Service("kinesis", self.config), [self.name], Asked(**asked)
        )


def test_kinesis_batches_repeat_and_are_bounded(ministack: Ministack) -> None:
    own = Kinesis(ministack)
    own.put(numbers(0, 25))
    reader = own.reader()
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, TEN)
    second = reader.latestOffset(first, TEN)
    assert values(reader, begin, first) == numbers(0, 10)
    own.put(numbers(25, 30))
    assert values(own.reader(), first, second) == numbers(10, 20)
    reader.prepareForTriggerAvailableNow()
    third = reader.latestOffset(reader.latestOffset(second, TEN), TEN)
    assert values(reader, second, third) == numbers(20, 30)
    time.sleep(0.01)  # arrival is counted in milliseconds
    own.put([b"late"])
    assert reader.latestOffset(third, TEN) == third
    latest = own.reader(starting="latest")
    begin = latest.initialOffset()
    own.put([b"later"])
    assert values(latest, begin, latest.latestOffset(begin, TEN)) == [b"later"]


def test_kinesis_follows_shards_and_names_what_was_trimmed(ministack: Ministack) -> None:
    own = Kinesis(ministack)
    own.put(numbers(0, 5))
    reader = own.reader()
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, TEN)
    [shard] = end["streams"][own.name]["shards"]
    own.client.split_shard(StreamName=own.name, ShardToSplit=shard, NewStartingHashKey=str(2**127))
    own.put(numbers(5, 10))
    after = reader.latestOffset(end, TEN)
    shards = after["streams"][own.name]["shards"]
    assert shard not in shards
    assert len(shards) == 2
    assert values(reader, end, after) == numbers(5, 10)
    left, right = sorted(shards)
    own.client.merge_shards(StreamName=own.name, ShardToMerge=left, AdjacentShardToMerge=right)
    own.put(numbers(10, 15))
    merged = reader.latestOffset(after, TEN)
    assert len(merged["streams"][own.name]["shards"]) == 1
    assert values(reader, after, merged) == numbers(10, 15)

    # Nobody looked for longer than is kept, and the last record read is gone.
    [now] = merged["streams"][own.name]["shards"]
    old = {"streams": {own.name: {**merged["streams"][own.name]}}}
    old["streams"][own.name]["shards"] = {now: {"after": "0", "seen": time.time() - 90_000}}
    with pytest.raises(DataLossError, match=r"records after 0 .*were trimmed"):
        reader.latestOffset(old, TEN)
    skipping = own.reader(skip_lost=True)
    assert values(skipping, old, skipping.latestOffset(old, TEN)) == numbers(10, 15)
    # While the last record is there, so is all behind it.
    [place] = merged["streams"][own.name]["shards"].values()
    old["streams"][own.name]["shards"] = {now: {**place, "seen": 1.0}}
    own.put([b"more"])
    assert values(reader, old, reader.latestOffset(old, TEN)) == [b"more"]
    # A stream of the same name is another one.
    own.client.delete_stream(StreamName=own.name)
    time.sleep(1)  # it is told in whole seconds when a stream was made
    own.client.create_stream(StreamName=own.name, ShardCount=1)
    with pytest.raises(LakeError, match=r"its sequences are others. Use a new --checkpoint"):
        reader.latestOffset(merged, TEN)


def test_the_checkpoint_of_another_kinesis_stream_is_refused(ministack: Ministack) -> None:
    own, other = Kinesis(ministack), Kinesis(ministack)
    begin = other.reader().initialOffset()
    said = rf"its place in Kinesis stream {other.name}, .* read now: {own.name}\..* --checkpoint"
    with pytest.raises(LakeError, match=said):
        own.reader().latestOffset(begin, TEN)
    own.put([b"1"])
    skipping = own.reader(skip_lost=True)
    assert values(skipping, begin, skipping.latestOffset(begin, TEN)) == [b"1"]


class Queue:
    """A queue of its own."""

    def __init__(self, ministack: Ministack, folder: Path) -> None:
        self.client = ministack.client("sqs")
        self.url = self.client.create_queue(QueueName=f"lake-{uuid4()}")["QueueUrl"]
        self.landing = str(folder / "landing")
        self.config = SQSConfig(
            queue_url=self.url, region=REGION, endpoint_url=ministack.url, **KEYS
        )

    def send(self, wanted: Sequence[bytes]) -> None:
        for value in wanted:
            body = base64.b64encode(value).decode()
            self.client.send_message(QueueUrl=self.url, MessageBody=body)

    def reader(self) -> sqs_source.SqsStreamReader:
        return sqs_source.SqsStreamReader(Service("sqs", self.config), [self.url], self.landing, 10)

    def held(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)


def test_sqs_messages_are_deleted_once_they_are_in_the_tables(
    ministack: Ministack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqs_source, "_HIDDEN_S", 0)  # whatever is received comes again at once
    monkeypatch.setattr(sqs_source, "_FILE", 4)
    own = Queue(ministack, tmp_path)
    own.send(numbers(0, 10))
    reader = own.reader()
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, TEN)
    assert end == {"next": 3}  # of four messages each, and no more than ten
    assert sorted(values(reader, begin, end)) == sorted(numbers(0, 10))
    assert own.held() == 10
    # Killed before Spark wrote the offset down: the files are still what comes next.
    assert own.reader().latestOffset(begin, TEN) == end
    # Killed after the batch, before it was committed: it is read again, the same.
    again = own.reader()
    assert sorted(values(again, begin, end)) == sorted(numbers(0, 10))
    own.send([b"new"])
    after = again.latestOffset(end, TEN)
    assert values(again, end, after) == [b"new"]
    assert own.held() == 1
    again.commit(after)
    assert own.held() == 0
    assert not list((tmp_path / "landing").iterdir())
    again.prepareForTriggerAvailableNow()
    own.send([b"late"])
    assert again.latestOffset(after, TEN) == after


def test_sqs_has_no_latest_and_needs_a_checkpoint(ministack: Ministack, tmp_path: Path) -> None:
    config = Queue(ministack, tmp_path).config
    with pytest.raises(LakeError, match=r"--starting latest"):
        sqs_source.stream(None, config, Asked(starting="latest", checkpoint="x"))
    with pytest.raises(LakeError, match=r"needs its checkpoint"):
        sqs_source.stream(None, config, Asked())
    with pytest.raises(LakeError, match=r"no file system for gopher"):
        sqs_source.Files("gopher://somewhere/landing")


@pytest.mark.parametrize(
    ("bus", "said", "flags"),
    [
        ("nats", r"pip install 'tardis-machine\[nats\]'", ("--nats-subject", "s")),
        ("kinesis", r"pip install 'tardis-machine\[aws\]'", ("--kinesis-stream", "s")),
        ("redis", r"pip install 'tardis-machine\[redis\]'", ("--redis-stream", "s")),
        ("sqs", r"tardis-machine\[aws\]", ("--sqs-queue-url", "https://host/1/q")),
        # Spark has a client of its own.
        ("kafka", "Spark starts", ("--kafka-brokers", "localhost:1", "--kafka-topic", "t")),
    ],
)
def test_a_client_that_is_absent_is_named_before_spark_starts(
    bus: str, said: str, flags: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise LakeError("Spark starts")

    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    monkeypatch.setattr(lake, "open_tables", start)
    more = ("--nats-servers", "nats://localhost:1") if bus == "nats" else ()
    with pytest.raises(TardisMachineError, match=said):
        lake.main(["stream", "--from-bus", bus, "--to-tables", "tables", *flags, *more])
