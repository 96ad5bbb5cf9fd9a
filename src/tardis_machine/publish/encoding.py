"""Entries of the journal as Bronze events, encoded once for all buses that are level."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tardis_machine.bronze import (
    Context,
    EncodedBatch,
    EncodeError,
    Encoder,
    Event,
    Origin,
    Rejected,
)
from tardis_machine.journal import Entry, Gap, Provenance
from tardis_machine.journal.entry import decode_provenance, encode_provenance
from tardis_machine.journal.segment import Message
from tardis_machine.messages import ErrorMessage, Time, encode_line

_log = logging.getLogger(__name__)

_KEPT_BYTES: Final = 16 << 20
_POSITIONS: Final = 1 << 63


def context_of(provenance: bytes, ingest_us: int) -> Context:
    """Turn what the journal says about a response into what its envelopes say."""
    found = decode_provenance(provenance)
    return Context(
        source=found.source,
        producer_id=found.producer_id,
        origin=Origin(found.origin),
        ingest_us=ingest_us,
        request_id=found.request_id,
        session_id=found.session_id,
        transport=found.transport,
        route=found.route,
        meta=found.meta,
    )


class Encoding:
    """Shared by the threads of all buses: the last entries' events are kept for the others.

    A bus that lags by more than is kept encodes for itself.
    """

    def __init__(self, include: Sequence[frozenset[str]]) -> None:
        """`include` has each bus's allow-list; one that is empty allows everything."""
        self._include = frozenset[str]().union(*include) if all(include) else None
        self._keep_bytes = _KEPT_BYTES if len(include) > 1 else 0
        self._kept: OrderedDict[tuple[str, int, int, int], tuple[Context, EncodedBatch, int]] = (
            OrderedDict()
        )
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self._encoder = Encoder(Context())

    def events(self, log: str, entry: Entry) -> tuple[Context, EncodedBatch]:
        """Give an entry's events, as far as any bus wants them."""
        key = (log, entry.segment, entry.offset, entry.end)
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                return known[0], known[1]
            try:
                context = context_of(entry.provenance, entry.ingest_us)
                self._encoder.context = context
                events = self._encoder.encode_lines(entry.data, entry.position, self._include)
            except Exception as error:  # noqa: BLE001 - one entry must not stop all that follow
                _log.exception("entry cannot be encoded", extra={"log": log, "entry": entry.offset})
                context, events = Context(), _rejected(entry, error)
            if self._keep_bytes:
                self._keep(key, context, events, len(entry.data))
            return context, events

    def event(self, context: Context, line: bytes, position: int) -> Event:
        """Encode a single line that is in no journal."""
        with self._lock:
            self._encoder.context = context
            found = self._encoder.encode_line(line, position)
        if isinstance(found, Rejected):
            raise found.error
        return found

    def announce(self, bus: str, gap: Gap) -> tuple[Context, bytes, int]:
        """Word the ControlError that tells a bus's consumers what they will never get."""
        exchange, local = _line_of(gap)
        count = gap.messages or "some"
        extent = _extent(gap)
        message = ErrorMessage(
            exchange=exchange,
            local_timestamp=local,
            details=f"{count} messages were not published to {bus}: {extent.text}",
            sub_sequent_errors_count=0,
        )
        return extent.context, encode_line(message), extent.position

    def _keep(
        self, key: tuple[str, int, int, int], context: Context, events: EncodedBatch, size: int
    ) -> None:
        self._kept[key] = (context, events, size)
        self._kept_bytes += size
        while self._kept_bytes > self._keep_bytes and len(self._kept) > 1:
            _, (_, _, gone) = self._kept.popitem(last=False)
            self._kept_bytes -= gone


def _rejected(entry: Entry, error: Exception) -> EncodedBatch:
    """Turn an entry that is beyond the encoder into dead letters, line by line."""
    reason = EncodeError(f"{type(error).__name__}: {error}")
    lines = enumerate(entry.data.splitlines(), entry.position)
    rejected = [Rejected(line, reason, position) for position, line in lines]
    return EncodedBatch([], len(rejected), rejected)


class _Line(msgspec.Struct, rename="camel"):
    """The little that is asked of a journalled line to say whose it was, and of when."""

    exchange: str
    local_timestamp: str


def _line_of(gap: Gap) -> tuple[str, Time]:
    """Give exchange and local time of the first message lost, as far as is known."""
    try:
        line = msgspec.json.decode(gap.line, type=_Line)
        return line.exchange, Time.parse(line.local_timestamp)
    except (msgspec.MsgspecError, ValueError):
        return "unknown", Time(time.time_ns() // 1000)


class _Extent(NamedTuple):
    """What a gap reaches from and to, in words, and whose and where its first message was."""

    text: str
    context: Context
    position: int


def _extent(gap: Gap) -> _Extent:
    """Name the first and the last message of a gap, as far as is known."""
    now = time.time_ns() // 1000
    try:
        (first, position), (last, end) = _named(gap.first, now), _named(gap.last, now)
    except (msgspec.MsgspecError, ValueError):
        text = f"the journal is {gap.reason} there, positions unknown"
        return _Extent(text, context_of(encode_provenance(Provenance("")), now), 0)
    text = (
        f"position {position} of request {first.request_id} "
        f"to position {end} of request {last.request_id}"
    )
    return _Extent(text, first, position)


def _named(message: Message | None, ingest_us: int) -> tuple[Context, int]:
    """Give whose message it was, and its position; ValueError if nobody knows.

    A segment is skipped by its headers alone: what they said may be damaged.
    """
    if message is None or not 0 <= message.position < _POSITIONS:
        raise ValueError("a message that nobody knows")
    return context_of(message.provenance, ingest_us), message.position
