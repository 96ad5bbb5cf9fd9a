"""The journal's bounds: how full it is, which buses are stalled, which segment goes first."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tardis_machine.journal import segment
from tardis_machine.journal.directory import Directory
from tardis_machine.journal.log import Log

_log = logging.getLogger(__name__)
_LOOK_EVERY_S: Final = 0.02


class Space:
    """Watches one journal directory for the server that writes into it."""

    def __init__(
        self,
        directory: Path,
        buses: Sequence[str],
        *,
        max_bytes: int,
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self.own: Path | None = None
        self._directory = Directory(directory)
        self._buses = tuple(buses)
        self._stall_s = stall_s
        self._clock = clock
        self._used = self._directory.bytes()
        self._looked = clock()
        self._full_since: float | None = None
        self._moved: dict[str, tuple[object, float]] = {}
        self._stalled: set[str] = set()

    @property
    def used(self) -> int:
        return self._used

    def measure(self) -> int:
        """Look at the directory, at most every 20 ms."""
        self._look()
        return self._used

    def add(self, size: int) -> None:
        self._used += size

    def fits(self, size: int) -> bool:
        """Tell whether so many bytes more stay within the bound; an empty journal takes any."""
        if self._used + size > self.max_bytes:
            self._look()
        return self._used + size <= self.max_bytes or self._used == 0

    def written(self, size: int) -> None:
        """Note that an entry did fit."""
        self._used += size
        self._full_since = None

    def full(self) -> None:
        """Note that an entry did not fit, by the bound or by the disk: the stall clock runs."""
        if self._full_since is None:
            self._full_since = self._clock()

    def stalled(self) -> frozenset[str]:
        """Name the buses that have not moved for `stall_s` while the journal was full.

        A bus that needs none of the segments that could be deleted is not to blame.
        """
        now = self._clock()
        logs = [(log, self._sealed(log)) for log in self._directory.logs()]
        for bus in self._buses:
            states = [(log.name, log.cursor_state(bus).place) for log, _ in logs]
            behind = any(
                sealed and place[0] <= sealed[-1]
                for (_, sealed), (_, place) in zip(logs, states, strict=True)
            )
            known = self._moved.get(bus)
            if known is None or known[0] != states or not behind:
                self._moved[bus] = (states, now)
                if bus in self._stalled:
                    self._stalled.discard(bus)
                    _log.info("bus moves again", extra={"bus": bus})
            elif (
                self._full_since is not None
                and bus not in self._stalled
                and now - max(self._full_since, known[1]) >= self._stall_s
            ):
                self._stalled.add(bus)
                _log.warning(
                    "bus stalled, its oldest segments are skipped",
                    extra={"bus": bus, "after_s": self._stall_s},
                )
        return frozenset(self._stalled)

    def skip_oldest(self, *, forced: bool) -> bool:
        """Give up the oldest segment, if only stalled buses (or, forced, any) still need it.

        Logs of other living servers are theirs to shorten. False if nothing may go.
        """
        stalled = self.stalled()
        for log in self._directory.logs():
            numbers = self._sealed(log)
            if not numbers:
                continue
            oldest = numbers[0]
            buses = {*self._buses, *log.meta().buses}
            behind = {bus for bus in buses if log.cursor_state(bus).segment <= oldest}
            if not forced and not behind <= stalled:
                return False
            if behind:
                segment.bury(log.path, oldest)
                _log.warning(
                    "segment skipped",
                    extra={"segment": oldest, "log": log.name, "buses": ",".join(sorted(behind))},
                )
            else:
                segment.segment_path(log.path, oldest).unlink(missing_ok=True)
            self._used = self._directory.bytes()
            return True
        return False

    def _sealed(self, log: Log) -> list[int]:
        """Give the segments of a log that nobody writes to and this server may delete."""
        if log.path == self.own:
            return log.listing().segments[:-1]
        return log.listing().segments if log.finished() else []

    def _look(self) -> None:
        """Measure anew, at most every 20 ms: the publisher may have deleted segments."""
        now = self._clock()
        if now - self._looked >= _LOOK_EVERY_S:
            self._used = self._directory.bytes()
            self._looked = now
