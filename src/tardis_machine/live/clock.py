"""The local time of arrivals."""

import time
from collections.abc import Callable


class Clock:
    """Stamps in microseconds, each later than the one before, whatever the system's clock does.

    So every message of a process has a local time of its own, and no batch ends inside one.
    """

    __slots__ = ("_last", "_now_ns", "_prefix", "_second")

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._last = 0
        self._second = -1
        self._prefix = ""

    def stamp(self) -> str:
        """Tell the time of now, as messages print it."""
        now = self._now_ns() // 1000
        if now <= self._last:
            now = self._last + 1
        self._last = now
        second, fraction = divmod(now, 1_000_000)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._prefix}.{fraction:06d}Z"
