"""Normalized NDJSON to Bronze envelopes: the one code path that encodes."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine import messages
from tardis_machine.bronze import wire
from tardis_machine.bronze.context import Context
from tardis_machine.bronze.errors import EncodeError
from tardis_machine.bronze.fields import Heads, number_tag, tag
from tardis_machine.bronze.ids import EventIds, identity
from tardis_machine.bronze.payloads import PAYLOADS
from tardis_machine.bronze.times import TimeField
from tardis_machine.bronze.varints import varint
from tardis_machine.messages import CASES, Message, MessageError, Time, explain, snapshot_case


class Event(msgspec.Struct, frozen=True, gc=False):
    """An encoded envelope, with what routing and accounting need to know of it."""

    value: bytes
    payload_case: str
    exchange: str
    symbol: str
    data_type: str
    event_id: str
    local_us: int
    position: int


class Rejected(NamedTuple):
    """A line that has no envelope, and why."""

    line: bytes
    error: EncodeError
    position: int


class Encoder:
    """Encodes batches; reused from one to the next by assigning `context`."""

    def __init__(self, context: Context) -> None:
        self._series: dict[_Key, _Series] = {}
        self.context = context

    @property
    def context(self) -> Context:
        """What the envelopes of the next batch say besides their messages."""
        return self._context

    @context.setter
    def context(self, context: Context) -> None:
        self._shared = context.serialize()
        self._context = context

    def encode_lines(self, ndjson: bytes, position: int = 0) -> list[Event | Rejected]:
        """Encode a batch whose first message has this position in its response.

        A batch must not end inside one local time, or the ids of what follows would be wrong.
        """
        if position < 0:
            raise EncodeError(
                f"a position counts from 0, and {position} is below", field="position"
            )
        batch = _Batch(self._shared, self._series)
        try:
            decoded = wire.DECODER.decode_lines(ndjson)
        except _UNREADABLE:
            lines = enumerate(_lines(ndjson), position)
            return [_encode_line(batch, line, index) for index, line in lines]
        events: list[Event | Rejected] = []
        append, encode = events.append, batch.encode
        for message in decoded:
            try:
                append(encode(message, position))
            except _UNFIT:
                line = _lines(ndjson)[len(events)]
                append(Rejected(line, _unfit(message), position))
            position += 1
        return events

    def encode(self, message: Message, position: int = 0) -> Event:
        """Encode a single message as if it were the only one of its local time."""
        try:
            line = messages.encode_line(message)
        except MessageError as error:
            raise _error(error.reason, error.field, message) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise _error(str(error), None, message) from error
        (event,) = self.encode_lines(line, position)
        if isinstance(event, Rejected):
            raise event.error
        return event


def encode(message: Message, context: Context, position: int = 0) -> bytes:
    """Encode one message; for many, an Encoder is far faster."""
    return Encoder(context).encode(message, position).value


_UNREADABLE: Final = (ValueError, RecursionError)
"""What msgspec raises for a line that is no message."""
_UNFIT: Final = (KeyError, ValueError)
"""What a message's text or number raises that no envelope can hold."""
_MAX_SERIES: Final = 100_000


class _Series(NamedTuple):
    """What the events of one exchange, symbol and name have in common."""

    exchange: str
    symbol: str
    case: str
    data_type: str
    identity: bytes
    envelope: bytes


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
        name or message_type,
        identity(exchange, symbol, case, name),
        envelope,
    )


_Key = tuple[object, ...]
_Known = tuple[str, str, str, str, bytes, bytes, Heads, Callable[[Any], tuple[bytes, bytes]]]
"""A series with the bytes its envelopes begin with, and its payload, all at hand."""

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

    __slots__ = ("_known", "_local", "_local_time", "_next_id", "_series", "_shared")

    def __init__(self, shared: bytes, series: dict[_Key, _Series]) -> None:
        self._shared = shared
        self._series = series
        self._known: dict[_Key, _Known] = {}
        self._next_id = EventIds().next
        # neighbours often have the same local time: what one message caused, came with it
        self._local = ""
        self._local_time = (0, b"", b"")

    def encode(self, message: Any, position: int) -> Event:
        kind = type(message)
        key = _KEYS[kind](message) if kind in _KEYS else (kind, message.exchange, message.symbol)
        known = self._known.get(key) or self._meet(key, message)
        exchange, symbol, case, data_type, identity, shared, heads, write = known
        payload, content = write(message)
        local = message.local_timestamp
        if local != self._local:
            self._local_time = _read_local_time(local)
            self._local = local
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
        return Event(value, case, exchange, symbol, data_type, event_id, local_us, position)

    def _meet(self, key: _Key, message: Any) -> _Known:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= _MAX_SERIES:
                self._series.clear()
            series = self._series[key] = _series_of(message)
        exchange, symbol, case, data_type, identity, envelope = series
        shared = self._shared + envelope
        known = (exchange, symbol, case, data_type, identity, shared, *PAYLOADS[case])
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


def _encode_line(batch: _Batch, line: bytes, position: int) -> Event | Rejected:
    try:
        message = wire.DECODER.decode(line)
    except _UNREADABLE as error:
        return Rejected(line, _unreadable(line, error), position)
    try:
        return batch.encode(message, position)
    except _UNFIT:
        return Rejected(line, _unfit(message), position)


def _lines(ndjson: bytes) -> list[bytes]:
    return [line for line in ndjson.split(b"\n") if line and not line.isspace()]


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
    return _error(reason, field, names, _text(names.type))


def _unfit(message: Any) -> EncodeError:
    """Find what the fast path only stumbled over."""
    for field, text in wire.times(message):
        try:
            _LOCAL_TIME.write(text)
        except _UNFIT:
            reason = f"{text[:40]!r} is not a time since 1970 such as 2024-03-01T00:00:00.123456Z"
            return _error(reason, field, message)
    return _error("a value is out of range", None, message)


def _error(reason: str, field: str | None, message: Any, kind: str | None = None) -> EncodeError:
    return EncodeError(
        reason,
        field=field,
        message_type=kind or message.__struct_config__.tag,
        exchange=_text(getattr(message, "exchange", None)),
        symbol=_text(getattr(message, "symbol", None)),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
