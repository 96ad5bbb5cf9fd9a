"""Pauses between attempts: doubled each time up to a longest one, with jitter."""

import random


class Backoff:
    """Counts failures in a row and says how long to wait after each."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def ease(self) -> None:
        """Note an attempt that got somewhere: not a success, and no reason to wait longer."""
        self.failures //= 2

    def next_pause_s(self) -> float:
        """Count a failure; wait between half of the interval and all of it, so that crowds part."""
        interval = min(self._longest_s, self._shortest_s * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return interval * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
