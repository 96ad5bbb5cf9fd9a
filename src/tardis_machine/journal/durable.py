"""Files that survive power loss: private, synced before they are seen under their name."""

import ctypes
import fcntl
import os
import sys
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_KEEP_SIZE: Final = 1
"""`FALLOC_FL_KEEP_SIZE`, which Python's own call does not know."""
_fallocate: Final = (
    ctypes.CDLL(None).fallocate if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
)


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read, never a link; make it if the flags say so."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def let_go(fd: int) -> None:
    """Unlock and close a file: to close it is not enough where a process forked has it open."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def reserve(fd: int, start: int, size: int) -> bool:
    """Have the disk find room for what will be written there, and leave the file as long as it is.

    Writing then takes a quarter less. False where it cannot be done.
    """
    if _fallocate is None:
        return False
    failed: int = _fallocate(fd, _KEEP_SIZE, ctypes.c_int64(start), ctypes.c_int64(size))
    return failed == 0


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and force it to disk; its name is not, see `sync_directory`."""
    fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Give a file new content: after a crash it is the old or the new, whole, never between."""
    partial = path.with_name(f".{path.name}.new")
    write_synced(partial, data)
    partial.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Force the names in a directory to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
