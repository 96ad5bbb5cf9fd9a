"""What a replay becomes on its way into Spark: Bronze events, rows of a Silver table, rejects.

Each is made straight from the replay's bytes, a few megabytes at a time, in the form of its table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128_hexdigest

from tardis_machine.bronze import Context, EncodedBatch, Encoder, Origin
from tardis_machine.history import History
from tardis_machine.lake import quarantine, silver
from tardis_machine.lake.decode.columns import TIME
from tardis_machine.lake.decode.envelopes import envelopes
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.events import EVENT
from tardis_machine.lake.records import RECORD
from tardis_machine.lake.sources.resumptions import Stretch, matching, resumptions
from tardis_machine.lake.spans import DAY_US
from tardis_machine.lake.tables import BREAKS, QUARANTINE
from tardis_machine.lake.units import DISCONNECT, case_of
from tardis_machine.messages import Message
from tardis_machine.messages.times import us_of
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.normalizer import Malformed
from tardis_machine.replays.requests import ReplayNormalizedOptions

BUS: Final = "tardis"
TROUBLE: Final = "trouble"
"""Beside a table's columns: what a row without a place in it is. Such rows are counted, and a
replay of their own brings them where they belong."""
REJECTED: Final = "rejected"

_ROWS: Final = 20_000
_BYTES: Final = 4 << 20
_ID_LENGTH: Final = 32
_LOCAL: Final = b'"localTimestamp":"'
_DISCONNECT_LINE: Final = b'{"type":"disconnect"'
_META: Final = pa.map_(pa.string(), pa.string())
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES: Final = {
    "STRING": pa.string(),
    "TIMESTAMP": TIME,
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
}


@dataclass(frozen=True)
class Part:
    """What one task replays: options from a day's beginning, of which times before are left out."""

    replay: ReplayNormalizedOptions
    kept_from: int
    index: int = 0
    request_id: str = ""
    ingest_us: int = 0

    @property
    def ends_day(self) -> bool:
        return self.replay.to % DAY_US == 0


class Reject(NamedTuple):
    """Something that has no row, and why."""

    stage: str
    reason: str
    value: bytes
    local_us: int | None
    event: Mapping[str, object] = {}


class Chunk(NamedTuple):
    """Some of a replay's events in order, as columns, and what has no envelope."""

    part: Part
    history: History
    events: pa.RecordBatch
    rejects: list[Reject]

    def of(self, case: str) -> pa.RecordBatch:
        """Give the events of one payload case."""
        return self.events.filter(pc.equal(self.events.column("payload_case"), case))


class Projection(Protocol):
    """Turns chunks of a replay into batches of its columns."""

    @property
    def columns(self) -> dict[str, str]: ...

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the types asked for that have to be normalized."""
        ...

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]: ...


def project(projection: Projection, part: Part, history: History) -> Iterator[pa.RecordBatch]:
    """Replay a part and project it."""
    for chunk in chunks(part, projection.types(part.replay.data_types), history):
        yield from projection.batches(chunk)


def chunks(part: Part, data_types: tuple[str, ...], history: History) -> Iterator[Chunk]:
    """Replay some of a part's types; every such replay fetches the same slices."""
    options = part.replay
    encoder = Encoder(
        Context(
            producer_id="lake",
            origin=Origin.REPLAY,
            ingest_us=part.ingest_us,
            request_id=part.request_id,
            transport="spark",
        )
    )
    lines: list[bytes] = []
    malformed: list[Malformed] = []
    position = first = size = 0

    def chunk() -> Chunk:
        encoded = encoder.encode_lines(b"".join(lines), first)
        made = Chunk(part, history, _kept(encoded, part), _rejects(encoded, malformed, part))
        lines.clear()
        malformed.clear()
        return made

    with NormalizedReplay[Message](
        [msgspec.structs.replace(options, data_types=data_types)],
        history=history,
        closes_bars=part.ends_day,
        fetched_types=options.data_types,
        on_malformed=malformed.append,
    ) as replay:
        for batch in replay.batches():
            if not lines:
                first, size = position, 0
            if batch.count and _reaches(batch.data, part):
                lines.append(batch.data)
                size += len(batch.data)
                position += batch.count
                if size < _BYTES and position - first < _ROWS:
                    continue
            elif batch.count:
                position += batch.count
            else:
                continue
            if lines or malformed:
                yield chunk()
    if lines or malformed:
        yield chunk()


def _reaches(data: bytes, part: Part) -> bool:
    """Whether a batch, which is in order of local time, has anything that is kept."""
    if part.kept_from <= part.replay.from_:
        return True
    local = _last_local(data)
    return local is None or local >= part.kept_from or _DISCONNECT_LINE in data


def _last_local(data: bytes) -> int | None:
    at = data.rfind(_LOCAL)
    if at < 0:
        return None
    start = at + len(_LOCAL)
    try:
        return us_of(data[start : data.index(b'"', start)].decode())
    except ValueError:
        return None


def _kept(encoded: EncodedBatch, part: Part) -> pa.RecordBatch:
    """Give a batch's events as columns, those before the part's time left out.

    A disconnect has the time of what came before it, which may be of another part: all that the
    replay sees are kept, so that none is lost between two parts.
    """
    events = _columns(encoded)
    if part.kept_from <= part.replay.from_:
        return events
    inside = pc.greater_equal(events.column("local_ts"), pa.scalar(part.kept_from, TIME))
    disconnects = pc.equal(events.column("payload_case"), DISCONNECT)
    return events.filter(pc.or_(inside, disconnects))


def _columns(encoded: EncodedBatch) -> pa.RecordBatch:
    """Take the encoder's buffers as they are for columns."""
    buffers = encoded.buffers
    count = len(encoded)

    def numbers(kind: pa.DataType, view: memoryview) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(view)])

    def texts(kind: pa.DataType, offsets: pa.Array, data: bytes) -> pa.Array:
        return pa.Array.from_buffers(kind, count, [None, offsets.buffers()[1], pa.py_buffer(data)])

    ends = numbers(pa.int32(), buffers.ends)
    series = numbers(pa.int32(), buffers.series)
    local = numbers(TIME, buffers.local_us)
    zero = pa.array([0], pa.int32())
    id_ends = pa.arange(0, _ID_LENGTH * (count + 1), _ID_LENGTH).cast(pa.int32())
    return pa.RecordBatch.from_pydict(
        {
            "event_id": texts(pa.string(), id_ends, buffers.ids),
            "day": local.cast(pa.date32(), safe=False),
            "local_ts": local,
            "position": numbers(pa.int64(), buffers.positions),
            "value": texts(pa.binary(), pa.concat_arrays([zero, ends]), buffers.data),
            **{
                name: pa.array([getattr(each, name) for each in buffers.table], pa.string()).take(
                    series
                )
                for name in ("symbol", "payload_case", "data_type")
            },
        }
    )


def _rejects(encoded: EncodedBatch, malformed: Sequence[Malformed], part: Part) -> list[Reject]:
    found = [
        Reject(
            quarantine.NORMALIZE,
            each.reason,
            each.line,
            us_of(each.local) if each.local else part.replay.from_,
        )
        for each in malformed
    ] + [
        Reject(quarantine.ENCODE, str(each.error), each.line, _last_local(each.line))
        for each in encoded.rejected
    ]
    return [each for each in found if each.local_us is None or each.local_us >= part.kept_from]


@dataclass(frozen=True)
class Events:
    """Rows of `bronze/events`, without disconnects, which have a replay of their own."""

    @property
    def columns(self) -> dict[str, str]:
        return {**EVENT, TROUBLE: "STRING"}

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return data_types

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        others = pc.not_equal(chunk.events.column("payload_case"), DISCONNECT)
        events = chunk.events.filter(others)
        columns = {name: column(name, chunk.part, events) for name in EVENT}
        yield _with_troubles(columns, _troubles(chunk))


@dataclass(frozen=True)
class Rows:
    """Rows of a Silver table."""

    case: str

    @property
    def columns(self) -> dict[str, str]:
        return {**silver.columns(self.case), TROUBLE: "STRING"}

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(each for each in data_types if case_of(each) == self.case)

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        events, troubles = chunk.of(self.case), _troubles(chunk)
        own, defects = silver.read(self.case, payloads(self.case, events))
        columns = {name: column(name, chunk.part, events) for name in silver.KEY} | own
        if defects:
            sound = pa.array([row for row in range(len(events)) if row not in defects], pa.int64())
            columns = {name: values.take(sound) for name, values in columns.items()}
            troubles += [REJECTED] * len(defects)
        yield _with_troubles(columns, troubles)


@dataclass(frozen=True)
class Disconnects:
    """Disconnects, as rows of `bronze/events` with all that rows of Silver need.

    With times, those that can have been then; but for `told`, which others told of the day: each
    has the times between which it can have been.
    """

    times: tuple[Stretch, ...] | None = None
    told: tuple[Stretch, ...] = ()

    @property
    def columns(self) -> dict[str, str]:
        return EVENT

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        events = chunk.of(DISCONNECT)
        if not len(events):
            return
        rows = range(len(events)) if self._is_all_of(chunk.part) else self._untold(chunk, events)
        columns = {name: column(name, chunk.part, events) for name in EVENT}
        yield pa.RecordBatch.from_pydict(columns).take(pa.array(rows, pa.int64()))

    def _is_all_of(self, part: Part) -> bool:
        """Whether nobody else tells any of the day's disconnects."""
        day = (part.replay.from_, part.replay.from_ + DAY_US)
        return self.times is None or (self.times == (day,) and not self.told)

    def _untold(self, chunk: Chunk, events: pa.RecordBatch) -> list[int]:
        seen = stretches(chunk, events)
        others = matching(seen, self.told)
        return [
            row
            for row, (first, last) in enumerate(seen)
            if row not in others
            and any(first < end and last >= start for start, end in self.times or ())
        ]


@dataclass(frozen=True)
class Breaks:
    """When connections broke, by the messages of the symbols that a task replays."""

    @property
    def columns(self) -> dict[str, str]:
        names = ("local_ts", "earliest_ts", "latest_ts", "symbols")
        return {name: BREAKS.columns[name] for name in names}

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        events = chunk.of(DISCONNECT)
        if len(events):
            symbols = pa.scalar(chunk.part.replay.symbols, pa.list_(pa.string()))
            earliest, latest = zip(*stretches(chunk, events), strict=True)
            yield pa.RecordBatch.from_pydict(
                {
                    "local_ts": events.column("local_ts"),
                    "earliest_ts": pa.array(earliest, TIME),
                    "latest_ts": pa.array(latest, TIME),
                    "symbols": pa.repeat(symbols, len(events)),
                }
            )


def stretches(chunk: Chunk, disconnects: pa.RecordBatch) -> list[Stretch]:
    """Tell when each disconnect can have been."""
    found = resumptions(chunk.part.replay, chunk.history)
    before = disconnects.column("local_ts").cast(pa.int64()).to_pylist()
    return [found.get(last, (last, last)) for last in before]


@dataclass(frozen=True)
class Rejects:
    """What no table takes, as rows of quarantine."""

    @property
    def columns(self) -> dict[str, str]:
        return QUARANTINE.columns

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return data_types

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        found = list(chunk.rejects)
        for case in pc.unique(chunk.events.column("payload_case")).to_pylist():
            events = chunk.of(case)
            _, defects = silver.read(case, payloads(case, events))
            for row, reason in defects.items():
                [event] = events.slice(row, 1).to_pylist()
                local = events.column("local_ts")[row].value
                found.append(Reject(quarantine.SILVER, reason, event["value"], local, event))
        if found:
            yield _reject_batch(chunk.part, found)


@dataclass(frozen=True)
class Records:
    """Records as a bus would have them; what has no envelope stays the line that it was."""

    @property
    def columns(self) -> dict[str, str]:
        return RECORD

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return data_types

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        columns = {
            name: pa.nulls(len(chunk.events), _HEADERS)
            if name == "headers"
            else column(name, chunk.part, chunk.events)
            for name in RECORD
        }
        yield pa.RecordBatch.from_pydict(columns)
        if chunk.rejects:
            rejects = _reject_batch(chunk.part, chunk.rejects)
            yield pa.RecordBatch.from_pydict(
                {
                    name: pa.nulls(len(rejects), _HEADERS)
                    if name == "headers"
                    else rejects.column(name)
                    for name in RECORD
                }
            )


@dataclass(frozen=True)
class Chosen:
    """Columns of several Silver tables side by side, for data frames; others' are null."""

    columns: dict[str, str]

    def types(self, data_types: tuple[str, ...]) -> tuple[str, ...]:
        return data_types

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        for case in pc.unique(chunk.events.column("payload_case")).to_pylist():
            events = chunk.of(case)
            own, defects = silver.read(case, payloads(case, events))
            for reason in (*(each.reason for each in chunk.rejects), *defects.values()):
                raise LakeError(f"{reason}. Read as=rejects has all that has no row")
            yield pa.RecordBatch.from_pydict(
                {name: _chosen(name, own, chunk.part, events) for name in self.columns}
            )


def _chosen(name: str, own: Mapping[str, pa.Array], part: Part, events: pa.RecordBatch) -> pa.Array:
    if name in own:
        return own[name]
    if name in _ARROW:
        return pa.nulls(len(events), _ARROW[name])
    return column(name, part, events)


_ARROW: Final = {
    column.name: column.arrow_type for table in silver.TABLES.values() for column in table.columns
}


def payloads(case: str, events: pa.RecordBatch) -> pa.Array:
    """Give the payloads of events of one case, still serialized."""
    return envelopes(events.column("value")).columns.column(case)


def column(name: str, part: Part, events: pa.RecordBatch) -> pa.Array:
    """Give a column that all events of history have."""
    if name in events.schema.names:
        return events.column(name)
    if name == "offset":
        return events.column("position")
    constant = _constant(name, part)
    # Arrow repeats no list or map zero times.
    return pa.repeat(constant, len(events)) if len(events) else pa.nulls(0, constant.type)


def _constant(name: str, part: Part) -> pa.Scalar:
    """Give what a column says of all events of a part."""
    meta = [("request_id", part.request_id), ("transport", "spark")]
    known: dict[str, pa.Scalar] = {
        "exchange": pa.scalar(part.replay.exchange),
        "ingest_ts": pa.scalar(part.ingest_us, TIME),
        "origin": pa.scalar("replay"),
        "source": pa.scalar("tardis-machine"),
        "producer_id": pa.scalar("lake"),
        "meta": pa.scalar([each for each in meta if each[1]], _META),
        "bus": pa.scalar(BUS),
        "destination": pa.scalar(part.replay.exchange),
        "partition": pa.scalar(part.index, pa.int32()),
        "timestamp": pa.scalar(part.ingest_us, TIME),
        "key": pa.scalar(None, pa.binary()),
    }
    return known[name]


def _troubles(chunk: Chunk) -> list[str]:
    disconnects = len(chunk.of(DISCONNECT))
    return [REJECTED] * len(chunk.rejects) + [DISCONNECT] * disconnects


def _with_troubles(columns: Mapping[str, pa.Array], troubles: Sequence[str]) -> pa.RecordBatch:
    [count] = {len(values) for values in columns.values()}
    every = {**columns, TROUBLE: pa.nulls(count, pa.string())}
    if troubles:
        rest = {name: pa.nulls(len(troubles), values.type) for name, values in every.items()}
        rest[TROUBLE] = pa.array(troubles, pa.string())
        every = {name: pa.concat_arrays([every[name], rest[name]]) for name in every}
    return pa.RecordBatch.from_pydict(every)


def _reject_batch(part: Part, rejects: Sequence[Reject]) -> pa.RecordBatch:
    seen: dict[str, int] = {}
    rows = []
    for reject in rejects:
        if reject.event:
            place = f"event:{reject.event['event_id']}"
        else:
            text = f"{part.replay.exchange}|{reject.stage}|{reject.local_us}|".encode()
            place = f"{BUS}:{xxh3_128_hexdigest(text + reject.value)}"
            # Equal lines of one microsecond are as many rejects, whoever reads them again.
            seen[place] = seen.get(place, 0) + 1
            place = f"{place}:{seen[place]}"
        rows.append(
            {
                **{name: reject.event.get(name) for name in QUARANTINE.columns},
                "id": place,
                "stage": reject.stage,
                "reason": reject.reason,
                "exchange": part.replay.exchange,
                "local_ts": reject.local_us,
                "unit": part.request_id or None,
                "bus": BUS,
                "destination": part.replay.exchange,
                "partition": part.index,
                "offset": reject.event.get("position"),
                "timestamp": part.ingest_us,
                "value": reject.value,
            }
        )
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in QUARANTINE.columns.items()])
    return pa.RecordBatch.from_pylist(rows, schema)
