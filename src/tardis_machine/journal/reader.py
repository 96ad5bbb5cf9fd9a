"""Reading a log from a place onwards, a bounded piece at a time."""

import logging
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from tardis_machine.journal import entry, segment
from tardis_machine.journal.log import Log

_log = logging.getLogger(__name__)
_LOOK_CLOSELY_S: Final = 0.25
_MOST_JOINED_BYTES: Final = 16 << 10
_MOST_JOINED_US: Final = 2000
"""How far entries may lie apart that are read as one, which has the last one's time."""


class Gap(NamedTuple):
    """Messages that can no longer be read: how many, why, and where reading goes on.

    No messages mean that nobody knows how many. `first` and `last` name them where that is known;
    `line` is the first skipped segment's first.
    """

    segment: int
    offset: int
    messages: int
    reason: str
    first: segment.Message | None
    last: segment.Message | None
    line: bytes


class _Resume(NamedTuple):
    """Where reading goes on: the segment, the messages before it, whether that number is sure."""

    number: int
    first: int
    unknown: bool = False


class _Seen(NamedTuple):
    """What a log looks like from a place in it: anything new there changes this, nearly always."""

    segment: int
    offset: int
    size: int
    directory_ns: int


class Reader:
    """Reads the entries of one log in order, and says where some are missing."""

    def __init__(self, log: Log, number: int, offset: int, messages: int) -> None:
        """Start at the entry at (number, offset), before which the log held `messages`."""
        self.log = log
        self.segment = number
        self.offset = max(offset, segment.HEADER_BYTES)
        self.messages = messages
        self._buffer = b""
        self._start = 0
        self._known = -1
        self._torn_said = False
        self._nothing_behind: _Seen | None = None
        self._looked_at = 0.0

    @property
    def _path(self) -> Path:
        return segment.segment_path(self.log.path, self.segment)

    @property
    def buffered(self) -> int:
        """Give the size of the piece in memory."""
        return len(self._buffer)

    @property
    def ready(self) -> bool:
        """Tell whether the piece in memory has an entry yet."""
        try:
            return self._complete()
        except entry.CorruptError:
            return False

    def at_rest(self) -> bool:
        """Tell, for a tenth of what `read` takes, that it would find nothing once more.

        A segment that was begun may go unnoticed for a moment: a directory's time is a coarse one.
        """
        if self._nothing_behind is None or time.monotonic() - self._looked_at >= _LOOK_CLOSELY_S:
            return False
        return self._look() == self._nothing_behind

    def _look(self) -> "_Seen | None":
        try:
            size = self._path.stat().st_size
            return _Seen(self.segment, self.offset, size, self.log.path.stat().st_mtime_ns)
        except FileNotFoundError:
            return None

    def read(self) -> entry.Entry | Gap | None:
        """Give the next entry or gap; None if there is none, for now or (log finished) for good.

        OtherVersionError if what follows was written by another version of the format.
        """
        self._nothing_behind = None
        found = self._next()
        return self._look_closely() if found is None else found

    def read_on(self, first: entry.Entry) -> entry.Entry:
        """Join to the entry that was read last what lies there and goes on with it, if it is small.

        A live stream appends every frame by itself, and whoever publishes them pays for each.
        """
        run = [first]
        room = _MOST_JOINED_BYTES - len(first.data)
        while (found := self._following(run[-1], room)) is not None:
            if found.ingest_us - first.ingest_us > _MOST_JOINED_US:
                break
            room -= len(found.data)
            run.append(found)
            self._pass(found)
        return first if len(run) == 1 else entry.join(run)

    def _following(self, last: entry.Entry, room: int) -> entry.Entry | None:
        """Give the next entry of the piece in memory if it goes on where the last one ends.

        One that has more data than this is not looked at: it will be read by itself.
        """
        most = entry.HEADER_BYTES + len(last.provenance) + room
        try:
            size = entry.size_at(self._buffer, self._start)
            if last.hidden or size is None or size > most or not self._complete():
                return None
            found = entry.parse(self._buffer, self._start, self.segment, self.offset)
        except entry.CorruptError:
            return None  # whoever reads it next deals with it
        goes_on = (
            not found.hidden
            and found.provenance == last.provenance
            and found.position == last.position + last.messages
            and found.ingest_us >= last.ingest_us
        )
        return found if goes_on else None

    def _look_closely(self) -> entry.Entry | Gap | None:
        # Before anything else, so that what comes meanwhile is not taken for seen.
        seen, self._looked_at = self._look(), time.monotonic()
        found = self._find()
        if found is None:
            self._nothing_behind = seen
        return found

    def _find(self) -> entry.Entry | Gap | None:
        while True:
            found = self._next()
            if found is not None:
                return found
            # Asked in this order: what was written before the answers is seen by the second try.
            finished = self.log.finished()
            listing = self.log.listing()
            found = self._next()
            if found is not None:
                return found
            damage = self._behind_damage(ended=finished)
            if damage is not None:
                return damage
            resume = self._resume(listing)
            if resume is None:
                if finished and self.segment in listing.segments:
                    self._say_torn()
                return None
            if resume.first > self.messages or resume.unknown:
                return self._gap(listing, resume.number, resume.first)
            self._go(resume.number, resume.first)

    def _next(self) -> entry.Entry | None:
        """Take an entry from the buffer, refilled if need be; None if no whole one is there."""
        try:
            if not self._complete():
                self._fill()
                if not self._complete():
                    return None
            found = entry.parse(self._buffer, self._start, self.segment, self.offset)
        except entry.CorruptError:
            self._buffer, self._start = b"", 0  # perhaps it was just being written: read it anew
            return None
        self._pass(found)
        return found

    def _pass(self, found: entry.Entry) -> None:
        self._start += found.end - found.offset
        self.offset = found.end
        self.messages += found.messages

    def _complete(self) -> bool:
        size = entry.size_at(self._buffer, self._start)
        return size is not None and self._start + size <= len(self._buffer)

    def _fill(self) -> None:
        self._buffer, self._start = b"", 0
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if self._known != self.segment:
                segment.parse_header(self._path, os.pread(fd, segment.HEADER_BYTES, 0))
                self._known = self.segment
            self._buffer = segment.read_piece(fd, self.offset)
        finally:
            os.close(fd)

    def _behind_damage(self, *, ended: bool) -> Gap | None:
        """Pass what cannot be read, if it is damage and not a write that was cut off."""
        try:
            content = segment.read_from(self.log.path, self.segment, self.offset)
        except FileNotFoundError:
            return None
        if entry.sound_at(content, 0) is not None:
            return None  # by now: the writer was just at it when it was read
        version = entry.other_version_at(content, 0)
        if version is not None:
            raise segment.OtherVersionError(self._path, f"{version:02}")
        found = entry.damage_at(content, 0, ended=ended)
        if found is None:
            return None
        count = found.messages or 0
        self._report_damage(count)
        self.offset += found.end
        self.messages += count
        return Gap(self.segment, self.offset, count, "corrupt", None, None, b"")

    def _resume(self, listing: segment.Listing) -> "_Resume | None":
        """Find the next segment that can be read, and how many messages lie before it."""
        for number in listing.segments:
            if number > self.segment:
                first = segment.first_message(self.log.path, number)
                if first is None and segment.has_entries(self.log.path, number):
                    first = self.messages  # its header is torn: as if nothing were missing
                if first is not None:
                    return _Resume(number, first)
        stones = [n for n in listing.tombstones if n >= self.segment]
        if not stones:
            return None
        found = [segment.read_tombstone(self.log.path, n) for n in stones]
        ends = [stone.end for stone in found if stone is not None]
        return _Resume(stones[-1] + 1, max([*ends, self.messages]), unknown=None in found)

    def _go(self, number: int, messages: int) -> None:
        self.segment, self.offset, self.messages = number, segment.HEADER_BYTES, messages
        self._buffer, self._start = b"", 0

    def _gap(self, listing: segment.Listing, number: int, first: int) -> Gap:
        """Jump over what lies before segment `number`, and name it where a tombstone can."""
        count = first - self.messages
        reason = "corrupt" if self.segment in listing.segments else "skipped"
        if reason == "corrupt":
            self._report_damage(count)
        stones = [
            stone
            for n in listing.tombstones
            if self.segment <= n < number
            and (stone := segment.read_tombstone(self.log.path, n)) is not None
            and stone.end > self.messages
        ]
        begin = next((m for s in stones if (m := s.message(max(self.messages, s.first)))), None)
        end = next((m for s in reversed(stones) if (m := s.message(s.end - 1))), None)
        line = stones[0].line if stones else b""
        self._go(number, first)
        return Gap(number, self.offset, count, reason, begin, end, line)

    def _say_torn(self) -> None:
        """Say, once, that the last entry of a log whose writer is gone was never written whole."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size > self.offset and not self._torn_said:
            self._torn_said = True
            _log.warning(
                "torn tail left out",
                extra={
                    "segment": str(self._path),
                    "offset": self.offset,
                    "bytes": size - self.offset,
                },
            )

    def _report_damage(self, count: int) -> None:
        segment.mark_damaged(self.log.path, self.segment)
        _log.error(
            "journal corrupt, messages skipped",
            extra={
                "log": str(self.log.path),
                "segment": self.segment,
                "offset": self.offset,
                "messages": count or "unknown",
            },
        )
