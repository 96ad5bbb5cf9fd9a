"""Minutes that are yet to be recorded: replays wait for them without a thread of their own."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

from tardis_machine.history.errors import HistoryError

_MINUTE_US: Final = 60_000_000
# So long after a minute is due the API is asked for it, as the official clients do.
_LATE_US: Final = 100_000
# The system's clock may be set, and a machine may sleep: it is looked at this often.
_LOOK_S: Final = 1.0

Clock = Callable[[], int]
"""Microseconds since 1970."""


def system_clock() -> int:
    """Return the system's time in microseconds since 1970."""
    return time.time_ns() // 1000


class Due(Future[object]):
    """A wait for the time at which a minute can be fetched; done early when its replay ends."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        # Running from the start: a waiter that gives up must not cancel it for the others.
        self.set_running_or_notify_cancel()

    def settle(self) -> None:
        """Let the replay go on."""
        with suppress(InvalidStateError):
            self.set_result(None)


class DueTimes:
    """The waits of all replays; one thread settles them, and ends when there are none."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waits: set[Due] = set()
        self._running = False

    def now(self) -> int:
        """Return the time in microseconds since 1970."""
        return self._clock()

    def wait(self, at: int) -> Due:
        """Return a wait that is done at a time."""
        due = Due(at)
        with self._changed:
            if not self._running:
                try:
                    threading.Thread(target=self._run, name="tardis-due", daemon=True).start()
                except RuntimeError as error:
                    raise HistoryError(f"no thread to wait with: {error}") from None
                self._running = True
            self._waits.add(due)
            self._changed.notify()
        return due

    def cancel(self, due: Due) -> None:
        """End a wait at once."""
        with self._changed:
            self._waits.discard(due)
            self._changed.notify()
        due.settle()

    def _run(self) -> None:
        while (past := self._next()) is not None:
            for due in past:
                due.settle()

    def _next(self) -> list[Due] | None:
        """Block until some waits are over and return them; None when none is left."""
        with self._changed:
            # A copy: a reader that is collected meanwhile takes its wait away.
            while waits := list(self._waits):
                now = self._clock()
                past = [due for due in waits if due.at <= now]
                if past:
                    self._waits.difference_update(past)
                    return past
                seconds = (min(due.at for due in waits) - now) / 1_000_000
                self._changed.wait(min(seconds, _LOOK_S))
            self._running = False
            return None


class Lag:
    """How far behind the clock a replay stays."""

    def __init__(self, minutes: float, times: DueTimes) -> None:
        self._us = round(minutes * _MINUTE_US) + _LATE_US
        self._times = times

    def end(self) -> int:
        """Return the first minute that is not due."""
        return (self._times.now() - self._us) // _MINUTE_US + 1

    def wait(self, minute: int) -> Due:
        """Return a wait that is done when a minute is due."""
        return self._times.wait(minute * _MINUTE_US + self._us)

    def cancel(self, due: Due) -> None:
        """End a wait at once."""
        self._times.cancel(due)
