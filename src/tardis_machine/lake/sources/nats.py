"""A NATS JetStream stream as a stream of records: explicit sequences, so that batches repeat."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tardis_machine.lake.bronze import RECORD, schema_of
from tardis_machine.lake.errors import DataLossError, LakeError
from tardis_machine.lake.session import parallelism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.publish.buses.nats import NatsConfig

T = TypeVar("T")

_FORMAT: Final = "tardis-nats"
_FETCH: Final = 2_000
_TIMEOUT_S: Final = 30.0
_LEAST: Final = 5_000
"""A partition of fewer messages costs more to start than to read."""
_ARROW: Final = pa.schema(
    [
        ("bus", pa.string()),
        ("destination", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("value", pa.binary()),
    ]
)


class Reading(NamedTuple):
    """How one stream is read."""

    stream: str
    starting: str
    max_events: int
    partitions: int
    skip_lost: bool


def stream(
    spark: "SparkSession",
    config: "NatsConfig",
    *,
    starting: str,
    max_events: int,
    skip_lost: bool,
) -> "DataFrame":
    """Read the JetStream stream that takes what the publisher of this configuration sends."""
    if config.mode != "jetstream":
        raise LakeError("core NATS keeps nothing that could be read: publish to JetStream")
    name = config.stream or _run(config, lambda client: _stream_name(client, config.subjects()))
    reading = Reading(name, starting, max_events, parallelism(spark), skip_lost)
    spark.dataSource.register(data_source(config, reading))
    return spark.readStream.format(_FORMAT).load()


def data_source(config: "NatsConfig", reading: Reading) -> type[DataSource]:
    """Make a source that has its settings in itself: as options, plans would show the secrets."""

    class NatsDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return _FORMAT

        def schema(self) -> str:
            return schema_of(RECORD)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return NatsStreamReader(config, reading)

    return NatsDataSource


@dataclass
class Sequences(InputPartition):
    """Messages of these sequences, both included, less those deleted one by one."""

    first: int
    last: int


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads between sequences; an offset is the sequence that comes next."""

    def __init__(self, config: "NatsConfig", reading: Reading) -> None:
        self._config = config
        self._reading = reading
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        first, end = self._bounds()
        return {"next": end if self._reading.starting == "latest" else first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        _, self._target = self._bounds()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        first, end = self._bounds()
        if end < start["next"]:
            raise LakeError(
                f"NATS stream {self._reading.stream} ends before {end}, but {start['next']} comes "
                "next by the checkpoint: it was deleted and made anew. Use a new checkpoint"
            )
        self._check_loss(start["next"], first)
        if self._target is not None:
            end = max(min(end, self._target), start["next"])
        if isinstance(limit, ReadMaxRows):
            # Counted from what is left, so that a trimmed range is not read as empty batches.
            end = min(end, max(start["next"], first) + limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise LakeError(f"a NATS stream cannot be limited by {type(limit).__name__}")
        return {"next": end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Sequences]:
        first, _ = self._bounds()
        self._check_loss(start["next"], first, end["next"])
        begin, stop = max(start["next"], first), end["next"]
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
        client = await _connected(self._config)
        try:
            js = client.jetstream()
            expected = wanted.first
            messages = _messages(js, self._reading.stream, wanted.first)
            async for fetched in messages:
                kept = [each for each in fetched if _tokens(each)[0] <= wanted.last]
                for sequence, _, _ in map(_tokens, kept):
                    if sequence != expected:
                        await self._check_gap(js, expected, sequence)
                    expected = sequence + 1
                if kept:
                    yield _batch(self._reading.stream, kept)
                if len(kept) < len(fetched) or expected > wanted.last:
                    break
            await messages.aclose()
            await self._check_gap(js, expected, wanted.last + 1)
        finally:
            await client.close()

    def _bounds(self) -> tuple[int, int]:
        """Tell the first sequence there is, and the one that will come next."""
        return _run(self._config, self._ask_bounds)

    async def _ask_bounds(self, client: Any) -> tuple[int, int]:
        state = (await client.jetstream().stream_info(self._reading.stream)).state
        return max(state.first_seq, 1), state.last_seq + 1

    async def _check_gap(self, js: Any, expected: int, found: int) -> None:
        """Tell messages deleted one by one, which is a publisher's wish, from trimmed ones."""
        if expected >= found:
            return
        state = (await js.stream_info(self._reading.stream)).state
        self._check_loss(expected, min(state.first_seq, found))

    def _check_loss(self, expected: int, first: int, end: int | None = None) -> None:
        first = first if end is None else min(first, end)
        if first > expected and not self._reading.skip_lost:
            raise DataLossError(f"NATS stream {self._reading.stream}", expected, first - 1)


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
    places = [_tokens(message) for message in messages]
    headers = [
        [{"key": name, "value": value.encode()} for name, value in (each.headers or {}).items()]
        for each in messages
    ]
    columns = [
        pa.repeat("nats", len(messages)),
        pa.repeat(stream, len(messages)),
        pa.repeat(pa.scalar(0, pa.int32()), len(messages)),
        pa.array([sequence for sequence, _, _ in places], pa.int64()),
        pa.array([nanoseconds // 1000 for _, nanoseconds, _ in places], _ARROW[4].type),
        pa.array([message.subject.encode() for message in messages], pa.binary()),
        pa.array(headers, _ARROW[6].type),
        pa.array([message.data for message in messages], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)
