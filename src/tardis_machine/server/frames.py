"""WebSocket frames of a server: text, many at once, and control."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tardis_machine.engine import Written
from tardis_machine.engine.choice import kernel
from tardis_machine.history.recorded_lines import MESSAGE, are_stamped, is_stamped, split

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


def text_frames(ndjson: Written) -> bytes:
    """Turn whole lines into one buffer with a text frame per line.

    No Python statement runs per message: at half a million frames per second that is what counts.
    """
    module = kernel().module
    if module is not None:
        frames: bytes = module.text_frames(ndjson)
        return frames
    return _frames_of(split(bytes(ndjson)))


class Recorded(NamedTuple):
    """Frames of recorded messages, how many, and how many lines had no stamp and are left out."""

    frames: bytes
    messages: int
    malformed: int


def recorded_frames(piece: bytes) -> Recorded:
    """Turn a piece of recorded lines into one buffer with a text frame per message."""
    module = kernel().module
    found = None if module is None else module.raw_frames(piece)
    if found is not None:
        frames, messages = found
        return Recorded(frames, messages, 0)
    lines = split(piece)
    proper = lines if are_stamped(lines) else [line for line in lines if is_stamped(line)]
    malformed = sum(map(bool, lines)) - len(proper)
    return Recorded(_frames_of([line[MESSAGE:] for line in proper]), len(proper), malformed)


def _frames_of(messages: Sequence[bytes]) -> bytes:
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
