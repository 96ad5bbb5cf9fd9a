"""Counters of live streams, and their metrics."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Statistics:
    """Counts by exchange; errors also by code."""

    def __init__(self) -> None:
        self.connections: defaultdict[str, int] = defaultdict(int)
        self.clients: defaultdict[str, int] = defaultdict(int)
        self.frames: Counter[str] = Counter()
        self.disconnects: Counter[str] = Counter()
        self.resyncs: Counter[str] = Counter()
        self.malformed: Counter[str] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()


class LiveCollector(Collector):
    """Prometheus metrics of the live streams; the registry calls `collect` at each scrape."""

    def __init__(self, statistics: Statistics, buffered: Callable[[], int]) -> None:
        self._statistics = statistics
        self._buffered = buffered

    def collect(self) -> Iterable[Metric]:
        statistics = self._statistics
        for name, help_text, gauges in (
            ("connections", "Connections to exchanges that are open.", statistics.connections),
            ("clients", "Clients of live streams.", statistics.clients),
        ):
            gauge = GaugeMetricFamily(f"tardis_machine_live_{name}", help_text, labels=["exchange"])
            for exchange, value in gauges.items():
                gauge.add_metric([exchange], value)
            yield gauge
        for name, help_text, counts in (
            ("frames", "Frames and REST answers taken from exchanges.", statistics.frames),
            ("disconnects", "Connections to exchanges that ended.", statistics.disconnects),
            ("resyncs", "Books asked for again since an update was missing.", statistics.resyncs),
            ("malformed", "Messages that could not be normalized.", statistics.malformed),
        ):
            counter = CounterMetricFamily(
                f"tardis_machine_live_{name}", help_text, labels=["exchange"]
            )
            for exchange, value in counts.items():
                counter.add_metric([exchange], value)
            yield counter
        errors = CounterMetricFamily(
            "tardis_machine_live_errors",
            "Errors of live streams, by code.",
            labels=["exchange", "code"],
        )
        for (exchange, code), value in statistics.errors.items():
            errors.add_metric([exchange, code], value)
        yield errors
        buffered = GaugeMetricFamily(
            "tardis_machine_live_buffered_bytes", "Frames that wait to be normalized."
        )
        buffered.add_metric([], self._buffered())
        yield buffered
