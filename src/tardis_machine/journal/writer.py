"""The server's end of the journal: entries appended before they are sent."""

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tardis_machine.backoff import Backoff
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import durable, entry, log, ring, segment
from tardis_machine.journal.directory import Directory
from tardis_machine.journal.space import LARGEST_SEGMENT, Space
from tardis_machine.journal.syncer import Syncer, SyncState

_log = logging.getLogger(__name__)

_SPARE_BYTES: Final = 16 * 1024
_LEAST_RESERVED: Final = 1 << 20
_SHORTEST_RENEWAL_S: Final = 1.0
_LONGEST_RENEWAL_S: Final = 60.0
"""How often an idle log tries a new segment while syncs fail: each leaves a file."""
_RINGS_AT_LEAST: Final = 32
"""How many times a ring's size a journal, and its disk, have to hold."""


class FileLimitError(TardisMachineError):
    """An entry is larger than this process may make a file."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(
            f"{size} bytes do not fit into a file of the journal: expected the limit of a file's "
            "size (ulimit -f, LimitFSIZE) to be larger"
        )


class LogGoneError(TardisMachineError):
    """Somebody has deleted or moved the log that this process writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(
            "the journal is gone: it was deleted or moved while the server ran, and what is to be "
            "published has no place; start the server again"
        )


class Writer:
    """Appends to the one log that this process owns; used by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        producer_id: str,
        buses: Sequence[str],
        *,
        max_bytes: int,
        destinations: Mapping[str, str] | None = None,
        adopt: bool = False,
        stall_s: float = 60.0,
        fsync: float | None = 0.5,
        segment_bytes: int = LARGEST_SEGMENT,
        ring_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start a log, for buses that go to these destinations.

        `fsync`: seconds between syncs, 0 for every append, None for never. `ring_bytes`: how much
        may be on its way through a ring. Raises BoundError if the directory belongs to another
        configuration.
        """
        journal = Directory(directory)
        known = dict(destinations or {})
        meta = log.Meta(producer_id, list(buses), os.getpid(), destinations=known)
        with journal.entrance():
            journal.bind({bus: known.get(bus, "") for bus in buses}, adopt=adopt)
            name = journal.next_log(secrets.token_hex(4))
            self.path, self._lock = log.create(directory, name, meta)
        self.messages = 0
        self._written = 0
        self._passed_by = 0
        self._fsync = fsync
        self._spare = self.path / "spare"
        self._number = -1
        self._fd = -1
        self._size = 0
        self._reserved = 0
        self._file_full = False
        self._sealed_at = -1
        self._sure = 0
        self._written_to = False
        self._clock = clock
        self.syncing = SyncState()
        self._dirty = False
        self._unsynced: OSError | None = None
        self._renewals = Backoff(_SHORTEST_RENEWAL_S, _LONGEST_RENEWAL_S)
        self._renew_at = 0.0
        self._syncer: Syncer | None = None
        self.ring: ring.Ring | None = None
        """What entries may be written through, by another thread; None where there is none."""
        try:
            self.space = Space(
                journal,
                buses,
                max_bytes=max_bytes,
                stall_s=stall_s,
                segment_bytes=segment_bytes,
                clock=clock,
            )
            self._rotate()
            self._syncer = Syncer(self.path, fsync, self.syncing) if fsync else None
            # Who has every entry synced before it is sent has it written before, too.
            room = min(max_bytes, journal.free_bytes())
            if ring_bytes and fsync != 0 and ring_bytes * _RINGS_AT_LEAST <= room:
                self.ring = ring.create(self.path, ring_bytes, self._syncer)
        except BaseException:
            if self._syncer is not None:
                self._syncer.stop()
            if self._fd >= 0:
                os.close(self._fd)
            durable.let_go(self._lock)
            raise

    def append(
        self,
        provenance: bytes,
        data: entry.Buffer,
        count: int,
        position: int,
        *,
        hidden: bool = False,
    ) -> bool:
        """Write one entry; False if it does not fit, FileLimitError if it never will.

        LogGoneError if nobody could find it there.
        """
        size = entry.HEADER_BYTES + len(provenance) + len(data)
        self._recall()

        def write() -> bool:
            if self._ends(size) and not self._rotate():
                return False
            self._reserve(size)
            if self._pass_on(provenance, data, count, position, size, hidden=hidden):
                return True
            now = time.time_ns() // 1000
            head = entry.header(provenance, data, count, position, now, hidden=hidden)
            parts = (head, provenance, data)
            if self._write(parts, size):
                return True
            # Where files are limited, the next one takes it.
            return self._file_full and self._rotate() and self._write(parts, size)

        try:
            if self.ring is not None and self._ends(size):
                self.space.ask()  # for all of the next one now, and not again in the middle of it
            if not self.space.take(size + segment.HEADER_BYTES, write):
                return False
        except FileNotFoundError:
            raise LogGoneError(self.path) from None
        self.find()
        self.messages += count
        self._written += count
        self._grant()
        return True

    @property
    def appended(self) -> int:
        """Count all messages, those too that went through the ring a moment ago.

        May be asked by any thread.
        """
        ring = self.ring
        return self._written + (self._passed_by if ring is None else ring.shared.appended)

    def renew(self) -> None:
        """Let the ring have more before it has used up what it has."""
        if self.ring is None or not self._sure:
            return
        self._note(self.ring)
        if not self.space.ask():
            self._recall()
            return
        end = min(self._size + self.space.granted, self.space.segment_bytes)
        if end > self._sure and durable.reserve(self._fd, self._sure, end - self._sure):
            self._sure = end
            self._reserved = max(end, self._reserved)
            self.ring.shared.extend(end)

    def find(self) -> None:
        """Make sure that what was written lies where readers look for it; LogGoneError if not.

        A file that is open may be written to after it was deleted, or another put in its place.
        """
        written = self._size if self.ring is None or self.ring.is_empty else 0
        try:
            found = segment.segment_path(self.path, self._number).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise LogGoneError(self.path) from None
        if not os.path.samestat(found, os.fstat(self._fd)) or found.st_size < written:
            raise LogGoneError(self.path)

    def tend(self) -> None:
        """Leave nothing in the ring if nobody else empties it."""
        if self.ring is not None:
            self.ring.tend()

    def sync(self) -> None:
        """Force to disk what was appended, if that is not to wait for an interval.

        Raises OSError if that fails, also if it failed when a segment was left in the meantime.
        """
        if self._fsync != 0:
            return
        with self._noting_failure():
            os.fdatasync(self._fd)
            self.syncing.succeed(self._number)
        self._dirty = False
        failed, self._unsynced = self._unsynced, None
        if failed is not None:
            raise failed

    def seal_if_idle(self) -> None:
        """Begin a new segment if nothing was appended since the last call and space is short.

        Other servers may need the room, and cannot skip what is being written to.
        """
        self._recall()
        idle, self._sealed_at = self._sealed_at == self.messages, self.messages
        short = 2 * self.space.used > self.space.max_bytes
        if idle and short and self._size > segment.HEADER_BYTES:
            self._rotate()
        self._renew_segment()
        self._grant()

    def _renew_segment(self) -> None:
        """Begin and sync a new segment after a failed sync; leave an empty one ever more rarely."""
        if not self.syncing.reason:
            self._renewals.reset()
            self._renew_at = 0.0
        elif self.syncing.wants_segment and (
            self._size > segment.HEADER_BYTES or self._clock() >= self._renew_at
        ):
            self._renew_at = self._clock() + self._renewals.next_pause_s()
            if self._rotate():
                with contextlib.suppress(OSError):  # the state says it
                    self.sync()

    def make_room(self, *, forced: bool) -> bool:
        """Give up the oldest segment at the expense of stalled buses, or of the furthest behind."""
        self._recall()
        if self._size > segment.HEADER_BYTES and len(segment.list_log(self.path).segments) == 1:
            # The only segment may have to go: it can once it is not the one written to.
            self._rotate()
        return self.space.skip_oldest(forced=forced)

    def close(self) -> bool:
        """End the log, however long the disk takes. The publisher deletes it once it is delivered.

        False if the disk refuses the rest of the ring: the next reader of the log writes it.
        """
        whole = self._end_ring()
        if whole and self._fd >= 0 and self._size > segment.HEADER_BYTES:
            # The next segment's header says how many messages there are before it, so that the
            # last of them do not pass for a write that was cut off if they are damaged.
            with contextlib.suppress(OSError):
                self._rotate()
        if self._syncer is not None:
            self._syncer.stop()
        if self._fd >= 0:
            self._release()
            if self._fsync is not None:
                with self._noting_failure():
                    os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
            durable.let_go(self._lock)
        return whole

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Keep a failed sync for the state, and for the next call of `sync`."""
        try:
            yield
        except OSError as error:
            self._unsynced = error
            self.syncing.fail(error)

    def _rotate(self) -> bool:
        """Begin the next segment; False if the disk has no room for it."""
        self._settle()
        number = self._number + 1
        path = segment.segment_path(self.path, number)
        fd = self._begin(path, number)
        if fd is None and self._spare.exists():
            # Without it a log of one segment could never give that up on a full disk.
            self._spare.unlink()
            fd = self._begin(path, number)
        if fd is None:
            return False
        if not self._spare.exists():
            with contextlib.suppress(OSError):
                spare = durable.open_private(self._spare, os.O_WRONLY | os.O_CREAT)
                durable.write_all(spare, bytes(_SPARE_BYTES))
                os.close(spare)
        if self._fd >= 0:
            self._release()
            if self._fsync is None:
                os.close(self._fd)
            elif self._syncer is None:
                if self._dirty:  # else the caller of `sync` has got the failure
                    with self._noting_failure():
                        os.fdatasync(self._fd)
                os.close(self._fd)
            elif self._written_to:
                self._syncer.retire(self._fd, self._number)
            else:  # by whoever empties the ring, who syncs it
                os.close(self._fd)
                self._syncer.begin()
        self._dirty = True
        self.syncing.begin(number)
        if number == 0 and self._fsync is not None:
            durable.sync_directory(self.path)
        elif self._fsync == 0:
            with self._noting_failure():
                durable.sync_directory(self.path)
        self._fd, self._number, self._size = fd, number, segment.HEADER_BYTES
        self._reserved = self._sure = 0
        # After a failed sync a segment that stays empty is synced as well: it may be good again.
        self._written_to = bool(self.syncing.reason) and self._syncer is not None
        if self._written_to and self._syncer is not None:
            self._syncer.dirty(fd, number)
        return True

    def _ends(self, size: int) -> bool:
        """Return whether so many bytes more belong into another segment.

        Nothing goes behind bytes that a failed sync may have lost: they would end the reading.
        """
        over = self._size + size > self.space.segment_bytes
        return (over and self._size > segment.HEADER_BYTES) or self.syncing.wants_segment

    def _recall(self) -> None:
        """Take over from the ring, at the place that it has got to."""
        if self.ring is not None:
            self.ring.shared.extend(0)
            self._note(self.ring)

    def _note(self, ring: ring.Ring) -> None:
        """Have the books say what went through the ring."""
        offset, messages = ring.shared.report()
        if messages:
            self.space.spend(offset - self._size)
            self._size = offset
            self.messages += messages

    def _grant(self) -> None:
        """Let the ring have all that the segment has room for without asking."""
        if self.ring is not None and self._sure > self._size:
            end = self._size + self.space.granted
            limit, segment_end = min(self._sure, end), self.space.segment_bytes
            path = str(segment.segment_path(self.path, self._number))
            inode = os.fstat(self._fd).st_ino
            self.ring.shared.grant(self._number, self._size, limit, segment_end, path, inode)

    def _pass_on(
        self,
        provenance: bytes,
        data: entry.Buffer,
        count: int,
        position: int,
        size: int,
        *,
        hidden: bool,
    ) -> bool:
        """Put an entry into the ring, behind what is there; False if that cannot be."""
        if self.ring is None or self._size + size > self._sure:
            return False
        place = self._number, self._size
        shared = self.ring.shared
        passed = shared.pass_on(*place, provenance, data, count, position, hidden)
        if not passed and self._settle():
            passed = shared.pass_on(*place, provenance, data, count, position, hidden)
        self._size += size if passed else 0
        return passed

    def _settle(self) -> bool:
        """Have all written that is in the ring; False if there is none, or it is of no more use."""
        if self.ring is not None and not self.ring.settle():
            self.ring.end()
            self._leave(self.ring)
        return self.ring is not None

    def _end_ring(self) -> bool:
        """Do away with the ring; False if the disk does not take what is in it.

        Then it stays, and is written by whoever delivers the log.
        """
        self._recall()
        try:
            self._settle()
        except OSError as error:
            extra = {"log": str(self.path), "error": str(error)}
            _log.error("journal cannot be written, its ring is left as it is", extra=extra)
            if self.ring is not None:
                self._leave(self.ring)
            return False
        if self.ring is not None:
            self.ring.end()
            self._leave(self.ring)
        return True

    def _leave(self, used: ring.Ring) -> None:
        """Do without the ring, and keep count of what went through it."""
        self._passed_by = used.shared.appended
        self.ring = None

    def _reserve(self, size: int) -> None:
        """Have room found for all that may be written to this segment without asking."""
        if self._size + size > self._reserved:
            end = min(self._size + self.space.granted, self.space.segment_bytes)
            if end - self._size >= _LEAST_RESERVED:
                sure = durable.reserve(self._fd, self._size, end - self._size)
                self._sure = end if sure else 0
            self._reserved = max(end, self._size + size)

    def _release(self) -> None:
        """Give back what was reserved behind the end of a segment."""
        if self._reserved > self._size:
            with contextlib.suppress(OSError):  # it goes with the segment, at the latest
                os.ftruncate(self._fd, self._size)

    def _begin(self, path: Path, number: int) -> int | None:
        """Make a segment; None if the disk is full."""
        fd = -1
        try:
            fd = durable.open_private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            durable.write_all(fd, segment.segment_header(number, self.messages))
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                path.unlink(missing_ok=True)
            if error.errno not in segment.FULL or number == 0:
                raise
            return None
        return fd

    def _write(self, parts: Sequence[entry.Buffer], size: int) -> bool:
        """Write an entry whole or not at all; False if the disk is full."""
        self._settle()
        try:
            written = os.writev(self._fd, parts)
            if written != size:
                durable.write_all(self._fd, b"".join(parts)[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            if error.errno not in segment.FULL:
                raise
            self._file_full = error.errno == errno.EFBIG
            if self._file_full and self._size == segment.HEADER_BYTES:
                raise FileLimitError(size) from error
            return False
        self._size += size
        self._written_to = self._dirty = True
        if self._syncer is not None:
            self._syncer.dirty(self._fd, self._number)
        return True
