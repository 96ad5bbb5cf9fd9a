"""A log: the subdirectory of one server process."""

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tardis_machine.config import make_private, open_directory
from tardis_machine.journal import durable, ring, segment
from tardis_machine.journal.cursor import Cursor, CursorState, read_state, reserve
from tardis_machine.log import Throttle

_log = logging.getLogger(__name__)

_LOCK: Final = "lock"
_META: Final = "log.json"
_VERSION: Final = 1
NUMBERED: Final = re.compile(r"log-(\d{12,})-[0-9a-f]{8}")
_BY_CLOCK: Final = re.compile(r"\d{8}T\d{6}\.\d{6}-[0-9a-f]{8}")
"""As logs were named before they had numbers."""
_OWN: Final = re.compile(
    r"lock|log\.json|spare|ring|\w+\.cursor|\d+\.(seg|skip|damaged)|\.(log\.json|\d+\.skip)\.new"
)
"""The files that a log is made of: no other is ever deleted."""


class Meta(msgspec.Struct):
    """Who writes a log, and for which buses: each with where it goes, if that is known."""

    producer_id: str
    buses: list[str]
    pid: int
    version: int = _VERSION
    destinations: dict[str, str] = {}


class End(NamedTuple):
    """How far a log reaches: the place behind its last whole entry, and messages before that."""

    segment: int
    offset: int
    messages: int


class Log:
    """One log as anyone but its writer sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._meta: Meta | None = None
        self._meta_torn = False
        self._finished = False
        self._end = End(-1, 0, 0)
        self._trouble = Throttle()

    def meta(self) -> Meta | None:
        """Tell whose log it is; None if that cannot be read."""
        if self._meta is None and not self._meta_torn:
            path = self.path / _META
            try:
                self._meta = msgspec.json.decode(path.read_bytes(), type=Meta)
            except FileNotFoundError:
                return None
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._meta_torn = True
                _log.error(
                    "log does not say whose it is, every bus gets it",
                    extra={"path": str(path), "error": str(error)},
                )
        return self._meta

    def buses(self, configured: Iterable[str] = ()) -> list[str]:
        """Name the buses that the log was written for; those configured if nobody knows."""
        meta = self.meta()
        return list(configured) if meta is None else meta.buses

    def destination(self, bus: str) -> str:
        """Tell where a bus was to take this log; empty if that is not known."""
        meta = self.meta()
        return "" if meta is None else meta.destinations.get(bus, "")

    def rebind(self, destinations: Mapping[str, str]) -> None:
        """Write the log over to these destinations, and to no other bus than these."""
        meta = self.meta()
        if meta is None:
            return
        kept = [bus for bus in meta.buses if bus in destinations]
        known = {bus: where for bus in kept if (where := destinations[bus])}
        changed = msgspec.structs.replace(meta, buses=kept, destinations=known)
        durable.replace(self.path / _META, msgspec.json.encode(changed))
        self._meta = changed

    def readable(self) -> bool:
        """Tell whether all of it was written by this version of the format."""
        try:
            self.check_version()
        except segment.OtherVersionError:
            return False
        return True

    def check_version(self) -> None:
        """Raise OtherVersionError if any part of it was written by another version's format."""
        meta = self.meta()
        if meta is not None and meta.version != _VERSION:
            raise segment.OtherVersionError(self.path, f"{meta.version:02}")
        for number in self.listing().segments:
            segment.first_message(self.path, number)

    def finished(self) -> bool:
        """Tell whether the writer is gone; it never comes back. What it left is written first."""
        if not self._finished:
            try:
                fd = os.open(self.path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._finished = True
                return True
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._finished = ring.recover(self.path)
            except BlockingIOError:
                pass
            except OSError as error:
                if self._trouble.allow() is not None:
                    extra = {"log": str(self.path), "error": str(error)}
                    _log.error(
                        "what a server left cannot be written, it is tried again", extra=extra
                    )
            finally:
                durable.let_go(fd)
        return self._finished

    def declare_finished(self) -> None:
        """Take the writer's word that it is gone, whoever else may keep its lock."""
        self._finished = True

    def listing(self) -> segment.Listing:
        return segment.list_log(self.path)

    def sealed(self) -> list[int]:
        """Name the segments that nobody writes to any more."""
        numbers = self.listing().segments
        return numbers if self.finished() else numbers[:-1]

    def cursor_path(self, bus: str) -> Path:
        return _cursor_path(self.path, bus)

    def cursor(self, bus: str) -> Cursor:
        return Cursor(self.cursor_path(bus))

    def cursor_state(self, bus: str) -> CursorState:
        return read_state(self.cursor_path(bus))

    def pending(self, bus: str) -> int:
        """Count the messages that a bus has yet to pass."""
        return max(0, self.end().messages - self.cursor_state(bus).seen)

    def end(self) -> End:
        """Find the log's end, reading its last segment from where the last call stopped."""
        ended = self.finished()  # asked first: what is read then is all there will be
        listing = self.listing()
        known = self._end
        torn = []
        for number in reversed(listing.segments):
            if number < known.segment:
                break
            here = number == known.segment
            start, messages = (known.offset, known.messages) if here else (None, None)
            try:
                found = segment.scan(self.path, number, start, messages, ended=ended)
            except (FileNotFoundError, segment.OtherVersionError):
                continue
            if found.size:
                known = End(number, found.size, found.end)
                break
            torn.append(number)
        for number in listing.tombstones:
            tombstone = segment.read_tombstone(self.path, number)
            if tombstone is not None and tombstone.end > known.messages:
                known = End(number + 1, segment.HEADER_BYTES, tombstone.end)
        for number in reversed(torn):
            if number >= known.segment:
                with contextlib.suppress(FileNotFoundError):
                    known = self._end_behind_torn_header(number, known)
        self._end = known
        return known

    def _end_behind_torn_header(self, number: int, known: End) -> End:
        before = max(known.messages, self._count_before(number))
        found = segment.scan(self.path, number, count=before, ended=self.finished())
        return End(number, found.size, found.end) if found.end > before else known

    def _count_before(self, number: int) -> int:
        """Count the messages before a segment that does not say it, by the log's other witnesses.

        Those are what was skipped before it, and how far buses have come.
        """
        stones = [n for n in self.listing().tombstones if n < number]
        known = [segment.read_tombstone(self.path, n) for n in stones]
        counts = [0, *(stone.end for stone in known if stone is not None)]
        ended = self.finished()
        whole = segment.scan(self.path, number, count=0, ended=ended)
        for path in self.path.glob(_cursor_path(Path(), "*").name):
            state = read_state(path)
            if state.segment < number:
                counts.append(state.seen)
            elif state.segment == number and state.offset <= whole.size:
                behind = segment.scan(self.path, number, state.offset, count=0, ended=ended)
                counts.append(state.seen - (whole.end - behind.end))
        return max(counts)

    def sizes(self) -> dict[int, int]:
        """Give each segment's size."""
        return segment.sizes(self.path)

    def ring_bytes(self) -> int:
        """Give the size of its ring."""
        try:
            return (self.path / ring.NAME).stat().st_size
        except FileNotFoundError:
            return 0

    def skipped(self, number: int, seen: int) -> int:
        """Count the messages of tombstones at or after a segment that lie behind `seen`."""
        total = 0
        for found in self.listing().tombstones:
            if found >= number:
                tombstone = segment.read_tombstone(self.path, found)
                if tombstone is not None:
                    total += max(0, tombstone.end - max(tombstone.first, seen))
        return total

    def bury(self, number: int) -> None:
        """Replace a segment by its tombstone, which counts it though its header is torn."""
        before = None
        with contextlib.suppress(FileNotFoundError):
            if segment.first_message(self.path, number) is None:
                before = self._count_before(number)
        segment.bury(self.path, number, before)

    def collect(self, before: int) -> int:
        """Delete segments and tombstones numbered below `before`; returns how many."""
        listing = self.listing()
        gone = 0
        for number in listing.segments:
            if number < before:
                segment.discard(self.path, number)
                gone += 1
        for number in listing.tombstones:
            if number < before:
                segment.discard_tombstone(self.path, number)
        return gone

    def remove(self) -> None:
        """Delete the log; a crash on the way leaves nothing that looks like a log."""
        listing = self.listing()
        self.collect(max([*listing.segments, *listing.tombstones], default=0) + 1)
        if self._meta_torn:
            segment.keep_aside(self.path, self.path / _META)
        gone = self.path.with_name(f".old-{self.name}")
        self.path.rename(gone)
        clear(gone, self.name)

    def set_aside(self) -> Path:
        """Move the whole log to where nothing is read, bounded or deleted."""
        return _set_aside(self.path, self.name)


def clear(path: Path, name: str) -> None:
    """Delete what is left of a log, and keep aside what is none of its own."""
    with contextlib.suppress(OSError):  # there is always a next time
        fd = open_directory(path)
        try:
            for file in [each.name for each in os.scandir(fd)]:
                if _OWN.fullmatch(file):
                    os.unlink(file, dir_fd=fd)
        finally:
            os.close(fd)
        if not any(path.iterdir()):
            path.rmdir()
            return
        kept = _set_aside(path, name)
        _log.warning("kept aside, it is no part of a journal", extra={"path": str(kept)})


def _set_aside(path: Path, name: str) -> Path:
    kept = segment.free_place(segment.aside(path.parent), name)
    make_private(kept.parent)
    path.rename(kept)
    durable.sync_directory(kept.parent)
    durable.sync_directory(path.parent)
    return kept


def _cursor_path(log: Path, bus: str) -> Path:
    return log / f"{bus}.cursor"


def is_name(name: str) -> bool:
    """Tell whether a directory so called may be a log: others may keep theirs beside it."""
    return bool(NUMBERED.match(name) or _BY_CLOCK.match(name))


def is_log(path: Path) -> bool:
    """Tell whether a directory is a log, though its description may be lost."""
    return is_name(path.name) and ((path / _LOCK).exists() or (path / _META).exists())


def create(directory: Path, name: str, meta: Meta) -> tuple[Path, int]:
    """Make a log's directory and take its lock, before anyone can see it unlocked."""
    hidden = directory / f".new-{name}"
    hidden.mkdir(durable.DIRECTORY_MODE)
    durable.write_synced(hidden / _META, msgspec.json.encode(meta))
    for bus in meta.buses:
        reserve(_cursor_path(hidden, bus))
    fd = durable.open_private(hidden / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        durable.sync_directory(hidden)
        path = directory / name
        hidden.rename(path)
        durable.sync_directory(directory)
    except BaseException:
        durable.let_go(fd)
        raise
    return path, fd
