"""When delivery holds back: while the publisher's server sends a response as fast as it can.

Where processors are few, whatever encodes, sends and receives takes turns with the server on its
processor, and each time leaves it with caches full of something else. A response at full speed is
over soon, and its messages are delivered many times slower than they come. So delivery waits until
the journal's ring is quiet. It does so for a bounded time, then goes on beside the response, and
has to be at work for as long as it waited before it waits as long again: responses without an end,
or one upon the other, take no more than half of its time.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 0.002
_QUIET_S: Final = 0.015
"""How long nothing is to come: a response may stop for a moment, as when its client does."""
_FULL_SPEED: Final = 25e6
"""Bytes a second: a replay that nobody holds has ten times that, a live stream hardly a tenth."""


class Courtesy:
    """Tells the threads of all buses whether it is their time."""

    def __init__(
        self,
        written: Callable[[], int],
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`written` gives how many bytes the server ever wrote; `longest_s` 0 is for never."""
        self.total_s = 0.0
        self._written = written
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = written()
        self._looked_at = clock()
        self._heard_at = self._looked_at - _QUIET_S
        self._left_s = longest_s
        self._gives_way = self._is_tired = False

    def gives_way(self) -> bool:
        """Tell whether somebody else goes first; asked again and again by whoever waits."""
        if not self._longest_s:
            return False
        with self._lock:
            passed_s = self._clock() - self._looked_at
            if passed_s >= _LOOK_S:
                self._account(passed_s)
                self._look(passed_s)
            return self._gives_way

    def _account(self, passed_s: float) -> None:
        """Book the time since the last look."""
        self._looked_at += passed_s
        if self._gives_way:
            self.total_s += passed_s
            self._left_s -= passed_s
        else:
            self._left_s = min(self._left_s + passed_s, self._longest_s)

    def _look(self, passed_s: float) -> None:
        """See whether a response is under way, and whether it has been waited for enough."""
        written = self._written()
        if written - self._seen >= _FULL_SPEED * passed_s:
            self._heard_at = self._looked_at
        self._seen = written
        is_quiet = self._looked_at - self._heard_at >= _QUIET_S
        # Not again for the same response, in the little time that is won meanwhile.
        self._is_tired = not is_quiet and (self._is_tired or self._left_s <= 0)
        self._gives_way = not is_quiet and not self._is_tired
