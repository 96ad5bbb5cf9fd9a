"""Segments of a log: their names, their headers, and what remains of one that was skipped."""

import contextlib
import errno
import itertools
import logging
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from isal import isal_zlib

from tardis_machine.config import make_private
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import durable, entry

_log = logging.getLogger(__name__)

_MAGIC: Final = b"TMJRNL"
_FORMAT: Final = b"01"
_HEADER: Final = struct.Struct("<6s2sQQI")
HEADER_BYTES: Final = _HEADER.size
_CHECKSUM: Final = struct.Struct("<I")
_DIGITS: Final = 12
_PIECE_BYTES: Final = 256 * 1024
_ASIDE: Final = "aside"
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class OtherVersionError(TardisMachineError):
    """A segment of another version of the journal's format: its own version can read it."""

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version
        super().__init__(
            f"{path} is of journal format {version}, this is {_FORMAT.decode()}: "
            "the version of tardis-machine that wrote it can deliver it"
        )


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

    `runs` holds (messages of the log before the run, index into provenances, position). The
    checksum is of all that precedes it on disk; those written before there was one have none.
    """

    first: int
    end: int
    provenances: list[bytes]
    runs: list[tuple[int, int, int]]
    line: bytes
    checksum: bytes = b""

    def message(self, count: int) -> Message | None:
        """Name the message that has `count` messages of the log before it."""
        found = None
        for run in self.runs:
            if run[0] > count:
                break
            found = run
        if found is None or count >= self.end or not 0 <= found[1] < len(self.provenances):
            return None
        return Message(self.provenances[found[1]], found[2] + count - found[0])


_tombstone_decoder = msgspec.msgpack.Decoder(Tombstone)


def segment_path(log: Path, number: int) -> Path:
    return log / f"{number:0{_DIGITS}}.seg"


def sizes(log: Path) -> dict[int, int]:
    """Give the size of each segment."""
    found = {}
    for number in list_log(log).segments:
        try:  # noqa: SIM105 - a full journal has over a hundred, and who writes to it waits for this
            # For the same reason these are no paths.
            found[number] = os.stat(f"{log}/{number:0{_DIGITS}}.seg").st_size  # noqa: PTH116
        except FileNotFoundError:
            pass
    return found


def tombstone_path(log: Path, number: int) -> Path:
    return log / f"{number:0{_DIGITS}}.skip"


def _damaged_path(log: Path, number: int) -> Path:
    return log / f"{number:0{_DIGITS}}.damaged"


def aside(directory: Path) -> Path:
    """Name where a journal keeps what it cannot read."""
    return directory / _ASIDE


def free_place(directory: Path, name: str) -> Path:
    """Name a place that nothing has: what was put back may be a copy of what lies there."""
    names = itertools.chain((name,), (f"{name}.{number}" for number in itertools.count(2)))
    return next(place for each in names if not (place := directory / each).exists())


def list_log(log: Path) -> Listing:
    segments, tombstones = [], []
    try:
        names = os.listdir(log)  # noqa: PTH208 - ten times a second while the journal is full
    except FileNotFoundError:
        names = []
    for name in names:
        stem, _, kind = name.partition(".")
        if not stem.isdecimal():
            continue
        if kind == "seg":
            segments.append(int(stem))
        elif kind == "skip":
            tombstones.append(int(stem))
    return Listing(sorted(segments), sorted(tombstones))


def segment_header(number: int, first: int) -> bytes:
    """Make the header of a segment before which the log held `first` messages."""
    checksum = isal_zlib.crc32(struct.pack("<QQ", number, first))
    return _HEADER.pack(_MAGIC, _FORMAT, number, first, checksum)


def parse_header(path: Path, data: bytes) -> int | None:
    """Give the number of messages before the segment; None for a header that is torn."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, number, first, checksum = _HEADER.unpack_from(data)
    if magic == _MAGIC and version != _FORMAT and version.isdigit():
        raise OtherVersionError(path, version.decode())
    if magic != _MAGIC or checksum != isal_zlib.crc32(struct.pack("<QQ", number, first)):
        return None
    return int(first)


def first_message(log: Path, number: int) -> int | None:
    """Give the number of messages before a segment, from it or its tombstone; None if unknown."""
    path = segment_path(log, number)
    try:
        with path.open("rb") as file:
            return parse_header(path, file.read(HEADER_BYTES))
    except FileNotFoundError:
        tombstone = read_tombstone(log, number)
        return None if tombstone is None else tombstone.first


def has_entries(log: Path, number: int) -> bool:
    """Tell whether a segment has a sound entry, whatever became of its header."""
    try:
        content = read_from(log, number, HEADER_BYTES)
    except FileNotFoundError:
        return False
    return (entry.sound_at(content, 0) or entry.damage_at(content, 0)) is not None


def read_tombstone(log: Path, number: int) -> Tombstone | None:
    """Read a tombstone; None if it is not there, or torn: then the next segment tells the count."""
    try:
        data = tombstone_path(log, number).read_bytes()
        found = _tombstone_decoder.decode(data)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return found if found.checksum in (b"", _checksum(data)) else None


def _checksum(data: bytes) -> bytes:
    """Give what an encoded tombstone is to end with."""
    return _CHECKSUM.pack(isal_zlib.crc32(data[: -_CHECKSUM.size]))


def read_from(log: Path, number: int, start: int) -> bytes:
    """Read a segment from a place on.

    It is not mapped: a writer cuts off what a full disk did not let it finish, and whoever looks
    at a page that is gone is killed.
    """
    with segment_path(log, number).open("rb") as file:
        file.seek(start)
        return file.read()


def _open_mapped(log: Path, number: int) -> mmap.mmap:
    """Map a segment that nobody writes to any more; ValueError if it is empty."""
    with segment_path(log, number).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_piece(fd: int, offset: int) -> bytes:
    """Read a piece of a segment that has the entry at `offset` whole, if the file has it."""
    piece = os.pread(fd, _PIECE_BYTES, offset)
    size = entry.size_at(piece, 0)
    # A torn header may claim any size: nothing is allocated that the file does not hold.
    if size is not None and len(piece) < size <= os.fstat(fd).st_size - offset:
        piece = os.pread(fd, size, offset)
    return piece


class Reach(NamedTuple):
    """How far a segment reaches: the messages of the log before its end, and its size."""

    end: int
    size: int


class Scan(NamedTuple):
    """What a walk over a segment's entry headers finds: messages, and who they belong to."""

    first: int
    end: int
    provenances: list[bytes]
    runs: list[tuple[int, int, int]]
    line: bytes


def scan(
    log: Path,
    number: int,
    start: int | None = None,
    count: int | None = None,
    *,
    ended: bool = False,
) -> Reach:
    """Walk over the entries of a segment, a piece at a time, up to where no more of them follow.

    `count` are the messages before `start`, `ended` says that nobody writes to it any more. A
    segment whose header is not written, or torn, has size 0 if nobody knows them.
    """
    first = _first_of_segment(log, number, count)
    if first is None:
        return Reach(0, 0)
    offset = at = max(start or 0, HEADER_BYTES)
    end = first if count is None else count
    piece = b""
    with segment_path(log, number).open("rb") as file:
        while True:
            found = entry.sound_at(piece, offset - at)
            if found is None:
                piece, at = _read_sound(file.fileno(), offset), offset
                found = entry.sound_at(piece, 0)
            if found is not None:
                end += found.messages
                offset = at + found.end
                continue
            damage = entry.damage_at(read_from(log, number, offset), 0, ended=ended)
            if damage is None:
                return Reach(end, offset)
            end += damage.messages or 0
            offset += damage.end


def _read_sound(fd: int, offset: int) -> bytes:
    try:
        return read_piece(fd, offset)
    except entry.CorruptError:
        return b""


def _first_of_segment(log: Path, number: int, otherwise: int | None) -> int | None:
    """Give the number of messages before a segment, by its header if that is not torn."""
    path = segment_path(log, number)
    with path.open("rb") as file:
        first = parse_header(path, file.read(HEADER_BYTES))
    return otherwise if first is None else first


def _scan_headers(log: Path, number: int, count: int | None) -> Scan | None:
    """Walk over the headers of a segment that nobody writes to any more; None if it has none.

    Reading 64 MiB takes longer than whoever needs the room should wait.
    """
    first = _first_of_segment(log, number, count)
    if first is None:
        return None
    try:
        with _open_mapped(log, number) as content:
            return _scan(content, first)
    except ValueError:  # empty
        return None


def _scan(content: entry.Content, first: int) -> Scan:
    provenances: dict[bytes, int] = {}
    runs: list[tuple[int, int, int]] = []
    line = b""
    offset, count = HEADER_BYTES, first
    while True:
        found = entry.likely_at(content, offset)
        if found is None:
            damage = entry.damage_at(content, offset, ended=True)
            if damage is None:
                break
            count += damage.messages or 0
            offset = damage.end
            continue
        index = provenances.setdefault(found.provenance, len(provenances))
        last = runs[-1] if runs else None
        if last is None or last[1] != index or last[2] + count - last[0] != found.position:
            runs.append((count, index, found.position))
        if not line:
            line = content[found.data : content.find(b"\n", found.data, found.end) + 1]
        count += found.messages
        offset = found.end
    return Scan(first, count, list(provenances), runs, line)


def _encode_tombstone(found: Scan, end: int) -> bytes:
    """Make the tombstone of a segment before whose end the log held so many messages."""
    names = found.provenances, found.runs, found.line
    data = msgspec.msgpack.encode(Tombstone(found.first, end, *names, bytes(_CHECKSUM.size)))
    return data[: -_CHECKSUM.size] + _checksum(data)


def bury(log: Path, number: int, count: int | None = None) -> None:
    """Replace a segment by its tombstone; whoever reads meets the one or the other.

    `count` are the messages before it, where its header does not tell. OtherVersionError for one
    that this version cannot read, and so must not give up.
    """
    try:
        found = _scan_headers(log, number, count)
    except FileNotFoundError:
        return
    if found is None:  # not even its header was written
        discard(log, number)
        return
    # Checksums were not asked, and a count may be damaged; the next segment knows better.
    after = first_message(log, number + 1)
    data = _encode_tombstone(found, found.end if after is None else after)
    path = tombstone_path(log, number)
    try:
        durable.replace(path, data)
    except OSError as error:
        if error.errno not in FULL:
            raise
        # no room even for the tombstone: the segment makes it; a crash here costs only the names
        discard(log, number)
        durable.replace(path, data)
    discard(log, number)


def mark_damaged(log: Path, number: int) -> None:
    """Remember that a segment could not be read whole: it is not deleted but kept aside."""
    with contextlib.suppress(OSError):  # a full disk: what was said must do
        durable.write_synced(_damaged_path(log, number), b"")


def keep_aside(log: Path, path: Path) -> None:
    """Move a file that cannot be read to where somebody may look at it."""
    kept = free_place(aside(log.parent), f"{log.name}-{path.name}")
    make_private(kept.parent)
    with contextlib.suppress(FileNotFoundError):
        path.rename(kept)
        _log.warning("kept aside, it cannot be read", extra={"path": str(kept)})


def discard(log: Path, number: int) -> None:
    """Delete a segment; what is damaged is kept aside."""
    path = segment_path(log, number)
    marker = _damaged_path(log, number)
    if marker.exists() or _is_headless(path):
        keep_aside(log, path)
        marker.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _is_headless(path: Path) -> bool:
    """Tell whether a segment has anything behind a header that is not this version's, or torn."""
    try:
        with path.open("rb") as file:
            known = parse_header(path, file.read(HEADER_BYTES)) is not None
            # Power loss leaves zeros, which nobody needs to look at.
            return not known and bool(file.read().strip(b"\0"))
    except FileNotFoundError:
        return False
    except OtherVersionError:
        return True


def discard_tombstone(log: Path, number: int) -> None:
    """Delete a tombstone; what is torn is kept aside."""
    path = tombstone_path(log, number)
    if read_tombstone(log, number) is None:
        keep_aside(log, path)
    path.unlink(missing_ok=True)
