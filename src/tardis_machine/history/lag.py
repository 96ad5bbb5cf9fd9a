"""Replays that stay `lag_minutes` behind the clock, and one timer thread for all their waits."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from tardis_machine.history.errors import HistoryError

_MINUTE_US: Final = 60_000_000
# The official clients request a minute this long after it is due.
_MARGIN_US: Final = 100_000
# A machine may sleep and its clock may be set, so the timer reads the clock this often.
_CLOCK_CHECK_S: Final = 1.0

Clock = Callable[[], int]
"""Microseconds since 1970."""


def system_clock() -> int:
    """Return the system's time in microseconds since 1970."""
    return time.time_ns() // 1000


class LagWait(Future[object]):
    """A future that is done when a minute can be fetched, or when its replay ends before that.

    The timer thread, or the thread that closes the replay, completes it.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        # A running future cannot be cancelled, so one waiter cannot end it for the others.
        self.set_running_or_notify_cancel()

    def complete(self) -> None:
        """Complete the future, unless it is complete."""
        with suppress(InvalidStateError):
            self.set_result(None)


class LagTimer:
    """The waits of all replays of a history.

    One thread completes them at their times. It ends when no wait is left, and `wait` starts it
    again.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waits: set[LagWait] = set()
        self._running = False

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return self._clock()

    def wait(self, at: int) -> LagWait:
        """Return a wait that is done at a time (microseconds since 1970).

        Raises HistoryError if the system can start no thread.
        """
        due = LagWait(at)
        with self._changed:
            if not self._running:
                try:
                    threading.Thread(target=self._run, name="tardis-lag", daemon=True).start()
                except RuntimeError as error:
                    raise HistoryError(f"no thread to wait with: {error}") from None
                self._running = True
            self._waits.add(due)
            self._changed.notify()
        return due

    def cancel(self, due: LagWait) -> None:
        """Complete a wait now."""
        with self._changed:
            self._waits.discard(due)
            self._changed.notify()
        due.complete()

    def _run(self) -> None:
        while (past := self._next()) is not None:
            for due in past:
                due.complete()

    def _next(self) -> list[LagWait] | None:
        """Return the waits that are due, blocking until there are some; None if none is left."""
        with self._changed:
            # A copy: a reader that is garbage-collected here removes its wait from the set.
            while waits := list(self._waits):
                now = self._clock()
                past = [due for due in waits if due.at <= now]
                if past:
                    self._waits.difference_update(past)
                    return past
                seconds = (min(due.at for due in waits) - now) / 1_000_000
                self._changed.wait(min(seconds, _CLOCK_CHECK_S))
            self._running = False
            return None


class Lag:
    """The distance of a replay from the clock, in minutes."""

    def __init__(self, minutes: float, times: LagTimer) -> None:
        self._us = round(minutes * _MINUTE_US) + _MARGIN_US
        self._times = times

    def end(self) -> int:
        """Return the first minute that is not due yet, counted since the epoch."""
        return (self._times.now() - self._us) // _MINUTE_US + 1

    def wait(self, minute: int) -> LagWait:
        """Return a wait that is done when a minute is due."""
        return self._times.wait(minute * _MINUTE_US + self._us)

    def cancel(self, due: LagWait) -> None:
        """Complete a wait now."""
        self._times.cancel(due)
