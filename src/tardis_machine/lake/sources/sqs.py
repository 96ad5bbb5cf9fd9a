"""SQS queues as a stream of records.

A queue has no place to come back to: what is received is written to files beside the checkpoint
first, which batches are made of and made of again, and deleted from the queue when its batch is
done. A message that comes again meanwhile is known by its id.
"""

import base64
import binascii
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import fs, ipc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from xxhash import xxh3_64_intdigest

from tardis_machine.lake.aws import Service
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.sources.streams import ARROW, OFFSETS, Asked, Row, batch, load, most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.publish.buses.sqs import SQSConfig

_FORMAT: Final = "tardis-sqs"
_LANDING: Final = "landing"
_SUFFIX: Final = ".arrow"
_CALL: Final = 10
"""Messages that one call receives or deletes."""
_CALLS: Final = 8
"""Calls under way at once."""
_FILE: Final = 5_000
"""Messages in a file, which one task reads."""
_IN_FLIGHT: Final = 20_000
"""SQS hands out no more than this before some are deleted; a standard queue six times as many."""
_HIDDEN_S: Final = 900
_WAIT_S: Final = 1
_LONGEST_S: Final = 20.0
_KEPT_S: Final = 14 * 86_400
"""A queue keeps nothing longer than this."""
_OWN: Final = ("message_id", "receipt")


class Message(NamedTuple):
    """A message that was received."""

    message_id: str
    receipt: str
    row: Row


@dataclass
class Landed(InputPartition):
    """A file of messages."""

    number: int


def stream(spark: "SparkSession", config: "SQSConfig", asked: Asked) -> "DataFrame":
    """Read every queue that the publisher of this configuration writes to."""
    if asked.starting == "latest":
        raise LakeError("--starting latest: a queue gives what is in it, and has no later place")
    if not asked.checkpoint:
        raise LakeError("an SQS stream needs its checkpoint: messages are kept beside it")
    queues, service = config.routing().destinations, Service("sqs", config)
    landing = f"{asked.checkpoint.rstrip('/')}/{_LANDING}"
    return load(spark, _FORMAT, lambda: SqsStreamReader(service, queues, landing, asked.max_events))


class SqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads files that messages were written to; an offset is the number of the next file."""

    def __init__(
        self, service: Service["SQSConfig"], queues: Sequence[str], landing: str, max_events: int
    ) -> None:
        self._service = service
        self._queues = tuple(queues)
        self._landing = landing
        self._max_events = max_events
        self._left: dict[str, int] | None = None
        self._gone: set[str] = set()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        client = self._service.client
        self._left = {queue: _waiting(client, queue) for queue in self._queues}

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        follows = start["next"]
        files = Files(self._landing)
        # Whatever comes before is in the tables: Spark asks for more only then.
        self._delete(files, follows)
        landed = [number for number in files.numbers() if number >= follows]
        if landed:
            # Received by one who was stopped before saying so.
            return {"next": max(landed) + 1}
        done = {name for number in files.numbers() for name in files.ids(number)}
        room = min(most(limit, "SQS") or _IN_FLIGHT, _IN_FLIGHT)
        for queue in self._queues:
            found = self._receive(queue, room, done)
            for first in range(0, len(found), _FILE):
                files.write(follows, found[first : first + _FILE])
                follows += 1
            room = max(1, room - len(found))
        return {"next": follows}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Landed]:
        return [Landed(number) for number in range(start["next"], end["next"])]

    def read(self, partition: Landed) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        yield Files(self._landing).read(partition.number).select(ARROW.names)

    def commit(self, end: Mapping[str, int]) -> None:
        self._delete(Files(self._landing), end["next"])

    def _receive(self, queue: str, room: int, done: set[str]) -> list[Message]:
        """Receive until a queue has no more, there is no more room, or it takes too long."""
        client = self._service.client
        found: dict[str, Message] = {}
        if self._left is not None:
            room = min(room, self._left[queue])
        until = time.monotonic() + _LONGEST_S
        with ThreadPoolExecutor(_CALLS) as pool:
            while len(found) < room and (self._left is not None or time.monotonic() < until):
                left = min(room - len(found), _CALLS * _CALL)
                asked = [
                    pool.submit(_call, client, queue, min(_CALL, left - first))
                    for first in range(0, left, _CALL)
                ]
                received = [message for each in asked for message in each.result()]
                again = [each for each in received if each.message_id in done]
                # In the tables, and not deleted when it should have been.
                self._gone |= _deleted(client, queue, again)
                before = len(found)
                found |= {e.message_id: e for e in received if e.message_id not in done}
                if len(found) == before and not again:
                    break
        if self._left is not None:
            self._left[queue] = max(0, self._left[queue] - len(found)) if found else 0
        return list(found.values())

    def _delete(self, files: "Files", before: int) -> None:
        """Delete what is in the tables from its queue, then the file it was kept in."""
        for number in files.numbers():
            if number >= before:
                continue
            for queue, messages in files.receipts(number).items():
                left = [each for each in messages if each.message_id not in self._gone]
                self._gone |= _deleted(self._service.client, queue, left)
            if files.ids(number) <= self._gone or files.age_s(number) > _KEPT_S:
                self._gone -= files.ids(number)
                files.remove(number)


class Files:
    """The files that messages are kept in, wherever the checkpoint is."""

    def __init__(self, folder: str) -> None:
        self._fs, self._folder = _located(folder)
        self._fs.create_dir(self._folder, recursive=True)

    def numbers(self) -> list[int]:
        """Give the files there are, oldest first."""
        found = self._fs.get_file_info(fs.FileSelector(self._folder))
        names = [each.base_name for each in found if each.base_name.endswith(_SUFFIX)]
        return sorted(int(name.removesuffix(_SUFFIX)) for name in names)

    def write(self, number: int, messages: Sequence[Message]) -> None:
        """Write a file whole, or not at all."""
        rows = batch("sqs", [each.row for each in messages])
        own = {
            "message_id": pa.array([each.message_id for each in messages]),
            "receipt": pa.array([each.receipt for each in messages]),
        }
        whole = pa.RecordBatch.from_pydict(
            {**{name: rows.column(name) for name in ARROW.names}, **own}
        )
        part = f"{self._path(number)}.part"
        with self._fs.open_output_stream(part) as sink, ipc.new_file(sink, whole.schema) as writer:
            writer.write_batch(whole)
        self._fs.move(part, self._path(number))

    def read(self, number: int) -> pa.RecordBatch:
        with self._fs.open_input_file(self._path(number)) as source:
            rows: pa.RecordBatch = ipc.open_file(source).get_batch(0)
            return rows

    def ids(self, number: int) -> set[str]:
        return set(self.read(number).column("message_id").to_pylist())

    def receipts(self, number: int) -> dict[str, list["Receipt"]]:
        """Give what deletes the messages of a file, by queue."""
        rows = self.read(number).select(["destination", *_OWN]).to_pylist()
        found: dict[str, list[Receipt]] = {}
        for row in rows:
            found.setdefault(row["destination"], []).append(
                Receipt(row["message_id"], row["receipt"])
            )
        return found

    def age_s(self, number: int) -> float:
        info = self._fs.get_file_info(self._path(number))
        return time.time() - info.mtime_ns / 1e9 if info.mtime_ns else 0.0

    def remove(self, number: int) -> None:
        self._fs.delete_file(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}{_SUFFIX}"


class Receipt(NamedTuple):
    """What deletes a message."""

    message_id: str
    receipt: str


def _located(folder: str) -> tuple[Any, str]:
    """Find the file system of a path as Spark writes it."""
    scheme, colon, rest = folder.partition(":")
    if not colon:
        return fs.LocalFileSystem(), str(Path(folder).absolute())
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + rest.lstrip("/")
    try:
        found, path = fs.FileSystem.from_uri(f"{'s3' if scheme == 's3a' else scheme}:{rest}")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LakeError(
            f"{folder}: an SQS stream keeps messages beside its checkpoint, and Arrow has no file "
            f"system for {scheme} ({error}). Choose another place with --checkpoint"
        ) from error
    return found, path


def _waiting(client: Any, queue: str) -> int:
    name = "ApproximateNumberOfMessages"
    answer = client.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])
    return int(answer["Attributes"][name])


def _call(client: Any, queue: str, count: int) -> list[Message]:
    answer = client.receive_message(
        QueueUrl=queue,
        MaxNumberOfMessages=count,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=["SentTimestamp", "MessageGroupId"],
        VisibilityTimeout=_HIDDEN_S,
        WaitTimeSeconds=_WAIT_S,
    )
    return [_message(queue, each) for each in answer.get("Messages", ())]


def _message(queue: str, found: Mapping[str, Any]) -> Message:
    body = found["Body"].encode()
    try:
        value = base64.b64decode(body, validate=True)
    except binascii.Error:
        value = body  # of somebody else: quarantine shows it as it was
    attributes = found.get("Attributes", {})
    sent_ms = attributes.get("SentTimestamp")
    group = attributes.get("MessageGroupId")
    name = found["MessageId"]
    headers = [
        (key, each["StringValue"].encode() if "StringValue" in each else each["BinaryValue"])
        for key, each in found.get("MessageAttributes", {}).items()
    ]
    headers.append(("message-id", name.encode()))
    row = Row(
        queue,
        0,
        xxh3_64_intdigest(name.encode()) % OFFSETS,
        None if sent_ms is None else int(sent_ms) * 1000,
        None if group is None else group.encode(),
        headers,
        value,
    )
    return Message(name, found["ReceiptHandle"], row)


def _deleted(client: Any, queue: str, messages: Sequence[Message | Receipt]) -> set[str]:
    """Delete messages; give the ids of those that are gone."""
    gone: set[str] = set()
    for first in range(0, len(messages), _CALL):
        chunk = messages[first : first + _CALL]
        entries = [
            {"Id": str(number), "ReceiptHandle": each.receipt} for number, each in enumerate(chunk)
        ]
        answer = client.delete_message_batch(QueueUrl=queue, Entries=entries)
        gone |= {chunk[int(each["Id"])].message_id for each in answer.get("Successful", ())}
    return gone
