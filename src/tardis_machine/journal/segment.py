"""Segments of a log: their names, their headers, and what remains of one that was skipped."""

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from isal import isal_zlib

from tardis_machine.journal import entry

_MAGIC: Final = b"TMJRNL01"
_HEADER: Final = struct.Struct("<8sQQI")
HEADER_BYTES: Final = _HEADER.size
_DIGITS: Final = 12
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Listing(NamedTuple):
    """The numbers of a log's segments and tombstones, each ascending."""

    segments: list[int]
    tombstones: list[int]


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One message, named by its response and its position there."""

    provenance: bytes
    position: int


class Tombstone(msgspec.Struct, array_like=True, frozen=True):
    """What is kept of a skipped segment: enough to count and name any part of it.

    `runs` holds (messages of the log before the run, index into provenances, position).
    """

    first: int
    end: int
    provenances: list[bytes]
    runs: list[tuple[int, int, int]]
    line: bytes

    def message(self, count: int) -> Message | None:
        """Name the message that has `count` messages of the log before it."""
        found = None
        for run in self.runs:
            if run[0] > count:
                break
            found = run
        if found is None or count >= self.end:
            return None
        return Message(self.provenances[found[1]], found[2] + count - found[0])


_tombstone_decoder = msgspec.msgpack.Decoder(Tombstone)


def segment_path(log: Path, number: int) -> Path:
    return log / f"{number:0{_DIGITS}}.seg"


def tombstone_path(log: Path, number: int) -> Path:
    return log / f"{number:0{_DIGITS}}.skip"


def list_log(log: Path) -> Listing:
    segments, tombstones = [], []
    try:
        names = os.listdir(log)  # noqa: PTH208 - ten times a second while the journal is full
    except FileNotFoundError:
        names = []
    for name in names:
        stem, _, kind = name.partition(".")
        if kind == "seg":
            segments.append(int(stem))
        elif kind == "skip":
            tombstones.append(int(stem))
    return Listing(sorted(segments), sorted(tombstones))


def segment_header(number: int, first: int) -> bytes:
    """Make the header of a segment before which the log held `first` messages."""
    checksum = isal_zlib.crc32(struct.pack("<QQ", number, first))
    return _HEADER.pack(_MAGIC, number, first, checksum)


def parse_header(data: bytes) -> int | None:
    """Give the number of messages before the segment; None for a header that is torn."""
    if len(data) < HEADER_BYTES:
        return None
    magic, number, first, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC or checksum != isal_zlib.crc32(struct.pack("<QQ", number, first)):
        return None
    return int(first)


def first_message(log: Path, number: int) -> int | None:
    """Give the number of messages before a segment, from it or its tombstone; None if unknown."""
    try:
        with segment_path(log, number).open("rb") as file:
            return parse_header(file.read(HEADER_BYTES))
    except FileNotFoundError:
        tombstone = read_tombstone(log, number)
        return None if tombstone is None else tombstone.first


def read_tombstone(log: Path, number: int) -> Tombstone | None:
    try:
        return _tombstone_decoder.decode(tombstone_path(log, number).read_bytes())
    except FileNotFoundError:
        return None


def open_mapped(log: Path, number: int) -> mmap.mmap:
    """Map a segment for reading; ValueError if it is empty."""
    with segment_path(log, number).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class Scan(NamedTuple):
    """What a walk over a segment's entry headers finds: messages, bytes, and who they belong to."""

    first: int
    end: int
    size: int
    provenances: list[bytes]
    runs: list[tuple[int, int, int]]
    line: bytes


def scan(log: Path, number: int, start: int | None = None, count: int | None = None) -> Scan:
    """Walk over the entries of a segment, up to the first that is incomplete or corrupt.

    A segment whose header is not written, or torn, has size 0.
    """
    try:
        with open_mapped(log, number) as content:
            first = parse_header(content[:HEADER_BYTES])
            if first is not None:
                return _scan(
                    content, first, start or HEADER_BYTES, first if count is None else count
                )
    except ValueError:  # empty
        pass
    return Scan(0, count or 0, 0, [], [], b"")


def _scan(content: mmap.mmap, first: int, start: int, count: int) -> Scan:
    provenances: dict[bytes, int] = {}
    runs: list[tuple[int, int, int]] = []
    line = b""
    offset = start
    while True:
        found = entry.sound_at(content, offset)
        if found is None:
            break
        index = provenances.setdefault(found.provenance, len(provenances))
        last = runs[-1] if runs else None
        if last is None or last[1] != index or last[2] + count - last[0] != found.position:
            runs.append((count, index, found.position))
        if not line:
            line = content[found.data : content.find(b"\n", found.data, found.end) + 1]
        count += found.messages
        offset = found.end
    return Scan(first, count, offset, list(provenances), runs, line)


def bury(log: Path, number: int) -> None:
    """Replace a segment by its tombstone; whoever reads meets the one or the other."""
    try:
        found = scan(log, number)
    except FileNotFoundError:
        return
    if found.size == 0:  # not even its header was written
        segment_path(log, number).unlink(missing_ok=True)
        return
    tombstone = Tombstone(found.first, found.end, found.provenances, found.runs, found.line)
    path = tombstone_path(log, number)
    partial = path.with_suffix(".tmp")
    try:
        partial.write_bytes(msgspec.msgpack.encode(tombstone))
    except OSError as error:
        if error.errno not in FULL:
            raise
        # no room even for the tombstone: the segment makes it; a crash here costs only the names
        segment_path(log, number).unlink(missing_ok=True)
        partial.write_bytes(msgspec.msgpack.encode(tombstone))
    partial.replace(path)
    segment_path(log, number).unlink(missing_ok=True)
