"""Envelopes one after another in a stream: each with its length, a varint, before it."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tardis_machine.bronze.errors import DecodeError
from tardis_machine.bronze.varints import varint

MAX_LENGTH: Final = 64 * 1024 * 1024
"""A longer envelope is taken for a stream of something else."""
_MAX_VARINT: Final = 5


class Frame(NamedTuple):
    """An envelope's bytes and where its length began in the stream."""

    value: bytes
    offset: int


def frame(value: bytes) -> bytes:
    """Write an envelope with its length before it."""
    return varint(len(value)) + value


def read_frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Part a stream, of which no more than one envelope is kept.

    DecodeError for a length that cannot be one, and for an end inside an envelope: what follows
    has no known beginning then.
    """
    buffer = bytearray()
    consumed = 0
    for chunk in chunks:
        buffer += chunk
        start = 0
        while (header := _read_length(buffer, start, consumed)) is not None:
            length, begin = header
            if len(buffer) < begin + length:
                break
            yield Frame(bytes(buffer[begin : begin + length]), consumed + start)
            start = begin + length
        del buffer[:start]
        consumed += start
    if buffer:
        raise DecodeError(f"the stream ends inside the envelope at byte {consumed}")


def _read_length(buffer: bytearray, start: int, consumed: int) -> tuple[int, int] | None:
    length = 0
    for index, byte in enumerate(buffer[start : start + _MAX_VARINT]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if length > MAX_LENGTH:
                break
            return length, start + index + 1
    else:
        if len(buffer) < start + _MAX_VARINT:
            return None
    raise DecodeError(
        f"no envelope begins at byte {consumed + start}: its length would be over {MAX_LENGTH}"
    )
