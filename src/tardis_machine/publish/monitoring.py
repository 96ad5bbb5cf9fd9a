"""What Prometheus is told about publishing, from the publisher's last word."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tardis_machine.publish.accounts import Distribution, Snapshot

_PREFIX: Final = "tardis_machine_publish_"
_COUNTERS: Final = {
    "journalled": "Messages written to the journal for this bus.",
    "filtered": "Messages that the bus's allow-list leaves out.",
    "delivered": "Messages acknowledged by the bus, duplicates included.",
    "duplicates": "Acknowledgements that said the bus had the message already.",
    "dead_lettered": "Messages the bus will never accept.",
    "dropped": "Messages skipped because the journal was full or corrupt.",
}
_GAUGES: Final = {
    "accepted": "Messages journalled and not filtered.",
    "pending": "Messages accepted and not yet delivered, dead-lettered or dropped.",
}


class State(NamedTuple):
    """What the server itself knows."""

    snapshot: Snapshot | None
    stalled: frozenset[str]
    buses: tuple[str, ...]
    running: bool
    reporting: bool
    restarts: int
    supervision_failures: int
    journal_bytes: int
    journal_max_bytes: int
    journal_room_bytes: int
    journal_waiting: int
    journal_unsynced: bool
    ring_bytes: int
    ring_max_bytes: int
    lost: int


class PublishingCollector(Collector):
    """Turns the present state into metrics whenever they are asked for."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering must not ask for a state that is not there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        yield _gauge("publisher_up", "Whether the publisher process runs.", state.running)
        yield CounterMetricFamily(
            _PREFIX + "publisher_restarts",
            "Times the publisher process was started again.",
            value=state.restarts,
        )
        yield CounterMetricFamily(
            _PREFIX + "supervision_failures",
            "Times the server's supervision of its publisher ended unexpectedly.",
            value=state.supervision_failures,
        )
        yield _gauge("journal_used_bytes", "Size of the journal directory.", state.journal_bytes)
        yield _gauge("journal_max_bytes", "Bound of the journal.", state.journal_max_bytes)
        yield _gauge(
            "journal_room_bytes",
            "What can still be journalled: the bound or the disk, if it has less.",
            state.journal_room_bytes,
        )
        yield _gauge(
            "journal_waiting", "Batches of replays that wait for space.", state.journal_waiting
        )
        yield _gauge(
            "journal_unsynced",
            "1 after a failed sync of the journal, until a new segment has been synced.",
            state.journal_unsynced,
        )
        yield _gauge(
            "ring_used_bytes", "What is on its way through the journal's ring.", state.ring_bytes
        )
        yield _gauge("ring_max_bytes", "Bound of the ring.", state.ring_max_bytes)
        yield CounterMetricFamily(
            _PREFIX + "unjournalled",
            "Messages of live or dropping flows that not even an emptied journal had room for.",
            value=state.lost,
        )
        yield _healthy(state)
        if state.snapshot is not None:
            yield _gauge(
                "journal_aside_bytes",
                "Bytes of the journal that cannot be read and are kept.",
                state.snapshot.aside_bytes,
            )
            yield CounterMetricFamily(
                _PREFIX + "gave_way_seconds",
                "How long delivery waited for responses at full speed.",
                value=state.snapshot.gave_way_s,
            )
            yield CounterMetricFamily(
                _PREFIX + "log_dropped",
                "Log lines of the publisher that could not be written.",
                value=state.snapshot.log_dropped,
            )
            yield from _of_buses(state.snapshot, state.stalled)


def _healthy(state: State) -> Metric:
    """Tell of every bus whether it is healthy; none is that nobody hears of."""
    gauge = GaugeMetricFamily(
        _PREFIX + "bus_healthy",
        "0 after too many failures in a row, or while the publisher does not report.",
        labels=("bus",),
    )
    for name in state.buses:
        bus = None if state.snapshot is None else state.snapshot.buses.get(name)
        healthy = state.reporting and (bus is None or bus.statistics.healthy)
        gauge.add_metric((name,), int(healthy))
    return gauge


def _of_buses(snapshot: Snapshot, stalled: frozenset[str]) -> Iterator[Metric]:
    counts = {name: bus.account.counts() for name, bus in snapshot.buses.items()}
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(_PREFIX + name, text, labels=("bus",))
        for label, count in counts.items():
            counter.add_metric((label,), count[name])
        yield counter
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=("bus",))
        for label, count in counts.items():
            gauge.add_metric((label,), count[name])
        yield gauge
    retried = CounterMetricFamily(_PREFIX + "retried", "Records sent again.", labels=("bus",))
    deaths = CounterMetricFamily(
        _PREFIX + "delivery_deaths",
        "Times the bus's delivery died of an unexpected error and began anew.",
        labels=("bus",),
    )
    held_back = GaugeMetricFamily(
        _PREFIX + "held_back", "Records that wait for destinations that fail.", labels=("bus",)
    )
    held_back_bytes = GaugeMetricFamily(
        _PREFIX + "held_back_bytes", "What these records weigh.", labels=("bus",)
    )
    behind = GaugeMetricFamily(
        _PREFIX + "journal_bytes", "Bytes of the journal the bus has yet to pass.", labels=("bus",)
    )
    letters = GaugeMetricFamily(
        _PREFIX + "dead_letter_bytes", "Size of the bus's dead letters.", labels=("bus",)
    )
    stuck = GaugeMetricFamily(
        _PREFIX + "bus_stalled", "1 while a full journal skips the bus ahead.", labels=("bus",)
    )
    batches = HistogramMetricFamily(_PREFIX + "batch_size", "Records per batch.", labels=("bus",))
    latency = HistogramMetricFamily(
        _PREFIX + "latency_seconds", "From journal to acknowledgement.", labels=("bus",)
    )
    for label, bus in snapshot.buses.items():
        retried.add_metric((label,), bus.statistics.retried)
        deaths.add_metric((label,), bus.statistics.deaths)
        held_back.add_metric((label,), bus.statistics.held_back)
        held_back_bytes.add_metric((label,), bus.statistics.held_back_bytes)
        behind.add_metric((label,), bus.journal_bytes)
        letters.add_metric((label,), bus.dead_letter_bytes)
        stuck.add_metric((label,), int(label in stalled))
        batches.add_metric((label,), _buckets(bus.statistics.batches), bus.statistics.batches.total)
        latency.add_metric((label,), _buckets(bus.statistics.latency), bus.statistics.latency.total)
    yield from (
        retried,
        deaths,
        held_back,
        held_back_bytes,
        behind,
        letters,
        stuck,
        batches,
        latency,
    )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*map(str, distribution.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(distribution.counts)), strict=True))
