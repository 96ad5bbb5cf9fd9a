"""Paced replays: which local time is due by now, when time is to pass as it did, or faster."""

import threading
import time
from typing import Final

from tardis_machine.messages.times import iso_us, us_of

MIN_SPEED: Final = 0.001
MAX_SPEED: Final = 1_000_000

# Time moves in steps, so that a busy replay wakes a few hundred times a second and not once for
# every message. What is due inside a step goes out at its end: late by a little, never early.
_TICK_NS: Final = 5_000_000
_SECOND_NS: Final = 1_000_000_000
_US_NS: Final = 1_000
# For a time that is no date, which only its text can tell to have passed.
_UNKNOWN_S: Final = 1.0
_EVERYTHING: Final = "~"


class Clock:
    """Time as it passes."""

    def now(self) -> int:
        """Nanoseconds since whenever."""
        return time.monotonic_ns()

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        """Let so much time pass, unless it is stopped."""
        stopped.wait(seconds)


class Schedule:
    """When what was recorded from `start` to `end` (microseconds) is due at a speed.

    `reached` is the local time that is due. It moves on when it is asked about a later one, and
    never in between: what was not due when someone looked is not due a moment later.

    The clock starts with the first local time there is, when the first data has come, and is not
    stopped afterwards: who falls behind catches up.
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
        """Seconds until a local time is due; 0 if it is, or nothing will be any more."""
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
        """Block until a local time is due; False if it never will be."""
        while (seconds := self.due_in(local)) > 0:
            self._clock.wait(seconds, self._stopped)
        return not self._stopped.is_set()

    def stop(self) -> None:
        """Let nothing more be due, and nobody wait for it."""
        self._stopped.set()

    def _reached(self, passed: int) -> str:
        us = self._start + int(passed * self._speed) // _US_NS
        # A line may be stamped with a time that it should not have: it waits no longer than this.
        return _EVERYTHING if us >= self._end else iso_us(max(us, 1))
