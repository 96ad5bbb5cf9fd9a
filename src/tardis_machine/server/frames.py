"""WebSocket frames of a server: text, many at once, and control."""

from collections.abc import Sequence
from typing import Final

_TEXT: Final = 0x81
_CLOSE: Final = 0x88
_PONG: Final = 0x8A
_NO_CODES: Final = frozenset({0, 1005, 1006})
"""Codes that stand for a close frame without one."""

PING: Final = b"\x89\x00"


class _Headers(dict[int, bytes]):
    """The header of an unmasked, final text frame by its payload's length."""

    def __missing__(self, length: int) -> bytes:
        if length < 126:
            header = bytes((_TEXT, length))
        elif length < 1 << 16:
            header = bytes((_TEXT, 126)) + length.to_bytes(2, "big")
        else:
            # Rare lengths are not kept: the table stays bounded.
            return bytes((_TEXT, 127)) + length.to_bytes(8, "big")
        self[length] = header
        return header


_HEADERS: Final = _Headers()


def text_frames(ndjson: bytes) -> bytes:
    """Turn whole lines into one buffer with a text frame per line.

    No Python statement runs per message: at half a million frames per second that is what counts.
    """
    lines = ndjson.split(b"\n")
    lines.pop()
    return frames_of(lines)


def frames_of(messages: Sequence[bytes]) -> bytes:
    """Turn messages into one buffer with a text frame for each."""
    parts = [b""] * (2 * len(messages))
    parts[::2] = map(_HEADERS.__getitem__, map(len, messages))
    parts[1::2] = messages
    return b"".join(parts)


def close_frame(code: int, reason: bytes = b"") -> bytes:
    """Build a close frame; its reason holds at most 123 bytes."""
    body = b"" if code in _NO_CODES else code.to_bytes(2, "big") + reason
    return bytes((_CLOSE, len(body))) + body


def pong_frame(data: bytes) -> bytes:
    """Answer a ping with what it said, at most 125 bytes."""
    return bytes((_PONG, len(data))) + data
