"""What the server counts about itself, in Prometheus' format."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tardis_machine import log as logs


class Metrics:
    """The counters of one server; other parts register collectors of their own in `registry`."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(_LogCollector())
        self.responses = Counter(
            "tardis_machine_responses",
            "Responses ended, by route and outcome: finished, refused, failed; disconnected by the "
            "client, stalled by it, stopped with the server.",
            ("route", "outcome"),
            registry=self.registry,
        )
        self.active = Gauge(
            "tardis_machine_active_responses",
            "Replays being served now.",
            ("route",),
            registry=self.registry,
        )
        self.messages = Counter(
            "tardis_machine_messages",
            "Normalized messages (raw: lines) sent to clients.",
            ("route",),
            registry=self.registry,
        )
        self.bytes = Counter(
            "tardis_machine_sent_bytes",
            "Bytes of messages sent to clients, without framing.",
            ("route",),
            registry=self.registry,
        )
        self.limited = Counter(
            "tardis_machine_limited",
            "Requests, connections and clients refused or cut at a limit.",
            ("limit",),
            registry=self.registry,
        )
        self.connections = Gauge(
            "tardis_machine_connections",
            "Connections that are open now.",
            ("port",),
            registry=self.registry,
        )
        self.pinned = Gauge(
            "tardis_machine_pinned_slices",
            "Slices that replays are about to read, kept from eviction by this process.",
            registry=self.registry,
        )
        self.malformed = Counter(
            "tardis_machine_malformed_lines",
            "Lines of history that could not be used and were left out.",
            ("route",),
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Write all metrics as text."""
        return generate_latest(self.registry)


class CacheCollector(Collector):
    """The size of the cache, left out until it has been counted."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        self._count = count

    def describe(self) -> list[Metric]:
        """Nothing in advance: to ask would begin to count."""
        return []

    def collect(self) -> Iterator[Metric]:
        total = self._count()
        if total is not None:
            text = "Slices in the cache directory, whichever process stored them."
            yield GaugeMetricFamily("tardis_machine_cache_bytes", text, value=total)


class _LogCollector(Collector):
    """The log's own count, read when it is asked for."""

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "tardis_machine_log_dropped",
            "Log lines that could not be written: standard error was not read, or is gone.",
            value=logs.dropped_lines(),
        )
