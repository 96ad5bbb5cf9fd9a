"""An entry: one batch of a response as it lies on disk."""

import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from isal import isal_zlib

from tardis_machine.errors import TardisMachineError

_VERSION: Final = 1
_HIDDEN: Final = 1
_CHECKSUM: Final = struct.Struct("<I")
# version, flags, unused, provenance bytes, data bytes, messages, position, ingest time in us
_HEAD: Final = struct.Struct("<BBHIIIQQ")
HEADER_BYTES: Final = _CHECKSUM.size + _HEAD.size
Buffer = bytes | bytearray | memoryview
Content = mmap.mmap | bytes
_BEGINNINGS: Final = tuple(bytes((_VERSION, flags, 0, 0)) for flags in (0, _HIDDEN))


class CorruptError(TardisMachineError):
    """Bytes that are no entry."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset = offset
        self.reason = reason
        super().__init__(f"{reason} at offset {offset}")


class Provenance(msgspec.Struct, array_like=True, frozen=True):
    """What all entries of one response have in common."""

    producer_id: str
    request_id: str = ""
    session_id: str = ""
    origin: int = 0
    transport: str = ""
    route: str = ""
    source: str = "tardis-machine"
    meta: dict[str, str] = {}


class Entry(NamedTuple):
    """One batch: where it lies, what its header says, and its NDJSON."""

    segment: int
    offset: int
    end: int
    provenance: bytes
    position: int
    messages: int
    ingest_us: int
    hidden: bool
    data: bytes


def encode_provenance(provenance: Provenance) -> bytes:
    return msgspec.msgpack.encode(provenance)


_provenance_decoder = msgspec.msgpack.Decoder(Provenance)


def decode_provenance(data: bytes) -> Provenance:
    return _provenance_decoder.decode(data)


def header(
    provenance: bytes, data: Buffer, count: int, position: int, ingest_us: int, *, hidden: bool
) -> bytes:
    """Make the bytes that precede provenance and data on disk."""
    flags = _HIDDEN if hidden else 0
    head = _HEAD.pack(_VERSION, flags, 0, len(provenance), len(data), count, position, ingest_us)
    checksum = isal_zlib.crc32(data, isal_zlib.crc32(provenance, isal_zlib.crc32(head)))
    return _CHECKSUM.pack(checksum) + head


def size_at(buffer: bytes, start: int) -> int | None:
    """Tell an entry's size from its header; None while the header is not complete."""
    if len(buffer) - start < HEADER_BYTES:
        return None
    version, _, _, provenance, data, _, _, _ = _HEAD.unpack_from(buffer, start + _CHECKSUM.size)
    if version != _VERSION:
        raise CorruptError(start, f"entry of version {version}, not {_VERSION},")
    return HEADER_BYTES + int(provenance) + int(data)


class Heading(NamedTuple):
    """An entry's header and where its parts lie, without reading its data."""

    version: int
    provenance: bytes
    position: int
    messages: int
    data: int
    end: int


def heading_at(content: Content, offset: int) -> Heading | None:
    """Read the header at `offset`, whatever the checksum; None if no whole entry can lie there."""
    body = offset + HEADER_BYTES
    if body > len(content):
        return None
    version, _, _, provenance, data, count, position, _ = _HEAD.unpack_from(
        content, offset + _CHECKSUM.size
    )
    end = body + provenance + data
    if end > len(content):
        return None
    start = body + provenance
    return Heading(version, content[body:start], position, count, start, end)


def whole_at(content: Content, offset: int) -> Heading | None:
    """Read the header at `offset` if the entry there is whole, of whatever version."""
    found = heading_at(content, offset)
    if found is None:
        return None
    (checksum,) = _CHECKSUM.unpack_from(content, offset)
    with memoryview(content) as view, view[offset + _CHECKSUM.size : found.end] as body:
        return found if isal_zlib.crc32(body) == checksum else None


def sound_at(content: Content, offset: int) -> Heading | None:
    """Read the header at `offset` if the entry there is whole and of this version."""
    found = whole_at(content, offset)
    return found if found is not None and found.version == _VERSION else None


def likely_at(content: Content, offset: int) -> Heading | None:
    """Read the header at `offset` if an entry lies there, going by it and by the one behind it.

    Only the last entry of a segment can be torn, so only there the checksum is asked.
    """
    found = heading_at(content, offset)
    if found is None or found.version != _VERSION:
        return None
    behind = heading_at(content, found.end)
    likely = behind is not None and behind.version == _VERSION
    return found if likely else sound_at(content, offset)


class Damage(NamedTuple):
    """A stretch that cannot be read: where sound entries go on, and how many messages it held.

    The count is None if it took the entries' headers with it.
    """

    end: int
    messages: int | None


def damage_at(content: Content, offset: int, *, ended: bool = False) -> Damage | None:
    """Find the next sound entry behind something that is none; None if there is no more.

    What has no sound entry behind it is damage only where nobody writes any more (`ended`), and
    if all of it is there: a write that was cut off is shorter, or, by power loss, ends in zeros.
    """
    count = 0
    at = offset
    while (heading := heading_at(content, at)) is not None and heading.version == _VERSION:
        count += heading.messages
        at = heading.end
        if sound_at(content, at) is not None:
            return Damage(at, count)
    for place in _beginnings(content, offset + 1):
        if sound_at(content, place) is not None:
            return Damage(place, None)
    return Damage(at, count) if ended and at > offset and content[at - 1] else None


def _beginnings(content: Content, offset: int) -> Iterator[int]:
    """Give the places where an entry may begin, by what all headers have in common."""
    places = [content.find(each, offset + _CHECKSUM.size) for each in _BEGINNINGS]
    while any(place >= 0 for place in places):
        which = min((place, n) for n, place in enumerate(places) if place >= 0)[1]
        yield places[which] - _CHECKSUM.size
        places[which] = content.find(_BEGINNINGS[which], places[which] + 1)


def other_version_at(content: Content, offset: int) -> int | None:
    """Tell the version of a whole entry that is of another one; None if there is none."""
    found = whole_at(content, offset)
    return found.version if found is not None and found.version != _VERSION else None


def parse(buffer: bytes, start: int, segment: int, offset: int) -> Entry:
    """Read the whole entry at `start`, which lies at `offset` of its segment."""
    _, flags, _, n_provenance, n_data, count, position, ingest_us = _HEAD.unpack_from(
        buffer, start + _CHECKSUM.size
    )
    body = start + HEADER_BYTES
    end = body + n_provenance + n_data
    (checksum,) = _CHECKSUM.unpack_from(buffer, start)
    if isal_zlib.crc32(memoryview(buffer)[start + _CHECKSUM.size : end]) != checksum:
        raise CorruptError(offset, "checksum does not match")
    return Entry(
        segment,
        offset,
        offset + end - start,
        buffer[body : body + n_provenance],
        position,
        count,
        ingest_us,
        bool(flags & _HIDDEN),
        buffer[body + n_provenance : end],
    )


def join(run: Sequence[Entry]) -> Entry:
    """Make one entry of some that follow one another; it has the time of the last."""
    last = run[-1]
    return run[0]._replace(
        end=last.end,
        messages=sum([each.messages for each in run]),
        ingest_us=last.ingest_us,
        data=b"".join([each.data for each in run]),
    )
