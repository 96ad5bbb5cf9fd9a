"""The ring: entries on their way to their segment, in memory that a server and a publisher share.

To write entries to a file takes a server a fifth of a replay's time. So a replay appends them to
the ring, a mapped file of the log, and the publisher's process writes them to the segment, in their
order and at the places that the server chose for them. What is in the ring survives whoever is
killed, and all of them at once: whoever finds the log of a dead server writes the rest. Where
nobody empties the ring, its server does it.

Layout: what it is, of which boot of the machine, how many bytes were ever appended (head) and are
written (tail), whether the reader waits to be woken, whether the ring is in use, how many bytes of
entries there were, for who wants to know how fast they come; then the room for records: length,
segment, offset, and the entry without its checksum. Records are not cut where the room ends, and
begin anew at its front long before that while they are written at once: a small part of the room
stays in the processors' caches. To write one again does no harm: it is the same at the same place.
Behind the head the kernel makes the text of entries to come (`kernel/src/loan.rs`), which nobody
reads before the head has passed it.
"""

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Final, Protocol

from isal import isal_zlib

from tardis_machine.engine.choice import kernel
from tardis_machine.journal import durable, segment
from tardis_machine.journal.syncer import Syncer, SyncState
from tardis_machine.log import Throttle

_log = logging.getLogger(__name__)

NAME: Final = "ring"
LOW: Final = 2
_MAGIC: Final = b"tmring01"
_BOOT: Final = slice(8, 44)
_HEAD: Final = 64
_TAIL: Final = 128
_STATE: Final = 196
_WRITTEN: Final = 256
_ROOM: Final = 4096
_OPEN, _ENDED, _ABANDONED = 0, 1, 2

_COUNT: Final = struct.Struct("<Q")
_RECORD: Final = struct.Struct("<QQQ")
_SKIP: Final = (1 << 64) - 1
_STEP: Final = 8
_CHECKSUM: Final = struct.Struct("<I")

_PATIENCE_S: Final = 0.75
"""How long nothing may move before a server does it itself, whatever the publisher is at."""
_NAP_S: Final = 0.0005
_AWAKE_MS: Final = 20
_RETRY_S: Final = 0.25
_HUGE_PAGE: Final = 2 << 20
# Files that stay where they are when they are written over, so that there is always room for it.
# On others a full disk would end the process that writes to mapped memory.
_IN_PLACE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})


class Shared(Protocol):
    """The kernel's side of a ring: what has to be seen in order by another processor."""

    @property
    def head(self) -> int: ...

    @property
    def tail(self) -> int: ...

    def advance(self, tail: int, /) -> None: ...


class Appending(Shared, Protocol):
    """The same for who appends to it, and for who waits for that."""

    @property
    def used(self) -> int:
        """Count the bytes on their way, without what is left out at the end of the room."""
        ...

    @property
    def appended(self) -> int:
        """Count the messages that were ever appended by a grant."""
        ...

    def append(self, provenance: bytes, data: object, count: int, position: int, /) -> int:
        """Append an entry by the grant; 0 if it cannot be, `LOW` if it is time to ask for more."""
        ...

    def pass_on(
        self,
        number: int,
        offset: int,
        provenance: bytes,
        data: object,
        count: int,
        position: int,
        hidden: bool,
        /,
    ) -> bool:
        """Append an entry to a segment at an offset; False if there is no room for it."""
        ...

    def grant(
        self, number: int, offset: int, limit: int, end: int, path: str, inode: int, /
    ) -> None:
        """Let entries be appended to a segment that has this end, from an offset to a limit."""
        ...

    def extend(self, limit: int, /) -> None: ...

    def report(self) -> tuple[int, int]: ...

    def upcoming(self) -> int | None:
        """Return the segment that the next record belongs to; None if there is none."""
        ...

    def carry(self, number: int, fd: int, patience_ms: int, /) -> int | None:
        """Write what there is for a segment; gives the next one's number, None if there is none."""
        ...

    def doze(self) -> bool: ...

    def rouse(self) -> None: ...


class _Left:
    """A ring that nobody uses any more."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        (self.head,) = _COUNT.unpack_from(memory, _HEAD)
        (self.tail,) = _COUNT.unpack_from(memory, _TAIL)

    def advance(self, tail: int) -> None:
        self.tail = tail
        _COUNT.pack_into(self._memory, _TAIL, tail)


class _Files:
    """The segment that is written to."""

    def __init__(self, log: Path, syncer: Syncer | None) -> None:
        self.number = -1
        self.fd = -1
        self._log = log
        self._syncer = syncer

    def open(self, number: int) -> int:
        """Have a segment open, and no other; FileNotFoundError if somebody has deleted it."""
        if number != self.number:
            self.close()
            path = segment.segment_path(self._log, number)
            self.fd = durable.open_private(path, os.O_WRONLY)
            self.number = number
        return self.fd

    def mark(self) -> None:
        """Have it synced."""
        if self._syncer is not None and self.fd >= 0:
            self._syncer.dirty(self.fd, self.number)

    def close(self) -> None:
        if self.fd >= 0:
            if self._syncer is None:
                os.close(self.fd)
            else:
                self._syncer.retire(self.fd, self.number)
            self.fd, self.number = -1, -1


class Carrier:
    """Writes what is in a ring to the segments where it belongs, when nobody is in a hurry."""

    def __init__(self, log: Path, memory: mmap.mmap, shared: Shared, syncer: Syncer | None) -> None:
        self._log = log
        self._memory = memory
        self._room = (len(memory) - _ROOM) // _STEP * _STEP
        self._shared = shared
        self._files = _Files(log, syncer)

    def carry(self) -> None:
        """Write all there is."""
        head, tail = self._shared.head, self._shared.tail
        with memoryview(self._memory) as memory:
            while tail < head:
                place = tail % self._room
                (length,) = _COUNT.unpack_from(memory, _ROOM + place)
                if length == _SKIP:
                    tail += self._room - place
                elif place + _RECORD.size + length <= self._room:
                    tail += self._write(memory, _ROOM + place)
                else:
                    extra = {"log": str(self._log), "bytes": head - tail}
                    _log.error("ring is damaged, messages not published", extra=extra)
                    tail = head
                self._shared.advance(tail)

    def close(self) -> None:
        self._files.close()

    def _write(self, memory: memoryview, at: int) -> int:
        """Write a record; gives how much room it takes."""
        length, number, offset = _RECORD.unpack_from(memory, at)
        begin = at + _RECORD.size
        with memory[begin + _CHECKSUM.size : begin + length] as body:
            checksum = _CHECKSUM.pack(isal_zlib.crc32(body))
            try:
                fd = self._files.open(number)
            except FileNotFoundError:
                _log.error("journal is gone, messages not published", extra={"log": str(self._log)})
            else:
                written = os.pwritev(fd, (checksum, body), offset)
                while written < length:
                    rest = b"".join((checksum, body))[written:]
                    written += os.pwrite(fd, rest, offset + written)
                self._files.mark()
        taken: int = -(-(_RECORD.size + length) // _STEP) * _STEP
        return taken


class Ring:
    """A server's ring."""

    def __init__(self, log: Path, fd: int, memory: mmap.mmap, syncer: Syncer | None) -> None:
        module = kernel().module
        assert module is not None
        self.path = log / NAME
        self.waits, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._fd = fd
        self._memory = memory
        self.size = len(memory)
        self.shared: Appending = module.Ring(memory, self._wakes)
        self._syncer = syncer
        self._carrier = Carrier(log, memory, self.shared, syncer)

    @property
    def used(self) -> int:
        """How many bytes are on their way."""
        return self.shared.used

    @property
    def is_empty(self) -> bool:
        """Whether all is written."""
        return self.shared.head == self.shared.tail

    def settle(self) -> bool:
        """Wait until all is written, by whoever does it; False if the ring is of no more use."""
        tail = self.shared.tail
        naps = 0  # not seconds: it may be the machine that stood still
        while not self.is_empty:
            if self._carry():
                continue
            time.sleep(_NAP_S)
            if self.shared.tail != tail:
                tail, naps = self.shared.tail, 0
            elif (naps := naps + 1) * _NAP_S > _PATIENCE_S:
                self._abandon()
                return False
        return True

    def tend(self) -> None:
        """Write what lies there, if nobody else does."""
        if not self.is_empty:
            self._carry()

    def end(self) -> None:
        """Do away with a ring that is empty."""
        self._memory[_STATE] = max(_ENDED, self._memory[_STATE])
        self.shared.rouse()
        self._carrier.close()
        self.path.unlink(missing_ok=True)
        for fd in (self._fd, self.waits, self._wakes):
            os.close(fd)

    def _carry(self) -> bool:
        """Write what there is; False if the publisher's process is there to do it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            self._carrier.carry()
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def _abandon(self) -> None:
        """Write the rest, though somebody may do the same, who stands still and has the lock.

        The memory is never written to again: when that one goes on, it writes what is there.
        """
        _log.warning("publisher stands still, the journal is written without it")
        left = _Left(self._memory)
        with contextlib.closing(Carrier(self.path.parent, self._memory, left, self._syncer)) as own:
            own.carry()
        self._memory[_STATE] = _ABANDONED


def create(log: Path, size: int, syncer: Syncer | None) -> Ring | None:
    """Make a log's ring; None where there cannot be one."""
    if kernel().module is None or sys.platform != "linux" or _kind_of_disk(log) not in _IN_PLACE:
        return None
    boot = _boot()
    if not boot:
        return None
    path = log / NAME
    size += _ROOM
    try:
        fd = durable.open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(fd, 0, size)
            _write_zeros(fd, size)
            memory = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
    except OSError as error:
        _log.info("journal has no ring", extra={"reason": str(error)})
        return None
    pages = len(range(0, size, mmap.PAGESIZE))
    memory[:: mmap.PAGESIZE] = bytes(pages)  # mapped now, and not while somebody waits for it
    memory[_BOOT] = boot
    memory[: len(_MAGIC)] = _MAGIC
    return Ring(log, fd, memory, syncer)


def _write_zeros(fd: int, size: int) -> None:
    """Write a file so that its memory comes in huge pages, where the file system has them.

    Touched page by page it would come in small ones. A server that goes through thousands of
    those again and again finds none of its own addresses in the processor's table any more.
    """
    zeros = memoryview(bytes(_HUGE_PAGE))
    for at in range(0, size, _HUGE_PAGE):
        os.pwrite(fd, zeros[: size - at], at)


def recover(log: Path) -> bool:
    """Write what a server that is gone has left in its ring; False while somebody is at it."""
    path = log / NAME
    try:
        fd = durable.open_private(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = os.fstat(fd).st_size
        if size > _ROOM:
            with mmap.mmap(fd, size) as memory:
                _recover(log, memory)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _recover(log: Path, memory: mmap.mmap) -> None:
    left = _Left(memory)
    if memory[: len(_MAGIC)] != _MAGIC or memory[_STATE] != _OPEN or left.head == left.tail:
        return
    if memory[_BOOT] != _boot():
        # What a power cut left of it nobody can tell from what was there before.
        extra = {"log": str(log), "bytes": left.head - left.tail}
        _log.error("machine went down: the last moment of a log may be lost", extra=extra)
        return
    with contextlib.closing(Carrier(log, memory, left, None)) as carrier:
        carrier.carry()


class Mover:
    """The thread of a publisher's process that empties its server's ring."""

    def __init__(self, log: Path, waits: int, fsync: float | None) -> None:
        """Open the rings; `waits` is the end of a pipe that wakes the reader.

        `fsync`: seconds between syncs, None for never.
        """
        self._log = log
        self._fsync = fsync
        self._waits = waits
        self._memory: mmap.mmap | None = None
        self._trouble = Throttle()
        self.syncing = SyncState()

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="ring", daemon=True)
        thread.start()
        return thread

    def written(self) -> int:
        """How many bytes of entries its server has ever appended; 0 when that is over."""
        memory = self._memory
        if memory is None:
            return 0
        (written,) = _COUNT.unpack_from(memory, _WRITTEN)
        return int(written)

    def _run(self) -> None:
        module = kernel().module
        if module is None:
            return
        try:
            fd = durable.open_private(self._log / NAME, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # perhaps the server is just at it
            memory = self._memory = mmap.mmap(fd, 0)
            shared: Appending = module.Ring(memory, None)
            syncer = None
            if self._fsync is not None:
                syncer = Syncer(self._log, self._fsync, self.syncing)
            files = _Files(self._log, syncer)
            try:
                while memory[_STATE] == _OPEN and self._wait(shared):
                    self._carry(shared, files)
            finally:
                files.close()
                if syncer is not None:
                    syncer.stop()
        except Exception:  # noqa: BLE001 - the server does without
            _log.exception("ring is left to the server")
        finally:
            self._memory = None  # it has the file open too, and with it the lock
            os.close(fd)

    def _carry(self, shared: Appending, files: _Files) -> None:
        """Write as long as there is something to write."""
        number = shared.upcoming()
        while number is not None:
            try:
                fd = files.open(number)
                number = shared.carry(number, fd, _AWAKE_MS)
            except FileNotFoundError:
                _log.error("journal is gone, messages not published", extra={"log": str(self._log)})
                shared.advance(shared.head)
                return
            except OSError as error:
                if self._trouble.allow() is not None:
                    _log.error("journal cannot be written", extra={"error": str(error)})
                time.sleep(_RETRY_S)
                return
            files.mark()

    def _wait(self, shared: Appending) -> bool:
        """Wait for something to do; False if there is nothing, and the server is gone."""
        if not shared.doze():
            return True
        return bool(os.read(self._waits, _ROOM)) or shared.head != shared.tail


def _boot() -> bytes:
    """Tell one life of the machine from another; empty if nobody knows."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
    size = _BOOT.stop - _BOOT.start
    return text.ljust(size)[:size]


def _kind_of_disk(path: Path) -> str:
    """Name the file system that a directory is on; empty if nobody knows."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError):
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        for line in mounts.splitlines():
            fields = line.split(" ")
            if fields[2] == number:
                return fields[fields.index("-") + 1]
    return ""
