"""Kinesis as a stream of records: between explicit sequence numbers, so that batches repeat.

Kinesis does not tell where a shard ends: the driver reads ahead to find out, as far as a batch may
go, and the executors read what is between, a shard each. When a shard is closed its children
follow, so that order per key holds.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tardis_machine.lake.aws import Service
from tardis_machine.lake.errors import DataLossError, LakeError, OtherStreamsError
from tardis_machine.lake.sources.streams import OFFSETS, Asked, Row, batch, load, most, shares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.publish.buses.kinesis import KinesisConfig

_FORMAT: Final = "tardis-kinesis"
_PAGE: Final = 10_000
"""What one call gives at most."""
_THREADS: Final = 16
_PAUSE_S: Final = 0.2
"""A shard takes five calls a second."""
_QUIET_S: Final = 3_600
"""How often it is written down that a shard without records was read to its end."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a shard was read: behind a sequence number, or from a time on."""

    after: str = ""
    at: float = 0
    seen: float = 0
    """All that arrived before this time was read: if Kinesis still keeps that, nothing is lost."""
    closed: bool = False


class Stream(msgspec.Struct, frozen=True):
    """How far a stream was read; shards that are done are not in it, their children are."""

    created: str
    shards: dict[str, Place]


Streams = dict[str, Stream]


class Facts(NamedTuple):
    """A stream as it is now."""

    created: str
    retention_s: float
    parents: dict[str, tuple[str, ...]]
    """Of each shard that is there."""


@dataclass
class Stretch(InputPartition):
    """Records of one shard, from behind one place to another."""

    stream: str
    shard: str
    start: Place
    until: str
    may_be_trimmed: bool


def stream(spark: "SparkSession", config: "KinesisConfig", asked: Asked) -> "DataFrame":
    """Read every stream that the publisher of this configuration writes to."""
    streams, service = config.routing().destinations, Service("kinesis", config)
    return load(spark, _FORMAT, lambda: KinesisStreamReader(service, streams, asked))


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads between sequence numbers."""

    def __init__(
        self, service: Service["KinesisConfig"], streams: Sequence[str], asked: Asked
    ) -> None:
        self._service = service
        self._streams = tuple(streams)
        self._asked = asked
        self._until_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        now = time.time()
        at = now if self._asked.starting == "latest" else 0
        found: Streams = {}
        for name in self._streams:
            facts = self._facts(name)
            first = [
                shard
                for shard, parents in facts.parents.items()
                if not any(parent in facts.parents for parent in parents)
            ]
            found[name] = Stream(facts.created, {s: Place(at=at, seen=now) for s in first})
        return _offset(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._asked.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until_s = time.time()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = _streams(start)
        others = sorted(known.keys() - set(self._streams))
        if others and not self._asked.skip_lost:
            raise OtherStreamsError("Kinesis", ", ".join(others), ", ".join(self._streams))
        found: Streams = {}
        open_shards: list[tuple[str, str]] = []
        facts: dict[str, Facts] = {}
        for name in self._streams:
            facts[name] = self._facts(name)
            own = self._checked(name, known, facts[name])
            found[name] = self._with_children(name, own, facts[name])
            open_shards += [
                (name, shard) for shard, place in found[name].shards.items() if not place.closed
            ]
        keys = {f"{name}/{shard}": (name, shard) for name, shard in open_shards}
        allowed = shares(most(limit, "Kinesis"), keys)

        def ahead(key: str) -> Place:
            name, shard = keys[key]
            return self._ahead(name, shard, found[name].shards[shard], allowed[key], facts[name])

        with ThreadPoolExecutor(_THREADS) as pool:
            for key, place in zip(keys, pool.map(ahead, keys), strict=True):
                name, shard = keys[key]
                found[name].shards[shard] = place
        ended = _offset(found)
        if self._until_s is not None and _same(found, known):
            return dict(start)
        return ended

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Stretch]:
        known, wanted = _streams(start), _streams(end)
        found = []
        for name, own in wanted.items():
            retention_s = self._facts(name).retention_s
            for shard, place in own.shards.items():
                begun = known[name].shards.get(shard) if name in known else None
                # A child begins where its parent has ended.
                begun = begun or Place(seen=place.seen)
                if place.after and place.after != begun.after:
                    trimmed = begun.seen < time.time() - retention_s
                    found.append(Stretch(name, shard, begun, place.after, trimmed))
        return found

    def read(self, partition: Stretch) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        last = int(partition.until)
        reached = 0
        for records, _ in self._pages(
            partition.stream, partition.shard, partition.start, partition.may_be_trimmed
        ):
            kept = [each for each in records if int(each["SequenceNumber"]) <= last]
            if kept:
                reached = int(kept[-1]["SequenceNumber"])
                rows = [_row(partition.stream, partition.shard, each) for each in kept]
                yield batch("kinesis", rows)
            if reached >= last or len(kept) < len(records):
                break
        if reached < last:
            self._lost(partition.stream, partition.shard, str(reached or partition.start.after))

    def _ahead(self, name: str, shard: str, place: Place, count: int | None, facts: Facts) -> Place:
        """Find the record that ends a batch of so many."""
        trimmed = place.seen < time.time() - facts.retention_s
        taken = 0
        for records, state in self._pages(name, shard, place, trimmed, count):
            for record in records:
                arrived = record["ApproximateArrivalTimestamp"].timestamp()
                if taken == count or (self._until_s is not None and arrived > self._until_s):
                    return place
                seen = max(place.seen, arrived)
                place = Place(after=record["SequenceNumber"], seen=seen)
                taken += 1
            if state.closed:
                return msgspec.structs.replace(place, closed=True)
            if state.at_end:
                quiet = time.time() // _QUIET_S * _QUIET_S
                return msgspec.structs.replace(place, seen=max(place.seen, quiet))
            if taken == count:
                return place
        return place

    def _pages(
        self, name: str, shard: str, place: Place, may_be_trimmed: bool, count: int | None = None
    ) -> Iterator[tuple[list[dict[str, Any]], "_State"]]:
        """Give what follows a place, call by call, to the shard's end or its latest record."""
        client = self._service.client
        asked: dict[str, Any] = {"StreamName": name, "ShardId": shard}
        if place.after:
            # With the last record that was read, which tells whether any behind it is gone.
            asked |= {
                "ShardIteratorType": "AT_SEQUENCE_NUMBER",
                "StartingSequenceNumber": place.after,
            }
        elif place.at:
            asked |= {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": place.at}
        else:
            asked["ShardIteratorType"] = "TRIM_HORIZON"
        iterator = client.get_shard_iterator(**asked)["ShardIterator"]
        first = bool(place.after)
        while iterator is not None:
            page = min(_PAGE, (count or _PAGE) + 1)
            answer = client.get_records(ShardIterator=iterator, Limit=page)
            records = answer["Records"]
            if first and records:
                if records[0]["SequenceNumber"] == place.after:
                    del records[0]
                elif may_be_trimmed:
                    self._lost(name, shard, place.after)
                first = False
            iterator = answer.get("NextShardIterator")
            at_end = not answer.get("MillisBehindLatest")
            yield records, _State(closed=iterator is None, at_end=at_end)
            if at_end:
                return
            time.sleep(_PAUSE_S)

    def _with_children(self, name: str, own: Stream, facts: Facts) -> Stream:
        """Let the children of shards that are done follow, and forget those shards."""
        shards = dict(own.shards)
        for shard, place in own.shards.items():
            if shard not in facts.parents and not place.closed:
                # No longer kept: closed, and all of it older than is kept.
                if place.seen < time.time() - facts.retention_s:
                    self._lost(name, shard, place.after)
                shards[shard] = msgspec.structs.replace(place, closed=True)
        done = {shard: place for shard, place in shards.items() if place.closed}
        for child, parents in facts.parents.items():
            waiting = [parent for parent in parents if parent in shards and parent not in done]
            ended = [done[parent] for parent in parents if parent in done]
            if ended and not waiting and child not in shards:
                shards[child] = Place(seen=min(place.seen for place in ended))
        for shard in done:
            del shards[shard]
        return Stream(own.created, shards)

    def _checked(self, name: str, known: Streams, facts: Facts) -> Stream:
        own = known.get(name)
        if own is None:
            return Stream(facts.created, {s: Place(seen=time.time()) for s in facts.parents})
        if own.created != facts.created:
            raise LakeError(
                f"the checkpoint has its place in a Kinesis stream {name} of {own.created}, but "
                f"this one was made at {facts.created}: its sequences are others. Use a new "
                "--checkpoint"
            )
        return own

    def _facts(self, name: str) -> Facts:
        client = self._service.client
        summary = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        shards: list[dict[str, Any]] = []
        asked: dict[str, Any] = {"StreamName": name}
        while True:
            answer = client.list_shards(**asked)
            shards += answer["Shards"]
            if not answer.get("NextToken"):
                break
            asked = {"NextToken": answer["NextToken"]}
        parents = {
            each["ShardId"]: tuple(
                each[field]
                for field in ("ParentShardId", "AdjacentParentShardId")
                if each.get(field)
            )
            for each in shards
        }
        return Facts(
            str(summary["StreamCreationTimestamp"].timestamp()),
            3600 * summary["RetentionPeriodHours"],
            parents,
        )

    def _lost(self, name: str, shard: str, after: str) -> None:
        if not self._asked.skip_lost:
            what = f"Kinesis stream {name}, {shard}"
            raise DataLossError(what, f"records after {after or 'its beginning'}", "some later one")


class _State(NamedTuple):
    closed: bool
    at_end: bool


def _same(found: Streams, known: Streams) -> bool:
    """Tell whether nothing was found but that there is nothing."""
    return {
        (name, shard, place.after, place.closed)
        for name, own in found.items()
        for shard, place in own.shards.items()
    } == {
        (name, shard, place.after, place.closed)
        for name, own in known.items()
        for shard, place in own.shards.items()
    }


def _row(name: str, shard: str, record: Mapping[str, Any]) -> Row:
    sequence = record["SequenceNumber"]
    arrived = record["ApproximateArrivalTimestamp"].timestamp()
    return Row(
        name,
        int(shard.rpartition("-")[2]),
        int(sequence) % OFFSETS,
        round(arrived * 1_000_000),
        record["PartitionKey"].encode(),
        [("sequence-number", sequence.encode())],
        record["Data"],
    )


def _streams(offset: Mapping[str, Any]) -> Streams:
    return msgspec.convert(offset["streams"], Streams)


def _offset(streams: Streams) -> dict[str, Any]:
    return {"streams": msgspec.to_builtins(streams)}
