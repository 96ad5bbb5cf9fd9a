"""What a stream into the tables tells Prometheus: how far behind it is, what batches brought."""

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

from tardis_machine.lake.errors import LakeError

if TYPE_CHECKING:
    from tardis_machine.lake.batches import Written

log = logging.getLogger(__name__)

_PREFIX: Final = "tardis_machine_lake_"
_SECONDS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class StreamMetrics:
    """The metrics of one stream: batches tell what they wrote, a listener of Spark's the rest."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.registry = CollectorRegistry()
        self.batch_seconds = Histogram(
            f"{_PREFIX}batch_seconds",
            "Time a batch took.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.events = self._counter("events", "Rows that Bronze gained.")
        self.rows = self._counter("rows", "Rows that Silver gained.", "payload_case")
        self.rejected = self._counter("rejected", "Records that quarantine gained.")
        self.restarts = self._counter("restarts", "Times the stream was started again.")
        self.input_rows = self._counter("input_rows", "Records that batches were made of.")
        self.behind = Gauge(
            f"{_PREFIX}behind_seconds",
            "Age of the newest record of the last batch when it was written; 0 while there is none "
            "to read.",
            registry=self.registry,
        )
        self.last_batch = Gauge(
            f"{_PREFIX}last_batch_time_seconds",
            "When a batch was last finished.",
            registry=self.registry,
        )
        self.running = Gauge(
            f"{_PREFIX}running", "Whether the stream runs.", registry=self.registry
        )

    def wrote(self, written: "Written") -> None:
        """Note what a batch brought."""
        self.events.inc(written.events)
        self.rejected.inc(written.rejected)
        for case, count in written.inserted.items():
            self.rows.labels(case).inc(count)
        if written.latest_us is not None:
            self.behind.set(max(0.0, time.time() - written.latest_us / 1e6))

    def serve(self, host: str, port: int) -> int:
        """Answer `/metrics` from a thread of its own; tells the port."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise LakeError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        log.info("metrics", extra={"host": host, "port": server.server_port})
        return int(server.server_port)

    def listener(self) -> StreamingQueryListener:
        """Give what Spark tells about its queries to these metrics."""
        return _Listener(self)

    def wait_for_end(self, timeout_s: float) -> None:
        """Wait until Spark has told all about a query that has ended: it does so behind it."""
        self.ended.wait(timeout_s)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}{name}", help_text, labels, registry=self.registry)


class _Listener(StreamingQueryListener):
    def __init__(self, metrics: StreamMetrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._metrics.ended.clear()
        self._metrics.running.set(1)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        # One without records is only Spark's word that it looked.
        if progress.numInputRows:
            self._metrics.input_rows.inc(progress.numInputRows)
            self._metrics.batch_seconds.observe(progress.batchDuration / 1000)
            self._metrics.last_batch.set(time.time())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self._metrics.behind.set(0)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._metrics.running.set(0)
        self._metrics.ended.set()
