"""What a publisher tells about a bus besides its accounts."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import msgspec

_BATCH_SIZES: Final = (1, 10, 50, 100, 500, 1_000, 2_500, 5_000, 10_000, 50_000)
_LATENCIES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Distribution(msgspec.Struct):
    """How often a value was at most each bound; the last place counts what is above all."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: Sequence[float]) -> "Distribution":
        return cls(tuple(bounds), [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _batches() -> Distribution:
    return Distribution.over(_BATCH_SIZES)


def _latency() -> Distribution:
    return Distribution.over(_LATENCIES_S)


class Statistics(msgspec.Struct):
    """Counted since the publisher process started."""

    healthy: bool = True
    last_error: str = ""
    delivered: int = 0
    retried: int = 0
    batches: Distribution = msgspec.field(default_factory=_batches)
    latency: Distribution = msgspec.field(default_factory=_latency)
