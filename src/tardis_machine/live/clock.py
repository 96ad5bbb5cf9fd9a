"""Local timestamps of arriving frames."""

import time
from collections.abc import Callable


class Clock:
    """Source of strictly increasing timestamps in microseconds.

    They increase even if the system clock steps back. Each frame of a process has a local time of
    its own, so a batch never ends between messages of one local time.
    """

    __slots__ = ("_last", "_now_ns", "_prefix", "_second")

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._last = 0
        self._second = -1
        self._prefix = ""

    def stamp(self) -> str:
        """Return the current time in the format of `localTimestamp`."""
        now = self._now_ns() // 1000
        if now <= self._last:
            now = self._last + 1
        self._last = now
        second, fraction = divmod(now, 1_000_000)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._prefix}.{fraction:06d}Z"
