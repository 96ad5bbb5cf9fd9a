"""NDJSON from a pipe in batches fit for encoding: none ends inside one local time."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from tardis_machine.bronze.errors import EncodeError

MAX_BATCH: Final = 64 * 1024 * 1024
"""Bytes of one local time; thousands of full books."""
# A quote inside of a string follows a backslash, so this is found in no string.
_LOCAL_TIME: Final = re.compile(rb'"localTimestamp":"[^"]*"')
_KEY: Final = b'"localTimestamp":"'


def batches(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Put chunks of any size together to batches of whole lines and whole local times.

    Lines without a local time belong to the time before them.
    """
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        border = _border(buffer)
        if border:
            yield buffer[:border]
            buffer = buffer[border:]
        if len(buffer) > MAX_BATCH:
            raise EncodeError(f"over {MAX_BATCH} bytes in one line or one local time")
    if buffer:
        yield buffer


def _border(buffer: bytes) -> int:
    """Find where the first line of the last local time begins."""
    end = buffer.rfind(b"\n") + 1
    at = buffer.rfind(_KEY, 0, end)
    if at < 0:
        return 0
    match = _LOCAL_TIME.match(buffer, at)
    last = match[0] if match else _KEY
    while True:
        line = buffer.rfind(b"\n", 0, at) + 1
        before = buffer.rfind(_KEY, 0, line)
        if before < 0:
            return 0
        if not buffer.startswith(last, before):
            return line
        at = before
