"""A NATS JetStream stream as a stream of records: explicit sequences, so that batches repeat."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tardis_machine.lake.errors import DataLossError, LakeError
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sources.streams import Asked, Row, batch, load, most

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.publish.buses.nats import NatsConfig

T = TypeVar("T")

_FORMAT: Final = "tardis-nats"
_FETCH: Final = 2_000
_TIMEOUT_S: Final = 30.0
_LEAST: Final = 5_000
"""A partition of fewer messages costs more to start than to read."""
Offset = dict[str, int | str]
"""The sequence that comes next, and of which stream: its name and when it was made."""


class Bounds(NamedTuple):
    """A stream as it is now: when it was made, its first sequence, the one that will come next."""

    created: str
    first: int
    end: int


class Reading(NamedTuple):
    """How one stream is read."""

    stream: str
    starting: str
    max_events: int
    partitions: int
    skip_lost: bool


def stream(spark: "SparkSession", config: "NatsConfig", asked: Asked) -> "DataFrame":
    """Read the JetStream stream that takes what the publisher of this configuration sends."""
    if config.mode != "jetstream":
        raise LakeError("core NATS keeps nothing that could be read: publish to JetStream")
    name = config.stream or _run(config, lambda client: _stream_name(client, config.subjects()))
    reading = Reading(name, asked.starting, asked.max_events, parallelism(spark), asked.skip_lost)
    shipped = Shipped(config)
    return load(spark, _FORMAT, lambda: NatsStreamReader(shipped, reading))


@dataclass
class Sequences(InputPartition):
    """Messages of these sequences, both included, less those deleted one by one."""

    first: int
    last: int


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads between sequences; an offset is the sequence that comes next, and whose it is."""

    def __init__(self, settings: Shipped["NatsConfig"], reading: Reading) -> None:
        self._settings = settings
        self._reading = reading
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        bounds = self._bounds()
        latest = self._reading.starting == "latest"
        return self._offset(bounds, bounds.end if latest else bounds.first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._bounds().end

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        bounds = self._checked(start)
        follows = int(start["next"])
        end = bounds.end
        self._check_loss(follows, bounds.first)
        if self._target is not None:
            end = max(min(end, self._target), follows)
        count = most(limit, "NATS")
        if count is not None:
            # Counted from what is left, so that a trimmed range is not read as empty batches.
            end = min(end, max(follows, bounds.first) + count)
        return self._offset(bounds, end)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Sequences]:
        bounds = self._checked(end)
        follows, stop = int(start["next"]), int(end["next"])
        self._check_loss(follows, bounds.first, stop)
        begin = max(follows, bounds.first)
        if begin >= stop:
            return []
        count = max(1, min(self._reading.partitions, (stop - begin) // _LEAST))
        borders = [begin + (stop - begin) * part // count for part in range(count + 1)]
        return [Sequences(low, high - 1) for low, high in pairwise(borders)]

    def read(self, partition: Sequences) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        loop = asyncio.new_event_loop()
        try:
            batches = self._batches(partition)
            while (batch := loop.run_until_complete(anext(batches, None))) is not None:
                yield batch
            loop.run_until_complete(batches.aclose())
        finally:
            loop.close()

    async def _batches(self, wanted: Sequences) -> Any:
        client = await _connected(self._settings.unpacked())
        try:
            js = client.jetstream()
            expected = wanted.first
            messages = _messages(js, self._reading.stream, wanted.first)
            async for fetched in messages:
                kept = [each for each in fetched if _tokens(each)[0] <= wanted.last]
                for sequence, _, _ in map(_tokens, kept):
                    if sequence != expected:
                        await self._check_gap(client, expected, sequence)
                    expected = sequence + 1
                if kept:
                    yield _batch(self._reading.stream, kept)
                if len(kept) < len(fetched) or expected > wanted.last:
                    break
            await messages.aclose()
            await self._check_gap(client, expected, wanted.last + 1)
        finally:
            await client.close()

    def _offset(self, bounds: Bounds, sequence: int) -> Offset:
        return {"next": sequence, "stream": self._reading.stream, "created": bounds.created}

    def _checked(self, offset: Offset) -> Bounds:
        """Ask for the stream's bounds, and refuse sequences of another one."""
        bounds = self._bounds()
        known = (offset.get("stream"), offset.get("created"))
        if known != (self._reading.stream, bounds.created):
            was = f"{known[0]} of {known[1]}" if known[0] else "a stream that it does not name"
            raise LakeError(
                f"the checkpoint has its place in {was}, but NATS stream {self._reading.stream} "
                f"was made at {bounds.created}: its sequences are others. Use a new --checkpoint, "
                "which reads this stream from --starting on"
            )
        return bounds

    def _bounds(self) -> Bounds:
        return _run(self._settings.unpacked(), self._ask_bounds)

    async def _ask_bounds(self, client: Any) -> Bounds:
        info = await client.jetstream().stream_info(self._reading.stream)
        state = info.state
        return Bounds(info.created.isoformat(), max(state.first_seq, 1), state.last_seq + 1)

    async def _check_gap(self, client: Any, expected: int, found: int) -> None:
        """Tell messages that someone deleted from those the stream lost, or let go of.

        A stream that keeps so many messages of each subject drops others in its middle, too.
        """
        if expected >= found or self._reading.skip_lost:
            return
        info = await _details(client, self._reading.stream)
        state = info["state"]
        self._check_loss(expected, min(state["first_seq"], found))
        missing = range(max(expected, state["first_seq"]), found)
        deleted = set(state.get("deleted") or ())
        per_subject = info["config"].get("max_msgs_per_subject", -1) > 0
        lost = [each for each in missing if per_subject or each not in deleted]
        if lost:
            raise DataLossError(f"NATS stream {self._reading.stream}", lost[0], lost[-1])

    def _check_loss(self, expected: int, first: int, end: int | None = None) -> None:
        first = first if end is None else min(first, end)
        if first > expected and not self._reading.skip_lost:
            raise DataLossError(f"NATS stream {self._reading.stream}", expected, first - 1)


async def _details(client: Any, stream: str) -> dict[str, Any]:
    """Ask for a stream with the sequences deleted from it, which the client does not ask for."""
    subject = f"$JS.API.STREAM.INFO.{stream}"
    asked = json.dumps({"deleted_details": True}).encode()
    answer = await client.request(subject, asked, timeout=_TIMEOUT_S)
    details: dict[str, Any] = json.loads(answer.data)
    return details


def _run(config: "NatsConfig", ask: Callable[[Any], Awaitable[T]]) -> T:
    async def asked() -> T:
        client = await _connected(config)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(asked())


async def _connected(config: "NatsConfig") -> Any:
    import nats  # noqa: PLC0415 - an optional dependency

    async def quiet(_: Exception) -> None:
        """Leave errors to whoever waits for an answer."""

    return await nats.connect(
        list(config.servers),
        name="tardis-machine-lake",
        connect_timeout=_TIMEOUT_S,
        max_reconnect_attempts=3,
        error_cb=quiet,
        **config.login(),
    )


async def _stream_name(client: Any, subjects: Sequence[str]) -> str:
    names = {await client.jetstream().find_stream_name_by_subject(subject) for subject in subjects}
    if len(names) != 1:
        raise LakeError(
            f"the subjects {', '.join(subjects)} are taken by several streams "
            f"({', '.join(sorted(names))}): choose one with --nats-stream"
        )
    [name] = names
    return str(name)


async def _messages(js: Any, stream: str, first: int) -> Any:
    """Give what there is from a sequence on, in order, until there is no more."""
    from nats.js import api  # noqa: PLC0415 - an optional dependency

    consumer = api.ConsumerConfig(
        deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=first,
        ack_policy=api.AckPolicy.NONE,
        mem_storage=True,
        inactive_threshold=_TIMEOUT_S,
    )
    subscription = await js.pull_subscribe("", stream=stream, config=consumer)
    try:
        pending = (await subscription.consumer_info()).num_pending or 0
        while pending:
            fetched = await subscription.fetch(min(pending, _FETCH), timeout=_TIMEOUT_S)
            yield fetched
            pending = _tokens(fetched[-1])[-1]
    finally:
        await subscription.unsubscribe()


def _tokens(message: Any) -> tuple[int, int, int]:
    """Read a message's sequence, time (ns) and how many come after it from its reply subject."""
    tokens = message.reply.split(".")
    # $JS.ACK.stream.consumer.delivered.sequence.consumer sequence.time.pending, or with domain and
    # account behind ACK, and something random at the end.
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 2]), int(tokens[at + 3])


def _batch(stream: str, messages: Sequence[Any]) -> pa.RecordBatch:
    rows = []
    for message in messages:
        sequence, nanoseconds, _ = _tokens(message)
        headers = [(name, text.encode()) for name, text in (message.headers or {}).items()]
        key = message.subject.encode()
        rows.append(Row(stream, 0, sequence, nanoseconds // 1000, key, headers, message.data))
    return batch("nats", rows)
