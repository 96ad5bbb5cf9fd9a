"""Plans before a backfill, and what keeps a stream running and tells how it does."""

import threading
import urllib.request
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.lake import keeping
from tardis_machine.lake.batches import Written
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.keeping import keep
from tardis_machine.lake.manifest import Counts
from tardis_machine.lake.metrics import StreamMetrics
from tardis_machine.lake.planning import estimate
from tardis_machine.lake.running import Failed, reason_of, run_lanes
from tardis_machine.lake.tables import EVENTS, MANIFEST, Tables
from tardis_machine.lake.units import Unit, plan
from tardis_machine.replays.requests import Request, replay_normalized_options
from tests.lake.events import trade
from tests.support.servers.redis import RedisServer


class Query:
    """A stream that has finished a batch, or none, and then ends."""

    def __init__(self, error: str | None, batch: int | None = None) -> None:
        self._error = error
        self._batch = batch
        self.lastProgress: dict[str, int] | None = None
        self.stopped = False

    def awaitTermination(self, _: float | None) -> bool:  # noqa: N802 - Spark's name
        if self._batch is not None:
            self.lastProgress = {"batchId": self._batch}
        if self._error is not None:
            raise StreamingQueryException(self._error)
        return True

    def stop(self) -> None:
        self.stopped = True


def kept(queries: list[Query], restarts: int) -> int:
    """Keep these running, one after the other; tell how often one was started."""
    started: list[Query] = []

    def start() -> Any:
        started.append(queries[len(started)])
        return started[-1]

    try:
        keep(start, threading.Event(), restarts=restarts)
    finally:
        queries[:] = started
    return len(started)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_SHORTEST_S", 0.001)
    monkeypatch.setattr(keeping, "_LONGEST_S", 0.001)


def test_a_stream_is_started_again_until_it_has_failed_too_often_in_a_row() -> None:
    assert kept([Query("broker away"), Query("broker away"), Query(None)], 2) == 3
    again = [Query("broker away") for _ in range(4)]
    with pytest.raises(LakeError, match="broker away"):
        kept(again, 2)
    assert len(again) == 3
    # Each got somewhere: it is not the same trouble over and over.
    moving = [*(Query("broker away", batch) for batch in range(5)), Query(None)]
    assert kept(moving, 1) == 6


@pytest.mark.parametrize(
    "error",
    ["5 to 9 were trimmed … --on-data-loss skip", "Use a new --checkpoint", "Java heap space"],
)
def test_what_starting_again_does_not_mend_ends_a_stream(error: str) -> None:
    queries = [Query(error), Query(None)]
    with pytest.raises(LakeError, match=error[-10:]):
        kept(queries, 5)
    assert len(queries) == 1


def test_a_stream_that_is_told_to_stop_is_stopped() -> None:
    stopping = threading.Event()
    stopping.set()
    query = Query(None)
    query.awaitTermination = lambda _: False  # type: ignore[method-assign]
    keep(lambda: query, stopping, restarts=5)  # type: ignore[arg-type,return-value]
    assert query.stopped


def test_a_day_that_fails_without_a_word_is_reported_as_well() -> None:
    def write() -> Counts:
        raise MemoryError

    unit = Unit("bitmex", 0, 1, ("trade",), None)
    spark: Any = None
    report = run_lanes(spark, [[unit]], lambda _: write, threads=1, attempts=1, wait_s=0)
    assert report.failed == [Failed(unit, "MemoryError")]
    assert reason_of(ValueError("Traceback (most recent call last):\n  File")) == "File"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("a.b.AnalysisException: [GONE] no table", "AnalysisException: [GONE] no table"),
        (
            "Py4JJavaError: An error occurred while calling o1.\n: java.OutOfMemoryError: M\n\tat",
            "java.OutOfMemoryError: M",
        ),
    ],
)
def test_why_a_batch_failed_is_told_in_a_line(raised: str, said: str) -> None:
    error = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Return Message: "
        f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\n{raised}\n'
        " SQLSTATE: 39000 SQLSTATE: XXKST"
    )
    with pytest.raises(LakeError) as ended:
        kept([Query(error)], restarts=0)
    assert str(ended.value) == said


def test_prometheus_is_told_what_batches_brought() -> None:
    metrics = StreamMetrics()
    metrics.wrote(Written(7, 2, {"trade": 5}, latest_us=1_000_000))
    listener = metrics.listener()
    listener.onQueryStarted(None)
    busy = SimpleNamespace(numInputRows=9, batchDuration=1500)
    listener.onQueryProgress(SimpleNamespace(progress=busy))
    idle = SimpleNamespace(numInputRows=0, batchDuration=3)
    listener.onQueryProgress(SimpleNamespace(progress=idle))
    port = metrics.serve("127.0.0.1", 0)

    def told() -> dict[str, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    found = told()
    name = "tardis_machine_lake_{}".format
    assert found[name("events_total")] == "7.0"
    assert found[name("rejected_total")] == "2.0"
    assert found[name('rows_total{payload_case="trade"}')] == "5.0"
    assert found[name("input_rows_total")] == "9.0"
    assert found[name("batch_seconds_sum")] == "1.5"
    assert found[name("batch_seconds_count")] == "1.0"
    assert found[name("running")] == "1.0"
    assert float(found[name("behind_seconds")]) > 10**9
    listener.onQueryIdle(None)
    listener.onQueryTerminated(None)
    found = told()
    assert (found[name("behind_seconds")], found[name("running")]) == ("0.0", "0.0")


def test_a_port_for_prometheus_that_is_taken_is_named() -> None:
    port = StreamMetrics().serve("127.0.0.1", 0)
    with pytest.raises(LakeError, match=f"^cannot listen on 127.0.0.1:{port}: Address already in"):
        StreamMetrics().serve("127.0.0.1", port)


def test_a_plan_counts_by_a_few_minutes() -> None:
    asked = [
        {
            "exchange": "bitmex",
            "from": "2024-03-01",
            "to": "2024-03-01T00:04",
            "dataTypes": ["trade", "book_change"],
        }
    ]
    replays = replay_normalized_options(list(map(Request, asked)))
    [found] = estimate(plan(replays), {"sampleData": "true"})
    assert (found.exchange, found.units, found.minutes, found.probed) == ("bitmex", 1, 4, 3)
    assert found.bytes is None
    assert found.events > 0
    [alone] = estimate(plan(replays, layers=("kafka:x",)), {"sampleData": "true"})
    assert found.events == alone.events


def test_a_dry_run_does_nothing(tables: Tables, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--sample-data", "--exchange", "bitmex", "--types", "trade", "--dry-run"]
    flags += ["--from", "2024-03-01", "--to", "2024-03-01T00:02"]
    to = ["--to-tables", tables.root, "--to-bus", "redis", "--redis-stream", "s"]
    assert main(["backfill", *flags, *to]) == 0
    said = capsys.readouterr().out
    assert (
        "bitmex 2024-03-01T00:00 to 2024-03-01T00:02 trade of all symbols: bronze, silver" in said
    )
    assert "trade of all symbols: redis" in said
    assert "2 units; replaying them takes about" in said
    assert not tables.exists(MANIFEST)


def test_a_stream_by_its_command_tells_prometheus(
    tables: Tables, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StreamMetrics] = []

    class Remembered(StreamMetrics):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr("tardis_machine.lake.metrics.StreamMetrics", Remembered)
    stream = f"stream-{uuid4()}"
    client = redis.client()
    for value in (trade(0), trade(1), b"garbage"):
        client.xadd(stream, {"value": value})
    client.close()
    flags = ["--from-bus", "redis", "--redis-url", redis.url, "--redis-stream", stream]
    flags += ["--to-tables", tables.root, "--once", "--bronze-only", "--metrics-port", "0"]
    assert main(["stream", *flags]) == 0
    assert tables.read(EVENTS).count() == 2
    [metrics] = made
    found = metrics.registry.get_sample_value
    assert found("tardis_machine_lake_events_total") == 2
    assert found("tardis_machine_lake_rejected_total") == 1
    # What Spark's listener tells, which the command has waited for.
    assert found("tardis_machine_lake_running") == 0
    assert found("tardis_machine_lake_batch_seconds_count") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], r"--to-tables: is needed, or --to-bus, or both"),
        (["--to-bus", "redis", "--redis-stream", "s"], r"--manifest: is needed without"),
        (["--to-bus", "redis", "--manifest", "m"], r"--to-bus 'redis': needs --redis-stream"),
        (["--to-bus", "carrier-pigeon"], r"--to-bus"),
    ],
)
def test_a_backfill_to_nowhere_is_refused(flags: list[str], said: str) -> None:
    own = ["--exchange", "bitmex", "--types", "trade", "--from", "2024-03-01", "--to", "2024-03-02"]
    with pytest.raises(ConfigError, match=said):
        main(["backfill", *own, *flags])
