import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from tardis_machine.history.blocks import BLOCK_BYTES, MAX_LINE_BYTES, read_blocks, verify
from tardis_machine.history.errors import CorruptSliceError

ZSTD_HEADER = (0xFD2FB528).to_bytes(4, "little") + bytes([0, 0x38])
"""Of a frame without checksum or size; blocks follow."""
SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + bytes(4)


def stamp(second: int) -> str:
    return f"2024-03-01T00:{second // 60:02}:{second % 60:02}.0000000Z"


def lines(count: int, width: int = 40) -> bytes:
    return b"".join(
        f"{stamp(each % 3600)} {str(each * 7919 % 10**9).zfill(width)}\n".encode()
        for each in range(count)
    )


def compress(data: bytes, suffix: str, parts: int = 1) -> bytes:
    step = -(-len(data) // parts) or 1
    cuts = [data[start : start + step] for start in range(0, len(data), step)]
    if suffix == "gz":
        return b"".join(gzip.compress(each, 1) for each in cuts)
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(compressor.compress(each) for each in cuts)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("parts", [1, 3])
def test_pieces_are_whole_lines_of_bounded_size(tmp_path: Path, suffix: str, parts: int) -> None:
    data = lines(20_000)
    path = tmp_path / f"00.json.{suffix}"
    path.write_bytes(compress(data, suffix, parts))
    got = list(read_blocks(path))
    assert b"".join(got) == data
    assert len(got) > 4
    assert all(block.endswith(b"\n") for block in got)
    assert max(map(len, got)) <= BLOCK_BYTES + 100
    verify(path)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_high_ratio_does_not_swell_the_pieces(tmp_path: Path, suffix: str) -> None:
    line = stamp(0).encode() + b" " + b"0" * 70 + b"\n"
    path = tmp_path / f"00.json.{suffix}"
    path.write_bytes(compress(line * 200_000, suffix))
    assert path.stat().st_size < 300_000
    assert max(map(len, read_blocks(path))) <= BLOCK_BYTES + len(line)


def test_a_line_longer_than_a_piece_stays_whole(tmp_path: Path) -> None:
    data = stamp(0).encode() + b" " + b"x" * (3 * BLOCK_BYTES) + b"\n" + lines(3)
    path = tmp_path / "00.json.zst"
    path.write_bytes(compress(data, "zst"))
    assert b"".join(read_blocks(path)) == data
    assert all(block.endswith(b"\n") for block in read_blocks(path))


def test_the_last_line_may_lack_its_end(tmp_path: Path) -> None:
    path = tmp_path / "00.json.gz"
    path.write_bytes(gzip.compress(lines(3)[:-1]))
    assert b"".join(read_blocks(path)) == lines(3)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_an_empty_minute_is_no_fault(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"00.json.{suffix}"
    compressor = zstandard.ZstdCompressor()
    path.write_bytes(gzip.compress(b"") if suffix == "gz" else compressor.compress(b""))
    assert list(read_blocks(path)) == []


def test_skippable_frames_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "00.json.zst"
    skippable = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    path.write_bytes(skippable + compress(lines(3), "zst"))
    assert b"".join(read_blocks(path)) == lines(3)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("left_away", [1, 3, 4, 9, 1000, -3, -10, -30])
def test_a_truncated_file_is_told(tmp_path: Path, suffix: str, left_away: int) -> None:
    path = tmp_path / f"00.json.{suffix}"
    path.write_bytes(compress(lines(20_000), suffix, 2)[:-left_away])
    with pytest.raises(CorruptSliceError, match=str(path)):
        verify(path)


@pytest.mark.parametrize("content", [b"", b"<html>Bad gateway</html>" * 9])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_what_is_no_compressed_file_is_told(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"00.json.{suffix}"
    path.write_bytes(content)
    with pytest.raises(CorruptSliceError):
        list(read_blocks(path))


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("place", [0.1, 0.37, 0.5, 0.93])
def test_a_flipped_byte_is_told(tmp_path: Path, suffix: str, place: float) -> None:
    path = tmp_path / f"00.json.{suffix}"
    data = bytearray(compress(lines(20_000), suffix))
    data[int(len(data) * place)] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(CorruptSliceError):
        verify(path)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_line_of_the_greatest_length_is_read(tmp_path: Path, suffix: str) -> None:
    data = lines(1) + bytes(MAX_LINE_BYTES) + b"\n" + lines(1)
    path = tmp_path / f"00.json.{suffix}"
    path.write_bytes(compress(data, suffix))
    assert b"".join(read_blocks(path)) == data
    verify(path)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("tail", [b"\n", b"", b"\n" + lines(3)])
def test_line_that_is_too_long_makes_its_slice_corrupt(
    tmp_path: Path, suffix: str, tail: bytes
) -> None:
    path = tmp_path / f"00.json.{suffix}"
    path.write_bytes(compress(lines(3) + bytes(MAX_LINE_BYTES + 1) + tail, suffix))
    for read in (verify, lambda path: list(read_blocks(path))):
        with pytest.raises(CorruptSliceError, match=f"longer than {MAX_LINE_BYTES} bytes"):
            read(path)


def test_line_without_end_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "00.json.zst"
    # A raw frame of blocks that each repeat one byte: four bytes stand for 128 KiB.
    count = 1 << 20
    frame = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    path.write_bytes(ZSTD_HEADER + frame * count + last)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptSliceError, match="longer than"):
            list(read_blocks(path))
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("suffix", "unit", "end"),
    [
        ("zst", bytes(3), (1).to_bytes(3, "little")),
        ("zst", (1).to_bytes(3, "little") + ZSTD_HEADER, (1).to_bytes(3, "little")),
        ("zst", (1).to_bytes(3, "little") + SKIPPABLE + ZSTD_HEADER, (1).to_bytes(3, "little")),
        ("gz", gzip.compress(b"", mtime=0), b""),
    ],
    ids=["blocks", "frames", "skippable", "members"],
)
def test_file_of_empty_parts_is_read_in_steps(
    tmp_path: Path, suffix: str, unit: bytes, end: bytes
) -> None:
    path = tmp_path / f"00.json.{suffix}"
    start = ZSTD_HEADER if suffix == "zst" else b""
    path.write_bytes(start + unit * 20_000 + end)
    got = list(read_blocks(path))
    assert len(got) >= 4
    assert set(got) == {b""}
    verify(path)


def test_named_pipe_among_slices_is_corrupt_and_nobody_waits_for_its_writer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "00.json.zst"
    os.mkfifo(path)
    for read in (verify, lambda path: list(read_blocks(path))):
        with pytest.raises(CorruptSliceError, match="no regular file"):
            read(path)
