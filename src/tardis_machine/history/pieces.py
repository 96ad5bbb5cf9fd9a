"""A slice's file, decompressed in bounded pieces of whole lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import zstandard
from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor, IsalError

from tardis_machine.history.errors import CorruptSliceError

PIECE_BYTES: Final = 1 << 18
"""Small enough for the processor's cache and an event loop's step; only a line can be longer."""

_READ_BYTES: Final = 1 << 16
_STAMP_LENGTH: Final = 28
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_RAW_BLOCK, _RLE_BLOCK, _COMPRESSED_BLOCK = range(3)


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the file's lines, each piece whole lines; raise CorruptSliceError where it is bad."""
    rest = b""
    for chunk in _chunks(path):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield rest + chunk[:end] if rest else chunk[:end]
            rest = chunk[end:]
        else:
            rest += chunk
    if rest:
        yield rest + b"\n"


def verify(path: Path) -> None:
    """Read the file to its end, checksums included, or raise CorruptSliceError."""
    for _ in _chunks(path):
        pass


def first_stamp(piece: bytes) -> bytes:
    """The local timestamp of a piece's first line; empty if it has none but disconnects."""
    return piece.lstrip(b"\n")[:_STAMP_LENGTH] if piece[:1] == b"\n" else piece[:_STAMP_LENGTH]


def last_stamp(piece: bytes) -> bytes:
    """The local timestamp of a piece's last line; empty if it has none but disconnects."""
    end = len(piece)
    while end:
        start = piece.rfind(b"\n", 0, end - 1) + 1
        if end - start > 1:
            return piece[start : start + _STAMP_LENGTH]
        end = start
    return b""


class Window:
    """Cuts a file's pieces to the lines stamped from `start` up to before `end`.

    A disconnect at a border is kept, on either side of it: several in a row count once, whereas
    one that is dropped is lost.
    """

    def __init__(self, start: bytes, end: bytes) -> None:
        self.start = start
        self.end = end
        self.passed = False
        self._disconnected = False

    def cut(self, piece: bytes) -> bytes:
        """Return the piece's lines inside; `passed` tells that no more will come."""
        first, last = first_stamp(piece), last_stamp(piece)
        if first >= self.start and last < self.end and not self._disconnected:
            return piece
        kept: list[bytes] = [b"\n"] if self._disconnected else []
        for line in piece[:-1].split(b"\n"):
            stamp = line[:_STAMP_LENGTH]
            if not stamp or self.start <= stamp < self.end:
                kept.append(line + b"\n")
            elif stamp < self.start:
                kept.clear()
            else:
                self.passed = True
                break
        self._disconnected = last < self.start and bool(kept)
        return b"" if self._disconnected else b"".join(kept)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        if path.suffix == ".zst":
            yield from _zstd_chunks(path, file)
        else:
            yield from _gzip_chunks(path, file)


def _zstd_chunks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    # The decompressor takes a file that ends in the middle of a frame for a complete one.
    _check_zstd_frames(path, file)
    file.seek(0)
    reader = zstandard.ZstdDecompressor().stream_reader(
        file, read_size=_READ_BYTES, read_across_frames=True, closefd=False
    )
    try:
        while chunk := reader.read(PIECE_BYTES):
            yield chunk
    except zstandard.ZstdError as error:
        raise CorruptSliceError(path, str(error)) from None


def _check_zstd_frames(path: Path, file: BinaryIO) -> None:
    """Walk from block header to block header: every frame must be there to its last byte."""
    length = file.seek(0, 2)
    if not length:
        raise CorruptSliceError(path, "the file is empty")
    position = 0
    while position < length:
        file.seek(position)
        header = file.read(18)
        magic = int.from_bytes(header[:4], "little")
        if magic in _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(header[4:8], "little")
        elif magic == _ZSTD_MAGIC:
            try:
                parameters = zstandard.get_frame_parameters(header)
                position += zstandard.frame_header_size(header)
            except zstandard.ZstdError as error:
                raise CorruptSliceError(path, str(error)) from None
            position = _zstd_frame_end(path, file, position, length)
            position += 4 * parameters.has_checksum
        else:
            raise CorruptSliceError(path, f"no zstd frame begins at byte {position}")
    if position > length:
        raise CorruptSliceError(path, f"truncated: {position - length} bytes or more are missing")


def _zstd_frame_end(path: Path, file: BinaryIO, position: int, length: int) -> int:
    while position < length:
        file.seek(position)
        header = int.from_bytes(file.read(3), "little")
        kind = header >> 1 & 3
        if kind > _COMPRESSED_BLOCK:
            raise CorruptSliceError(path, f"reserved zstd block type at byte {position}")
        position += 3 + (1 if kind == _RLE_BLOCK else header >> 3)
        if header & 1:
            return position
    raise CorruptSliceError(path, "truncated inside a zstd frame")


def _gzip_chunks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    data = file.read(_READ_BYTES)
    if not data:
        raise CorruptSliceError(path, "the file is empty")
    try:
        while data:
            member = IgzipDecompressor(flag=DECOMP_GZIP)
            while not member.eof:
                if member.needs_input and not data and not (data := file.read(_READ_BYTES)):
                    raise CorruptSliceError(path, "truncated inside a gzip member")
                chunk = member.decompress(data, PIECE_BYTES)
                data = b""
                if chunk:
                    yield chunk
            data = member.unused_data or file.read(_READ_BYTES)
    except IsalError as error:  # type: ignore[misc]  # the stub declares an instance
        raise CorruptSliceError(path, str(error)) from None
