"""The processes of a cluster, telling each other what they count.

A scrape reaches one of them; it asks the others, through sockets in a directory that only this
user can enter. What a process counted before it died is kept as it was last seen, so that a sum
does not fall.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 2.0
_RESTARTS: Final = "restarts"
_SOCKET: Final = ".sock"
_LAST: Final = ".last"
# Each process sees these whole, since they share a journal; the rest is each one's own.
_SHARED: Final = "tardis_machine_publish_"
_OWN: Final = frozenset(
    {
        "tardis_machine_publish_publisher_restarts",
        "tardis_machine_publish_supervision_failures",
        "tardis_machine_publish_unjournalled",
    }
)
_LOWEST: Final = frozenset(
    {
        "tardis_machine_publish_publisher_up",
        "tardis_machine_publish_bus_healthy",
        "process_start_time_seconds",
    }
)
_HIGHEST: Final = frozenset({"process_max_fds", "tardis_machine_cache_bytes"})

Combine = Callable[[float, float], float]


class Siblings:
    """This process among those of its cluster."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._own = directory / f"{os.getpid()}{_SOCKET}"
        self._server: asyncio.Server | None = None

    async def start(self, render: Callable[[], bytes]) -> None:
        """Tell whoever asks what this process counts."""

        async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(render())
                await writer.drain()
            writer.close()

        # Cancelled in one call of both, it would leave a server that nothing refers to.
        self._server = await asyncio.start_unix_server(tell, self._own, start_serving=False)
        await self._server.start_serving()

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._server is not None:
            self._server.close()

    async def metrics(self, own: bytes) -> bytes:
        """Give the whole cluster's metrics, those of this process being known."""
        _remember(self._own, own)
        others = [path for path in self.directory.glob(f"*{_SOCKET}") if path != self._own]
        told = await asyncio.gather(*(self._ask(path) for path in others))
        registry = CollectorRegistry()
        registry.register(_Sum([_families(own), *told], restarts(self.directory)))
        return generate_latest(registry)

    async def _ask(self, path: Path) -> list[Metric]:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    text = await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return _totals(path.with_suffix(_LAST))
        _remember(path, text)
        return _families(text)


def restarts(directory: Path) -> int:
    """How often a process of the cluster was started anew."""
    try:
        return int((directory / _RESTARTS).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def restarted(directory: Path) -> None:
    """Count a process that is started anew."""
    count = restarts(directory) + 1
    temporary = directory / f"{_RESTARTS}.new"
    temporary.write_text(str(count), encoding="ascii")
    temporary.rename(directory / _RESTARTS)


class _Sum(Collector):
    def __init__(self, texts: Iterable[list[Metric]], restarted: int) -> None:
        self._texts = texts
        self._restarted = restarted

    def describe(self) -> list[Metric]:
        """Nothing in advance."""
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for text in self._texts:
            for family in text:
                known = families.get(family.name)
                if known is None:
                    families[family.name] = family
                else:
                    _merge(known, family, _rule(family.name))
        yield from families.values()
        yield CounterMetricFamily(
            "tardis_machine_process_restarts",
            "Times a process of the cluster was started anew.",
            value=self._restarted,
        )


def _merge(into: Metric, family: Metric, combine: Combine) -> None:
    places = {
        (sample.name, tuple(sorted(sample.labels.items()))): at
        for at, sample in enumerate(into.samples)
    }
    for sample in family.samples:
        at = places.get((sample.name, tuple(sorted(sample.labels.items()))))
        if at is None:
            into.samples.append(sample)
        else:
            known = into.samples[at]
            into.samples[at] = known._replace(value=combine(known.value, sample.value))


def _rule(name: str) -> Combine:
    if name in _LOWEST or name.endswith("_created"):
        return min
    if name in _HIGHEST or (name.startswith(_SHARED) and name not in _OWN):
        return max
    return float.__add__


def _remember(path: Path, text: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(text)
    temporary.rename(path.with_suffix(_LAST))


def _families(text: bytes) -> list[Metric]:
    return list(text_string_to_metric_families(text.decode()))


def _totals(path: Path) -> list[Metric]:
    """Return what an ended process had counted, without the gauges that ended with it."""
    try:
        families = _families(path.read_bytes())
    except FileNotFoundError:
        return []
    return [family for family in families if family.type in {"counter", "histogram"}]
