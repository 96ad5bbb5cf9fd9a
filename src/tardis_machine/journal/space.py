"""The journal's bounds: how full it is, which buses are stalled, which segment goes first."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tardis_machine.journal import segment
from tardis_machine.journal.directory import Directory
from tardis_machine.journal.log import Log

_log = logging.getLogger(__name__)

LARGEST_SEGMENT: Final = 64 << 20
_SEGMENTS_AT_LEAST: Final = 16
_LARGEST_GRAIN: Final = LARGEST_SEGMENT
_GRAINS_AT_LEAST: Final = 128


class Usage(NamedTuple):
    """How full a journal is: bytes in all, whether any of them is a message, writers that live."""

    bytes: int
    empty: bool
    writers: int


class Space:
    """Watches one journal directory for a server that writes into it, beside others.

    Every writer may write a *grain* without asking. Whoever asks for more measures the directory
    under a lock, and counts a grain for each of the others: so all of them together stay within
    the bound, and most appends cost nothing.
    """

    def __init__(
        self,
        directory: Directory,
        buses: Sequence[str],
        *,
        max_bytes: int,
        stall_s: float,
        segment_bytes: int = LARGEST_SEGMENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.disk_is_full = False
        """Whether the disk, and not the bound, refused the latest entry that did not fit."""
        self._bound = max_bytes
        self._disk_free = 0
        self._largest_segment = segment_bytes
        self._grain = min(_LARGEST_GRAIN, max_bytes // _GRAINS_AT_LEAST)
        self._free = 0
        self._directory = directory
        self._buses = tuple(buses)
        self._stall_s = stall_s
        self._clock = clock
        self._full_since: float | None = None
        self._moved: dict[str, tuple[dict[str, tuple[int, int]], float]] = {}
        self.stalled: frozenset[str] = frozenset()
        self.measure()

    def measure(self) -> Usage:
        """Look at the directory: publishers delete segments, other servers write them."""
        total = messages = writers = 0
        for log in self._directory.logs():
            writers += not log.finished()
            total += log.ring_bytes()
            for size in log.sizes().values():
                total += size
                messages += max(0, size - segment.HEADER_BYTES)
        self.used = total
        self._disk_free = self._directory.free_bytes()
        share = min(self.max_bytes, total + self._disk_free)
        share //= _SEGMENTS_AT_LEAST * max(1, writers)
        self.segment_bytes = max(1, min(self._largest_segment, share))
        usage = Usage(total, messages == 0, writers)
        self._bound = self._limit(usage)
        return usage

    @property
    def room(self) -> int:
        """Return how many bytes can still be journalled, by the bound and by the disk."""
        return max(0, min(self._bound - self.used, self._disk_free))

    def furthest_behind(self) -> str:
        """Return the bus that has most bytes yet to read; empty if none has any."""
        behind = dict.fromkeys(self._buses, 0)
        for log in self._directory.logs():
            sizes = log.sizes()
            for bus in log.buses(self._buses):
                if bus in behind:
                    at = log.cursor_state(bus)
                    unread = sum(size for number, size in sizes.items() if number >= at.segment)
                    behind[bus] += max(0, unread - at.offset)
        bus = max(behind, key=behind.__getitem__, default="")
        return bus if bus and behind[bus] else ""

    def take(self, size: int, write: Callable[[], bool]) -> bool:
        """Write so many bytes if they fit; False if they do not, or if `write` says so."""
        if size <= self._free:
            fits, written = True, write()
        else:
            with self._directory.space():
                fits = self._fits(size)
                written = fits and write()
        self.disk_is_full = fits and not written
        if written:
            self.used += size
            self._free -= size
            self._full_since = None
        else:
            self.full()
        return written

    def ask(self) -> bool:
        """Ask for a grain before it is needed; False if there is none."""
        with self._directory.space():
            return self._fits(0) and self._free > 0

    def spend(self, size: int) -> None:
        """Note that so many of the bytes were written that nobody had to be asked for."""
        self.used += size
        self._free -= size

    @property
    def granted(self) -> int:
        """Give how many bytes may be written before anybody has to be asked."""
        return self._free

    def full(self) -> None:
        """Note that an entry did not fit, by the bound or by the disk: the stall clock runs."""
        if self._full_since is None:
            self._full_since = self._clock()

    def find_stalled(self) -> frozenset[str]:
        """Name the buses that have not moved for `stall_s` while the journal was full.

        A bus that needs none of the segments that could be deleted is not to blame.
        """
        now = self._clock()
        logs = [(log, log.sealed()) for log in self._directory.logs()]
        for bus in self._buses:
            owed = [(log, sealed) for log, sealed in logs if bus in log.buses(self._buses)]
            places = {log.name: log.cursor_state(bus).place for log, _ in owed}
            behind = any(sealed and _needs(log, bus, sealed[-1]) for log, sealed in owed)
            known = self._moved.get(bus)
            if known is None or not behind or known[0].items() - places.items():
                self._moved[bus] = (places, now)
                if bus in self.stalled:
                    self.stalled -= {bus}
                    _log.info("bus moves again", extra={"bus": bus})
            elif (
                self._full_since is not None
                and bus not in self.stalled
                and now - max(self._full_since, known[1]) >= self._stall_s
            ):
                self.stalled |= {bus}
                _log.warning(
                    "bus stalled, its oldest segments are skipped",
                    extra={"bus": bus, "after_s": self._stall_s},
                )
        return self.stalled

    def skip_oldest(self, *, forced: bool) -> bool:
        """Give up the oldest segment that only stalled buses (or, forced, any) still need.

        A bus that is not configured any more holds nobody up: it is stalled by nature. The logs
        of other servers are as good as one's own. False if nothing may go.
        """
        stalled = self.find_stalled()
        with self._directory.space():
            for log in self._directory.logs():
                numbers = log.sealed() if log.readable() else []
                if numbers and self._skip(log, numbers[0], None if forced else stalled):
                    self.measure()
                    return True
        return False

    def _skip(self, log: Log, number: int, stalled: frozenset[str] | None) -> bool:
        """Give up a segment, unless a bus that is not among the stalled still needs it."""
        behind = {bus for bus in log.buses(self._buses) if _needs(log, bus, number)}
        if stalled is not None and behind & set(self._buses) - stalled:
            return False
        if not behind:
            segment.discard(log.path, number)
        else:
            log.bury(number)
            _log.warning(
                "segment skipped",
                extra={"segment": number, "log": log.name, "buses": ",".join(sorted(behind))},
            )
        return True

    def _fits(self, size: int) -> bool:
        """Ask for this much and a grain for later; the space must be held."""
        usage = self.measure()
        limit = self._limit(usage)
        needed = usage.bytes + size
        if needed > limit and not usage.empty:
            self._free = 0
            return False
        self._free = size + (self._grain if needed + self._grain <= limit else 0)
        return True

    def _limit(self, usage: Usage) -> int:
        return self.max_bytes - self._grain * max(0, usage.writers - 1)


def _needs(log: Log, bus: str, number: int) -> bool:
    """Tell whether a bus has yet to read any of a segment that nobody writes to."""
    state = log.cursor_state(bus)
    if state.segment <= number and log.finished():
        return state.seen < log.end().messages
    if state.segment != number:
        return state.segment < number
    return state.offset < log.sizes().get(number, 0)
