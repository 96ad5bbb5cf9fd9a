"""Frames as RFC 6455 lays them out."""

import pytest

from tardis_machine.server.frames import text_frames


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (1, b"\x81\x01"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65535, b"\x81\x7e\xff\xff"),
        (65536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_a_frame_per_line(length: int, header: bytes) -> None:
    line = b"x" * length
    assert text_frames(line + b"\n") == header + line
    assert text_frames(b"ab\n" + line + b"\n") == b"\x81\x02ab" + header + line


def test_nothing_is_no_frame() -> None:
    assert text_frames(b"") == b""
