"""Metrics of a cluster's workers, put together by the one that is asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tardis_machine.server import cluster_metrics
from tardis_machine.server.cluster import Worker
from tardis_machine.server.cluster_metrics import ClusterMetrics
from tardis_machine.server.metrics import Metrics

StartWorker = Callable[..., Awaitable[ClusterMetrics]]


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Run once: no kernel takes part."""


@pytest.fixture
async def start_worker(tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Start workers with so many responses each; stop them after the test."""
    async with AsyncExitStack() as stack:

        async def started(number: int, responses: int, restarts: int = 0) -> ClusterMetrics:
            metrics = Metrics()
            metrics.responses.labels("/replay", "finished").inc(responses)
            worker = ClusterMetrics(Worker(tmp_path, number, restarts), metrics)
            await worker.start()
            stack.callback(worker.stop)
            return worker

        yield started


async def responses(worker: ClusterMetrics) -> dict[str, float]:
    """Return the responses that a scrape of this worker shows, by the label `process`."""
    return {
        sample.labels["process"]: sample.value
        for family in text_string_to_metric_families((await worker.render()).decode())
        for sample in family.samples
        if sample.name == "tardis_machine_responses_total"
    }


async def test_any_worker_has_the_series_of_all(start_worker: StartWorker) -> None:
    workers = [await start_worker(number, responses=number + 5) for number in range(3)]
    for worker in workers:
        assert await responses(worker) == {"0": 5, "1": 6, "2": 7}


async def test_family_is_described_once(start_worker: StartWorker) -> None:
    worker, _ = await start_worker(0, responses=1), await start_worker(1, responses=1)
    lines = (await worker.render()).decode().splitlines()
    headers = [" ".join(line.split(" ")[:3]) for line in lines if line.startswith("#")]
    assert len(headers) == len(set(headers))
    assert all('process="' in line for line in lines if not line.startswith("#"))


async def test_worker_started_again_replaces_the_one_that_died(start_worker: StartWorker) -> None:
    asked = await start_worker(0, responses=5)
    (await start_worker(1, responses=6)).stop()
    await start_worker(1, responses=0, restarts=1)
    assert await responses(asked) == {"0": 5, "1": 0}
    assert 'tardis_machine_process_restarts_total{process="1"} 1.0' in (
        (await asked.render()).decode()
    )


async def test_worker_that_died_is_missing(start_worker: StartWorker) -> None:
    asked = await start_worker(0, responses=5)
    (await start_worker(1, responses=6)).stop()
    assert await responses(asked) == {"0": 5}


@pytest.mark.parametrize("dies", [True, False])
async def test_worker_that_dies_or_hangs_while_it_answers_is_missing(
    start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(cluster_metrics, "_PATIENCE_S", 10.0 if dies else 0.1)
    asked = await start_worker(0, responses=5)
    cut = b"# HELP tardis_machine_responses_total \n# TYPE tardis_machine_responses_total counter\n"
    cut += b'tardis_machine_responses_total{outcome="finished",process="1",route="/replay"} 1'

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(cut)
        if not dies:
            await given_up.wait()
        writer.close()

    given_up = asyncio.Event()
    async with await asyncio.start_unix_server(answer, tmp_path / "1.sock"):
        assert await responses(asked) == {"0": 5}
        given_up.set()
