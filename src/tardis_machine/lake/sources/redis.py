"""Redis Streams as a stream of records: between explicit entry ids, so that batches repeat."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tardis_machine.extras import require
from tardis_machine.lake.errors import DataLossError, LakeError, OtherStreamsError
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sources.streams import OFFSETS, Asked, Row, batch, load, most, shares

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.publish.buses.redis import RedisConfig

_FORMAT: Final = "tardis-redis"
_PAGE: Final = 5_000
_TIMEOUT_S: Final = 30.0
_SEQUENCE_BITS: Final = 20
_VALUE: Final = b"value"
_PLACEHOLDER: Final = re.compile(r"\{\{.*?\}\}")
_SPECIAL: Final = re.compile(r"([*?\[\]\\^])")
_GLOB: Final = re.compile(r"\\.|.", re.DOTALL)


class Id(NamedTuple):
    """An entry's id: milliseconds, and a number within them."""

    ms: int
    number: int = 0

    @classmethod
    def parse(cls, text: bytes | str) -> "Id":
        ms, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(ms), int(number or 0))

    def __str__(self) -> str:
        """Write it as Redis does."""
        return f"{self.ms}-{self.number}"

    @property
    def offset(self) -> int:
        """Give it as one number, in the same order but for a million entries in a millisecond."""
        return ((self.ms << _SEQUENCE_BITS) + self.number) % OFFSETS


START: Final = Id(0)


class Reading(NamedTuple):
    """How streams are read."""

    streams: tuple[str, ...]
    pattern: str | None
    asked: Asked
    partitions: int


@dataclass
class Entries(InputPartition):
    """Entries of one stream, the first excluded, the last included."""

    stream: str
    after: Id
    last: Id


Offset = Mapping[str, Mapping[str, str]]
"""The last id that was read of each stream, under `streams`."""


def stream(spark: "SparkSession", config: "RedisConfig", asked: Asked) -> "DataFrame":
    """Read every stream that the publisher of this configuration writes to."""
    routing = config.routing()
    template = routing.destination
    reading = Reading(
        routing.destinations,
        None if template is None else pattern(template.text),
        asked,
        parallelism(spark),
    )
    shipped = Shipped(config)
    return load(spark, _FORMAT, lambda: RedisStreamReader(shipped, reading))


def pattern(template: str) -> str:
    """Write a template of streams' names as Redis matches names."""
    literals = _PLACEHOLDER.split(template)
    return "*".join(_SPECIAL.sub(r"\\\1", literal) for literal in literals)


def matches(glob: str, name: str) -> bool:
    """Tell whether a pattern as `pattern` writes it matches a name."""
    parts = (
        ".*" if each == "*" else re.escape(each.removeprefix("\\") or each)
        for each in _GLOB.findall(glob)
    )
    return re.fullmatch("".join(parts), name, re.DOTALL) is not None


class RedisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads between ids. A stream is told to have lost entries when the last one read is gone."""

    def __init__(self, settings: Shipped["RedisConfig"], reading: Reading) -> None:
        self._settings = settings
        self._reading = reading
        self._targets: dict[str, Id] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with _connected(self._settings) as client:
            found = self._states(client)
        latest = self._reading.asked.starting == "latest"
        return _offset({name: s.last if latest else START for name, s in found.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._reading.asked.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with _connected(self._settings) as client:
            self._targets = {name: state.last for name, state in self._states(client).items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = _ids(start)
        self._check_names(known)
        with _connected(self._settings) as client:
            states = self._states(client)
            ends = dict(known)
            behind: dict[str, Id] = {}
            for name, state in states.items():
                # One that came later is read from its beginning.
                after = known.get(name, START)
                end = state.last if self._targets is None else self._targets.get(name, START)
                self._check(name, after, state)
                if end > after:
                    behind[name] = end
            for name, share in shares(most(limit, "Redis"), behind).items():
                after = known.get(name, START)
                ends[name] = _nth(client, name, after, behind[name], share)
        for name in known.keys() - states.keys():
            self._check(name, known[name], State(exists=False))
        return _offset(ends)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Entries]:
        known = _ids(start)
        wanted = {
            name: (known.get(name, START), last)
            for name, last in _ids(end).items()
            if last > known.get(name, START)
        }
        share = max(1, self._reading.partitions // max(1, len(wanted)))
        return [
            part for name, (after, last) in wanted.items() for part in cut(name, after, last, share)
        ]

    def read(self, partition: Entries) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        after = partition.after
        with _connected(self._settings) as client:
            while True:
                # Both at the same moment: what is trimmed between two pages is seen.
                asked = client.pipeline(transaction=True)
                asked.xrange(partition.stream, f"({after}", str(partition.last), _PAGE)
                asked.xinfo_stream(partition.stream)
                entries, found = asked.execute(raise_on_error=False)
                self._check(partition.stream, after, _told(partition.stream, found))
                if not entries:
                    break
                yield batch("redis", [_row(partition.stream, *entry) for entry in entries])
                after = Id.parse(entries[-1][0])

    def _states(self, client: Any) -> dict[str, "State"]:
        names = dict.fromkeys(self._reading.streams)
        if self._reading.pattern is not None:
            found = client.scan_iter(match=self._reading.pattern, count=1000, _type="stream")
            names |= dict.fromkeys(sorted(name.decode() for name in found))
        states = {name: _state(client, name) for name in names}
        return {name: state for name, state in states.items() if state.exists}

    def _check_names(self, known: Iterable[str]) -> None:
        """Refuse the checkpoint of other streams: these are not trimmed, nobody looks for them."""
        streams, template = self._reading.streams, self._reading.pattern
        others = [name for name in sorted(known) if name not in streams]
        if template is not None:
            others = [name for name in others if not matches(template, name)]
        if others and not self._reading.asked.skip_lost:
            read = [*streams, *([template] if template is not None else [])]
            raise OtherStreamsError("Redis", ", ".join(others), ", ".join(read))

    def _check(self, name: str, after: Id, state: "State") -> None:
        """Refuse to go on where entries behind the last one read may be gone.

        Streams are trimmed from their beginning: while the last one read is there, or older ones,
        so is all that follows it. What is deleted from the middle was deleted by hand.
        """
        if state.exists and state.last < after:
            raise LakeError(
                f"the checkpoint has its place at {after} of Redis stream {name}, which ends at "
                f"{state.last}: it was made anew. Use a new --checkpoint"
            )
        if after in {START, state.last}:
            return
        if state.first is None or state.first > after:
            self._lost(name, after, state.first or state.last)

    def _lost(self, name: str, after: Id, until: Id) -> None:
        if not self._reading.asked.skip_lost:
            raise DataLossError(f"Redis stream {name}", f"entries after {after}", str(until))


class State(NamedTuple):
    """A stream as it is now: its first entry, and the last that it ever had."""

    exists: bool
    first: Id | None = None
    last: Id = START


def cut(stream: str, after: Id, last: Id, count: int) -> list[Entries]:
    """Cut a range of ids by time, so that several tasks can read it."""
    begin = after.ms or last.ms
    whole = last.ms - begin
    count = max(1, min(count, whole))
    borders = [after, *(Id(begin + whole * n // count) for n in range(1, count)), last]
    return [Entries(stream, low, high) for low, high in pairwise(borders)]


def _nth(client: Any, name: str, after: Id, end: Id, count: int | None) -> Id:
    """Find the entry that ends a batch of so many."""
    if count is None or client.xlen(name) <= count:
        return end
    at = after
    while count:
        entries = client.xrange(name, f"({at}", str(end), min(count, _PAGE))
        if not entries:
            return end
        at = Id.parse(entries[-1][0])
        count -= len(entries)
    return at


def _state(client: Any, name: str) -> State:
    redis = require("redis", extra="redis")
    try:
        return _told(name, client.xinfo_stream(name))
    except redis.ResponseError as error:
        return _told(name, error)


def _told(name: str, found: Any) -> State:
    """Read what the server says of a stream, or why it does not."""
    if isinstance(found, Exception):
        if "no such key" in str(found):
            return State(exists=False)
        raise LakeError(f"Redis stream {name}: {found}") from found
    first = found["first-entry"]
    return State(
        exists=True,
        first=None if first is None else Id.parse(first[0]),
        last=Id.parse(found["last-generated-id"]),
    )


def _row(name: str, entry: bytes, fields: Mapping[bytes, bytes]) -> Row:
    place = Id.parse(entry)
    # Whatever someone named a field: tables keep none but the value.
    named = ((key.decode(errors="replace"), text) for key, text in fields.items() if key != _VALUE)
    headers = [*named, ("entry-id", entry)]
    value = fields.get(_VALUE, b"")
    return Row(name, 0, place.offset, place.ms * 1000, name.encode(), headers, value)


def _ids(offset: Offset) -> dict[str, Id]:
    return {name: Id.parse(text) for name, text in offset["streams"].items()}


def _offset(ids: Mapping[str, Id]) -> dict[str, Any]:
    return {"streams": {name: str(place) for name, place in sorted(ids.items())}}


def _connected(settings: Shipped["RedisConfig"]) -> Any:
    redis = require("redis", extra="redis")
    connections = require("redis.connection", extra="redis")
    kind, given = settings.unpacked().connection()
    pool = connections.ConnectionPool(
        connection_class=getattr(connections, kind),
        **given,
        protocol=2,
        client_name="tardis-machine-lake",
        socket_connect_timeout=_TIMEOUT_S,
        socket_timeout=_TIMEOUT_S,
    )
    return redis.Redis.from_pool(pool)
