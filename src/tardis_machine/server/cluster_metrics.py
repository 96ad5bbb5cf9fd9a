"""Metrics of a cluster: the series of all workers, each with its worker's number as a label.

A scrape reaches one worker. That worker asks the others, through sockets in a directory that only
this user can enter, and puts their texts together. It adds nothing up: Prometheus does.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tardis_machine.server.cluster import Worker
from tardis_machine.server.metrics import Metrics

_LABEL: Final = "process"
_PATIENCE_S: Final = 2.0
_SOCKET: Final = ".sock"
_FAMILY: Final = b"\n# HELP "
_END: Final = b"# EOF\n"
"""The last line of an answer: without it the worker died while it wrote."""


class ClusterMetrics:
    """The metrics of one worker and, on request, those of all workers of its cluster."""

    def __init__(self, worker: Worker, metrics: Metrics) -> None:
        restarts = Counter(
            "tardis_machine_process_restarts",
            "Times this process of the cluster was started again.",
            registry=metrics.registry,
        )
        restarts.inc(worker.restarts)
        self._own = worker.directory / f"{worker.number}{_SOCKET}"
        self._labelled = _Labelled(metrics.registry, str(worker.number))
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the other workers from now on."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(generate_latest(self._labelled) + _END)
                await writer.drain()
            writer.close()

        # A worker that died has left its socket to the one that follows it.
        self._own.unlink(missing_ok=True)
        # Two steps: a cancellation while one call creates and starts the server would leave a
        # running server without a reference to it.
        self._server = await asyncio.start_unix_server(answer, self._own, start_serving=False)
        await self._server.start_serving()

    def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()

    async def render(self) -> bytes:
        """Return the series of all workers as text; a worker silent for 2 s is left out."""
        others = [path for path in self._own.parent.glob(f"*{_SOCKET}") if path != self._own]
        answers = await asyncio.gather(*map(_ask, others))
        return _joined([generate_latest(self._labelled), *answers])


class _Labelled(Collector):
    """The series of a registry, with a worker's number added to their labels."""

    def __init__(self, registry: Collector, number: str) -> None:
        self._registry = registry
        self._number = number

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, _LABEL: self._number})
                for sample in family.samples
            ]
            yield family


async def _ask(path: Path) -> bytes:
    """Return the text of the worker that listens there; empty if it does not answer in time."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                text = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
    return text.removesuffix(_END) if text.endswith(_END) else b""


def _joined(texts: Iterable[bytes]) -> bytes:
    """Write each family's header once, with the samples that the texts have of it."""
    families: dict[bytes, list[bytes]] = {}
    for text in texts:
        for family in (b"\n" + text.rstrip(b"\n")).split(_FAMILY)[1:]:
            help_line, type_line, *samples = family.split(b"\n")
            header = [_FAMILY[1:] + help_line, type_line]
            families.setdefault(help_line, header).extend(samples)
    return b"".join(b"\n".join(lines) + b"\n" for lines in families.values())
