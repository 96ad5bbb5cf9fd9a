"""Exponential backoff with jitter, up to a longest pause."""

import random


class Backoff:
    """The number of consecutive failures, and the pause before the next attempt."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def halve(self) -> None:
        """Halve the count after an attempt that failed but made progress."""
        self.failures //= 2

    def next_pause_s(self) -> float:
        """Count a failure; return 50 to 100 % of an interval that doubles with each failure."""
        interval = min(self._longest_s, self._shortest_s * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return interval * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, is no secret
