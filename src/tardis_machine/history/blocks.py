"""Decompression and verification of a slice's file, in bounded blocks of whole lines."""

import itertools
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import zstandard
from isal.igzip_lib import DECOMP_GZIP, IgzipDecompressor, IsalError

from tardis_machine.history.errors import CorruptSliceError

BLOCK_BYTES: Final = 1 << 18
"""Size of a decompressed chunk; a block is longer only if a line is."""

MAX_LINE_BYTES: Final = 64 << 20
"""The longest line in bytes, without its line end; a slice with a longer one is corrupt."""

_READ_BYTES: Final = 1 << 16
_BLOCKS_PER_STEP: Final = 4096
_MEMBERS_PER_STEP: Final = 512
# Windows lacks the first two, and changes line ends without the third.
_OPENING: Final = os.O_RDONLY | (
    getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_RAW_BLOCK, _RLE_BLOCK, _COMPRESSED_BLOCK = range(3)


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield a slice's lines in blocks of whole lines; raise CorruptSliceError if it is corrupt.

    A block may be empty: after thousands of empty frames or members the caller gets control, so
    that one step never takes long.
    """
    rest: list[bytes] = []
    for chunk, end in _chunks_with_line_ends(path):
        if end:
            yield b"".join((*rest, memoryview(chunk)[:end]))
            rest = [chunk[end:]]
        elif chunk:
            rest.append(chunk)
        else:
            yield b""
    if any(rest):
        yield b"".join((*rest, b"\n"))


def verify(path: Path) -> None:
    """Read a slice to its end, checksums included; raise CorruptSliceError if it is corrupt."""
    for _ in _chunks_with_line_ends(path):
        pass


def _chunks_with_line_ends(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield chunks, each with the end of its last whole line; raise if a line is too long."""
    carried = 0
    for chunk in _chunks(path):
        end = chunk.rfind(b"\n") + 1
        length = carried + (chunk.index(b"\n") if end else len(chunk))
        if length > MAX_LINE_BYTES:
            raise CorruptSliceError(path, f"a line is longer than {MAX_LINE_BYTES} bytes")
        carried = len(chunk) - end if end else length
        yield chunk, end


def _chunks(path: Path) -> Iterator[bytes]:
    with _open(path) as file:
        if path.suffix == ".zst":
            yield from _zstd_chunks(path, file)
        else:
            yield from _gzip_chunks(path, file)


def _open(path: Path) -> BinaryIO:
    """Open a regular file without blocking, so that a named pipe in the cache cannot stall it."""
    fd = os.open(path, _OPENING)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CorruptSliceError(path, "no regular file")
    return os.fdopen(fd, "rb")


def _zstd_chunks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the decompressed frames of a zstd file; raise CorruptSliceError if one is bad."""
    # The decompressor does not report a file that ends in the middle of a frame.
    yield from _check_zstd_frames(path, file)
    file.seek(0)
    reader = zstandard.ZstdDecompressor().stream_reader(
        file, read_size=_READ_BYTES, read_across_frames=True, closefd=False
    )
    try:
        while chunk := reader.read(BLOCK_BYTES):
            yield chunk
    except zstandard.ZstdError as error:
        raise CorruptSliceError(path, str(error)) from None


def _check_zstd_frames(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Raise CorruptSliceError if a frame is not there to its last byte, by its block headers.

    Yields an empty chunk every few thousand headers.
    """
    steps = itertools.count(1)
    length = file.seek(0, 2)
    if not length:
        raise CorruptSliceError(path, "the file is empty")
    position = 0
    while position < length:
        if next(steps) % _BLOCKS_PER_STEP == 0:
            yield b""
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
            position = yield from _zstd_frame_end(path, file, position, length, steps)
            position += 4 * parameters.has_checksum
        else:
            raise CorruptSliceError(path, f"no zstd frame begins at byte {position}")
    if position > length:
        raise CorruptSliceError(path, f"truncated: {position - length} bytes or more are missing")


def _zstd_frame_end(
    path: Path, file: BinaryIO, position: int, length: int, steps: Iterator[int]
) -> Generator[bytes, None, int]:
    """Return the end of a frame's blocks; yield an empty chunk every few thousand headers."""
    while position < length:
        if next(steps) % _BLOCKS_PER_STEP == 0:
            yield b""
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
    """Yield the decompressed members of a gzip file; raise CorruptSliceError if one is bad."""
    data = file.read(_READ_BYTES)
    if not data:
        raise CorruptSliceError(path, "the file is empty")
    try:
        for members in itertools.count(1):
            if not data:
                break
            if members % _MEMBERS_PER_STEP == 0:
                yield b""
            member = IgzipDecompressor(flag=DECOMP_GZIP)
            while not member.eof:
                if member.needs_input and not data and not (data := file.read(_READ_BYTES)):
                    raise CorruptSliceError(path, "truncated inside a gzip member")
                chunk = member.decompress(data, BLOCK_BYTES)
                data = b""
                if chunk:
                    yield chunk
            data = member.unused_data or file.read(_READ_BYTES)
    except IsalError as error:  # type: ignore[misc]  # the stub declares an instance
        raise CorruptSliceError(path, str(error)) from None
