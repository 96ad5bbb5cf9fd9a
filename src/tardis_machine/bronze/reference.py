"""The encoder in Python: it decides what is right, and serves where no kernel is."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from tardis_machine.bronze import wire
from tardis_machine.bronze.batch import EncodedBatch, Event, Rejected, Series
from tardis_machine.bronze.errors import EncodeError
from tardis_machine.bronze.fields import Heads, number_tag, tag
from tardis_machine.bronze.ids import EventIds, identity
from tardis_machine.bronze.payloads import PAYLOADS
from tardis_machine.bronze.times import TimeField
from tardis_machine.bronze.varints import varint
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import CASES, PAYLOAD_CASES, Time, explain, snapshot_case

_UNREADABLE: Final = (ValueError, RecursionError)
"""What msgspec raises for a line that is no message."""
_UNFIT: Final = (KeyError, ValueError)
"""What a message's text or number raises that no envelope can hold."""
_MAX_SERIES: Final = 100_000

Parts = tuple[int, str, str, str, bytes, int, bytes, bytes]
"""What an envelope is put together of: the number of its case, exchange, symbol, name; what the id
is made of besides these; the local time, its field, the payload."""


class Reference:
    """Encodes batches; keeps what is known of series from one to the next."""

    def __init__(self) -> None:
        self._series: dict[_Key, _Series] = {}

    def encode(
        self, shared: bytes, ndjson: bytes, position: int, include: frozenset[str] | None
    ) -> EncodedBatch:
        """Encode a batch; `shared` are the fields that all of its envelopes have."""
        batch = _Batch(shared, self._series, include)
        others = _others(include)
        if others is not None:
            lines = _lines(ndjson)
            kept = [(line, at) for at, line in enumerate(lines, position) if not others(line)]
            batch.encode_all([line for line, _ in kept], [at for _, at in kept])
            return EncodedBatch(batch.events, len(lines), batch.rejected)
        try:
            decoded = wire.DECODER.decode_lines(ndjson)
        except _UNREADABLE:
            decoded = []
        # msgspec does not mind a message on two lines, or two on one.
        if len(decoded) != ndjson.count(b"\n") + (ndjson[-1:] not in (b"\n", b"")):
            lines = _lines(ndjson)
            batch.encode_all(lines, range(position, position + len(lines)))
            return EncodedBatch(batch.events, len(lines), batch.rejected)
        encode = batch.encode
        for place, message in enumerate(decoded, position):
            try:
                encode(message, place)
            except _UNFIT:
                line = _lines(ndjson)[place - position]
                batch.rejected.append(_unfit(message, line, place))
        return EncodedBatch(batch.events, len(decoded), batch.rejected)


def read(line: bytes, position: int) -> Any:
    """Read a line in whatever form: a wire message, or Rejected."""
    try:
        return wire.DECODER.decode(line)
    except _UNREADABLE as error:
        return Rejected(line, _unreadable(line, error), position)


def parts(message: Any, line: bytes, position: int) -> Parts | Rejected:
    """Take a wire message apart for an encoder that puts envelopes together by itself."""
    try:
        series = _series_of(message)
        payload, content = PAYLOADS[series.case].write(message)
        local_us, local_field, local_text = _read_local_time(message.local_timestamp)
    except _UNFIT:
        return _unfit(message, line, position)
    return (
        PAYLOAD_CASES.index(series.case),
        series.exchange,
        series.symbol,
        series.name,
        local_text + content,
        local_us,
        local_field,
        payload,
    )


def error_of(
    message: Any, reason: str, field: str | None = None, kind: str | None = None
) -> EncodeError:
    """Word what is wrong with a message."""
    return EncodeError(
        reason,
        field=field,
        message_type=kind or message.__struct_config__.tag,
        exchange=_text(getattr(message, "exchange", None)),
        symbol=_text(getattr(message, "symbol", None)),
    )


class _Series(NamedTuple):
    """What the events of one exchange, symbol and name have in common."""

    exchange: str
    symbol: str
    case: str
    name: str
    message_type: str
    identity: bytes
    envelope: bytes

    @property
    def public(self) -> Series:
        return Series(self.exchange, self.symbol, self.case, self.name or self.message_type)


def _series_of(message: Any) -> _Series:
    exchange, symbol = message.exchange, getattr(message, "symbol", "")
    name = getattr(message, "name", "")
    message_type = message.__struct_config__.tag
    if message_type == "book_snapshot":
        case = snapshot_case(name, grouped=message.grouping is not UNSET)
    else:
        case = CASES[message_type]
    envelope = pb.NormalizedEvent(exchange=exchange, symbol=symbol).SerializeToString()
    return _Series(
        exchange,
        symbol,
        case,
        name,
        message_type,
        identity(exchange, symbol, case, name),
        envelope,
    )


_Key = tuple[object, ...]
_Known = tuple[Series | None, bytes, bytes, Heads, Callable[[Any], tuple[bytes, bytes]]]
"""A series (None: nobody wants it), what its ids and its envelopes begin with, its payload."""

_KEYS: Final[dict[type[Any], Callable[[Any], _Key]]] = {
    wire.TYPES["BookSnapshot"]: lambda message: (
        wire.TYPES["BookSnapshot"],
        message.exchange,
        message.symbol,
        message.name,
        message.grouping is UNSET,
    ),
    wire.TYPES["TradeBar"]: lambda message: (
        wire.TYPES["TradeBar"],
        message.exchange,
        message.symbol,
        message.name,
    ),
    wire.TYPES["Disconnect"]: lambda message: (wire.TYPES["Disconnect"], message.exchange),
    wire.TYPES["ErrorMessage"]: lambda message: (wire.TYPES["ErrorMessage"], message.exchange),
}
"""What makes a series, where it is not just type, exchange and symbol."""


class _Batch:
    """One batch's messages and their ids."""

    __slots__ = (
        "_include",
        "_known",
        "_local",
        "_local_time",
        "_next_id",
        "_series",
        "_shared",
        "events",
        "rejected",
    )

    def __init__(
        self, shared: bytes, series: dict[_Key, _Series], include: frozenset[str] | None
    ) -> None:
        self.events: list[Event] = []
        self.rejected: list[Rejected] = []
        self._shared = shared
        self._series = series
        self._include = include
        self._known: dict[_Key, _Known] = {}
        self._next_id = EventIds().next
        # neighbours often have the same local time: what one message caused, came with it
        self._local: str | None = None
        self._local_time = (0, b"", b"")

    def encode(self, message: Any, position: int) -> None:
        kind = type(message)
        key = _KEYS[kind](message) if kind in _KEYS else (kind, message.exchange, message.symbol)
        known = self._known.get(key) or self._meet(key, message)
        public, identity, shared, heads, write = known
        payload, content = write(message)
        local = message.local_timestamp
        if local != self._local:
            self._local_time = _read_local_time(local)
            self._local = local
        if public is None:
            return
        local_us, local_field, local_text = self._local_time
        event_id = self._next_id(identity + local_text + content)
        value = b"".join(
            (
                shared,
                local_field,
                _EVENT_ID,
                event_id.encode(),
                _POSITION,
                varint(position),
                heads[len(payload)],
                payload,
            )
        )
        self.events.append(Event(value, public, event_id, local_us, position))

    def encode_all(self, lines: Sequence[bytes], positions: Sequence[int]) -> None:
        """Encode lines, some of which may not be readable."""
        for line, position, message in zip(
            lines, positions, map(read, lines, positions), strict=True
        ):
            if isinstance(message, Rejected):
                self.rejected.append(message)
                continue
            try:
                self.encode(message, position)
            except _UNFIT:
                self.rejected.append(_unfit(message, line, position))

    def _meet(self, key: _Key, message: Any) -> _Known:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= _MAX_SERIES:
                self._series.clear()
            series = self._series[key] = _series_of(message)
        wanted = self._include is None or series.case in self._include
        public = series.public if wanted else None
        known = (public, series.identity, self._shared + series.envelope, *PAYLOADS[series.case])
        self._known[key] = known
        return known


_LOCAL_TIME: Final = TimeField(
    pb.NormalizedEvent.LOCAL_TS_FIELD_NUMBER, pb.NormalizedEvent.LOCAL_TS_PRECISION_FIELD_NUMBER
)
_EVENT_ID: Final = tag(pb.NormalizedEvent.EVENT_ID_FIELD_NUMBER) + varint(32)
_POSITION: Final = number_tag(pb.NormalizedEvent.POSITION_FIELD_NUMBER)


def _read_local_time(text: str) -> tuple[int, bytes, bytes]:
    """Give a local time in microseconds, as its field, and with six digits for the id."""
    if len(text) == 27:
        return *_LOCAL_TIME.write_six_digits(text), text.encode()
    field = _LOCAL_TIME.write(text)
    return int(Time.parse(text)), field, f"{text[:-1]}000Z".encode()


def _lines(ndjson: bytes) -> list[bytes]:
    return [line for line in ndjson.split(b"\n") if line and not line.isspace()]


_SNAPSHOTS: Final = frozenset(PAYLOAD_CASES) - frozenset(CASES.values())
_SNAPSHOT: Final = re.compile(
    rb'\{"type":"book_snapshot","symbol":"[ !#-\[\]-~]{0,1000}","exchange":"[ !#-\[\]-~]{0,1000}",'
    rb'"name":"([ !#-\[\]-~]{0,1000})","depth":(?:0|[1-9][0-9]{0,8}),'
    rb'"interval":(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?,"(grouping|bids)":'
)
"""How snapshots of all three cases begin, as emitters print them."""


@lru_cache(maxsize=64)
def _others(include: frozenset[str] | None) -> Callable[[bytes], bool] | None:
    """Give what tells by the beginning of a line that nobody wants it; None if all are wanted."""
    if include is None or include >= frozenset(PAYLOAD_CASES):
        return None
    kinds = [kind for kind, case in CASES.items() if case not in include]
    if not include & _SNAPSHOTS:
        kinds.append("book_snapshot")
    starts = tuple(b'{"type":"%b",' % kind.encode() for kind in kinds)
    if include >= _SNAPSHOTS or not include & _SNAPSHOTS:
        return lambda line: line.startswith(starts)

    def is_other(line: bytes) -> bool:
        if line.startswith(starts):
            return True
        snapshot = _SNAPSHOT.match(line)
        if snapshot is None:
            return False
        name, next_key = snapshot.groups()
        return snapshot_case(name.decode(), grouped=next_key == b"grouping") not in include

    return is_other


class _Names(msgspec.Struct):
    """The little that is asked of a line to say whose it was."""

    type: Any = None
    exchange: Any = None
    symbol: Any = None


def _unreadable(line: bytes, error: Exception) -> EncodeError:
    reason, field = explain(error)
    try:
        names = msgspec.json.decode(line, type=_Names)
    except _UNREADABLE:
        return EncodeError(reason, field=field)
    return error_of(names, reason, field, _text(names.type))


def _unfit(message: Any, line: bytes, position: int) -> Rejected:
    """Find what the fast path only stumbled over."""
    for field, text in wire.times(message):
        try:
            _LOCAL_TIME.write(text)
        except _UNFIT:
            reason = f"{text[:40]!r} is not a time since 1970 such as 2024-03-01T00:00:00.123456Z"
            return Rejected(line, error_of(message, reason, field), position)
    return Rejected(line, error_of(message, "a value is out of range"), position)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
