"""A bus's place in a log, kept on disk, and what became of every message before it."""

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

import msgspec
from isal import isal_zlib

from tardis_machine.journal.durable import open_private, write_all

_SLOT_BYTES: Final = 512
_HEAD: Final = struct.Struct("<II")


class CursorState(msgspec.Struct, array_like=True):
    """Where a bus stands and how its accounts are.

    `seen` counts the messages of the log before the cursor, so that seen = filtered + delivered +
    dead_lettered + dropped.
    """

    segment: int = 0
    offset: int = 0
    seen: int = 0
    filtered: int = 0
    delivered: int = 0
    duplicates: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    generation: int = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset


_decoder = msgspec.msgpack.Decoder(CursorState)


def read_state(path: Path) -> CursorState:
    """Read the newer valid slot; a cursor that was never written stands at the beginning."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return CursorState()
    found = CursorState()
    for start in (0, _SLOT_BYTES):
        if len(content) < start + _HEAD.size:
            continue
        checksum, size = _HEAD.unpack_from(content, start)
        body = content[start + _HEAD.size : start + _HEAD.size + min(size, _SLOT_BYTES)]
        if not size or len(body) != size or isal_zlib.crc32(body) != checksum:
            continue
        try:
            state = _decoder.decode(body)
        except msgspec.MsgspecError:
            continue
        if state.generation > found.generation:
            found = state
    return found


def reserve(path: Path) -> None:
    """Make an empty cursor that has its space already, so that a full disk cannot stop it."""
    fd = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        write_all(fd, bytes(2 * _SLOT_BYTES))
    finally:
        os.close(fd)


class Cursor:
    """The owner's hold on a cursor file; others only `read_state` it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = read_state(path)
        self._fd: int | None = None

    def save(self) -> None:
        """Write the state into the slot that does not hold the previous one."""
        if self._fd is None:
            self._fd = open_private(self.path, os.O_RDWR | os.O_CREAT)
        self.state.generation += 1
        body = msgspec.msgpack.encode(self.state)
        slot = _SLOT_BYTES * (self.state.generation % 2)
        os.pwrite(self._fd, _HEAD.pack(isal_zlib.crc32(body), len(body)) + body, slot)

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None
