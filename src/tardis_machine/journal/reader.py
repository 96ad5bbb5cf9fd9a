"""Reading a log from a place onwards, a bounded piece at a time."""

import logging
import os
from typing import Final, NamedTuple

from tardis_machine.journal import entry, segment
from tardis_machine.journal.log import Log

_log = logging.getLogger(__name__)
_CHUNK_BYTES: Final = 256 * 1024


class Gap(NamedTuple):
    """Messages that can no longer be read: how many, why, and where reading goes on.

    `first` and `last` name them where that is known; `line` is the first skipped segment's first.
    """

    segment: int
    offset: int
    messages: int
    reason: str
    first: segment.Message | None
    last: segment.Message | None
    line: bytes


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

    @property
    def buffered(self) -> int:
        """Give the size of the piece in memory."""
        return len(self._buffer)

    def read(self) -> entry.Entry | Gap | None:
        """Give the next entry or gap; None if there is none, for now or (log finished) for good."""
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
            corrupt = self._behind_corrupt()
            if corrupt is not None:
                return corrupt
            resume = self._resume(listing)
            if resume is None:
                if finished and self.segment in listing.segments:
                    self._cut()
                return None
            number, first = resume
            if first > self.messages:
                return self._gap(listing, number, first)
            self._go(number, first)

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
        self._start += found.end - found.offset
        self.offset = found.end
        self.messages += found.messages
        return found

    def _complete(self) -> bool:
        size = entry.size_at(self._buffer, self._start)
        return size is not None and self._start + size <= len(self._buffer)

    def _fill(self) -> None:
        self._buffer, self._start = b"", 0
        try:
            fd = os.open(
                segment.segment_path(self.log.path, self.segment), os.O_RDONLY | os.O_CLOEXEC
            )
        except FileNotFoundError:
            return
        try:
            self._buffer = os.pread(fd, _CHUNK_BYTES, self.offset)
            size = entry.size_at(self._buffer, 0)
            # A torn header may claim any size: nothing is allocated that the file does not hold.
            if size is not None and len(self._buffer) < size <= os.fstat(fd).st_size - self.offset:
                self._buffer = os.pread(fd, size, self.offset)
        finally:
            os.close(fd)

    def _behind_corrupt(self) -> Gap | None:
        """Pass a single entry that fails its checksum, if a sound one follows it."""
        try:
            with segment.open_mapped(self.log.path, self.segment) as content:
                found = entry.heading_at(content, self.offset)
                # Sound by now: the writer was just at it when it was read.
                if found is None or entry.sound_at(content, self.offset) is not None:
                    return None
                if entry.sound_at(content, found.end) is None:
                    return None
        except (FileNotFoundError, ValueError):
            return None
        self._log_corrupt(found.messages)
        self.offset = found.end
        self.messages += found.messages
        return Gap(self.segment, self.offset, found.messages, "corrupt", None, None, b"")

    def _resume(self, listing: segment.Listing) -> tuple[int, int] | None:
        """Find the next segment that can be read, and how many messages lie before it."""
        for number in listing.segments:
            if number > self.segment:
                first = segment.first_message(self.log.path, number)
                if first is not None:
                    return number, first
        stones = [n for n in listing.tombstones if n >= self.segment]
        ends = [s.end for n in stones if (s := segment.read_tombstone(self.log.path, n))]
        return (stones[-1] + 1, max(*ends, self.messages)) if ends else None

    def _go(self, number: int, messages: int) -> None:
        self.segment, self.offset, self.messages = number, segment.HEADER_BYTES, messages
        self._buffer, self._start = b"", 0

    def _gap(self, listing: segment.Listing, number: int, first: int) -> Gap:
        """Jump over what lies before segment `number`, and name it where a tombstone can."""
        count = first - self.messages
        reason = "corrupt" if self.segment in listing.segments else "skipped"
        if reason == "corrupt":
            self._log_corrupt(count)
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

    def _cut(self) -> None:
        """Cut off what follows the last whole entry of a log whose writer is gone."""
        path = segment.segment_path(self.log.path, self.segment)
        try:
            size = path.stat().st_size
            if size > self.offset:
                _log.warning(
                    "torn tail cut",
                    extra={
                        "segment": str(path),
                        "offset": self.offset,
                        "bytes": size - self.offset,
                    },
                )
                os.truncate(path, self.offset)
        except FileNotFoundError:
            pass

    def _log_corrupt(self, count: int) -> None:
        _log.error(
            "journal corrupt, messages skipped",
            extra={
                "log": str(self.log.path),
                "segment": self.segment,
                "offset": self.offset,
                "messages": count,
            },
        )
