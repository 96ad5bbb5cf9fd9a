"""Clock and schedule of paced replays, which send messages at a multiple of recorded time."""

import threading
import time
from typing import Final

from tardis_machine.messages.times import iso_us, us_of

MIN_SPEED: Final = 0.001
MAX_SPEED: Final = 1_000_000

# The schedule advances in ticks, so a busy replay wakes at most 200 times a second instead of once
# for every message. A message goes out at the end of its tick: at most 5 ms late, never early.
_TICK_NS: Final = 5_000_000
_SECOND_NS: Final = 1_000_000_000
_US_NS: Final = 1_000
# A local time that is no valid date cannot be converted: it is compared as text this often.
_UNKNOWN_S: Final = 1.0
_EVERYTHING: Final = "~"


class Clock:
    """The system's monotonic clock; tests pass their own."""

    def now(self) -> int:
        """Return nanoseconds since an unspecified start; they never decrease."""
        return time.monotonic_ns()

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        """Wait for so many seconds, or until `stopped` is set."""
        stopped.wait(seconds)


class Schedule:
    """Times at which messages recorded from `start` to `end` (microseconds) are due at a speed.

    `reached` is the latest local time that is due. Only `due_in` and `wait` advance it, so it
    stays the same while a caller works with it.

    The clock starts at the first call, with the first data. It never pauses: a replay that falls
    behind catches up.
    """

    def __init__(self, start: int, end: int, speed: float, clock: Clock | None = None) -> None:
        self.reached = ""
        self._start = start
        self._end = end
        self._speed = speed
        self._clock = clock or Clock()
        self._began: int | None = None
        self._stopped = threading.Event()

    def due_in(self, local: str) -> float:
        """Return the seconds until a local time is due; 0 if it is, or the schedule is stopped."""
        if local <= self.reached or self._stopped.is_set():
            return 0.0
        now = self._clock.now()
        if self._began is None:
            self._began = now
        elapsed = now - self._began
        self.reached = self._reached(elapsed // _TICK_NS * _TICK_NS)
        if local <= self.reached:
            return 0.0
        try:
            us = min(us_of(local), self._end) - self._start
        except ValueError:
            return _UNKNOWN_S
        ticks = -int(-us * _US_NS / self._speed // _TICK_NS)
        return max(_TICK_NS, ticks * _TICK_NS - elapsed) / _SECOND_NS

    def wait(self, local: str) -> bool:
        """Block until a local time is due; return False if the schedule was stopped."""
        while (seconds := self.due_in(local)) > 0:
            self._clock.wait(seconds, self._stopped)
        return not self._stopped.is_set()

    def stop(self) -> None:
        """Stop the schedule and wake a thread that waits for it."""
        self._stopped.set()

    def _reached(self, passed: int) -> str:
        us = self._start + int(passed * self._speed) // _US_NS
        # A line may have a local time after the end of the range: at the end every line is due.
        return _EVERYTHING if us >= self._end else iso_us(max(us, 1))
