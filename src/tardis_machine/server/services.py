"""What every response needs, whichever port it goes out of."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tardis_machine.engine import Written
from tardis_machine.history import History
from tardis_machine.live.hub import Hub
from tardis_machine.live.settings import LiveConfig
from tardis_machine.live.statistics import LiveCollector
from tardis_machine.replays.merger import Chunk
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tardis_machine.server import identity
from tardis_machine.server.access import Gate
from tardis_machine.server.cluster_metrics import ClusterMetrics
from tardis_machine.server.limits import Limits
from tardis_machine.server.metrics import Metrics
from tardis_machine.server.outlet import Outlet
from tardis_machine.server.pace import Journal, Replay, Turns, deliver
from tardis_machine.server.settings import ServerConfig

if TYPE_CHECKING:
    from tardis_machine.publish.outbox import Outbox

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Services:
    """The parts of a running server that its responses share."""

    config: ServerConfig
    limits: Limits
    port: int
    history: History
    metrics: Metrics
    live: LiveConfig = field(default_factory=LiveConfig)
    outbox: "Outbox | None" = None
    cluster_metrics: ClusterMetrics | None = None
    turns: Turns = field(default_factory=Turns)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Make what both ports share."""
        self.gate = Gate(self.config, self.port)
        self.hub = Hub(self.live, open_journal=self.live_journal)
        counted = self.hub.resources
        self._collector = LiveCollector(counted.statistics, lambda: counted.inbox.size)
        self.metrics.registry.register(self._collector)
        self.ending = False
        self._work: set[asyncio.Future[Any]] = set()
        self._responses: set[asyncio.Task[object]] = set()

    @contextmanager
    def under_way(self, work: "asyncio.Future[Any]") -> Iterator[None]:
        """Have a response's work cancelled, and the response that runs this waited for, at end."""
        response = asyncio.current_task()
        assert response is not None
        self._work.add(work)
        self._responses.add(response)
        try:
            yield
        finally:
            self._work.discard(work)
            self._responses.discard(response)

    async def end(self, patience_s: float) -> None:
        """End every response that is under way, and give it time to say so to its client."""
        self.ending = True
        for work in self._work:
            work.cancel()
        try:
            if self._responses:
                await asyncio.wait(self._responses, timeout=patience_s)
        finally:
            self.metrics.registry.unregister(self._collector)
            await self.hub.close()

    def interrupted(self, *outlets: Outlet) -> str:
        """Tell the outcome of a response that was cancelled, and count a client that stalled."""
        if any(outlet.stalled for outlet in outlets):
            self.metrics.limited.labels("stall_timeout_s").inc()
            return "stalled"
        return "stopped" if self.ending else "disconnected"

    @property
    def source_headers(self) -> dict[str, str]:
        """Headers that name the synthetic sample, where it takes the place of history."""
        source = self.history.source
        return {} if source is None else {"X-Sample-Data": source}

    def live_journal(self) -> Journal | None:
        """Open the journal of live streams; their clients share it, and the first one's ids."""
        route = "/ws-stream-normalized"
        return self.journal((), flow="ws-stream", transport="ws", route=route)

    def journal(
        self,
        options: Sequence[ReplayNormalizedOptions],
        *,
        flow: str,
        transport: str,
        route: str,
    ) -> Journal | None:
        """Open the journal of a response, if it is to be published."""
        if self.outbox is None or not all(each.publish for each in options):
            return None
        asking = identity.current()
        return self.outbox.response(
            flow=flow,
            request_id=asking.request_id,
            session_id=asking.session_id,
            transport=transport,
            route=route,
            origin="realtime" if flow == "ws-stream" else "replay",
        )

    async def run(
        self,
        route: str,
        replay: Replay,
        batches: Iterator[Chunk],
        send: Callable[[Written], Awaitable[None]],
        outlet: Outlet,
        journal: Journal | None = None,
    ) -> None:
        """Deliver a replay to one client, and account for it however it ends."""
        messages = self.metrics.messages.labels(route)
        sent_bytes = self.metrics.bytes.labels(route)
        total = size = 0
        began = time.monotonic()

        def account(data: Written, count: int) -> None:
            nonlocal total, size
            poured, poured_bytes = outlet.settle()
            total += count + poured
            size += len(data) + poured_bytes
            messages.inc(count + poured)
            sent_bytes.inc(len(data) + poured_bytes)

        async def counted(data: Written, count: int) -> None:
            await send(data)
            account(data, count)

        outcome = "disconnected"
        self.metrics.active.labels(route).inc()
        try:
            await deliver(
                replay, batches, counted, turns=self.turns, journal=journal, pour=outlet.pour
            )
            outcome = "finished"
        except ConnectionError:
            raise
        except Exception:
            outcome = "failed"
            raise
        except asyncio.CancelledError:
            outcome = self.interrupted(outlet)
            raise
        finally:
            if journal is not None and outcome not in {"finished", "failed"}:
                journal.cancel()
            account(b"", 0)
            replay.close()
            self.metrics.malformed.labels(route).inc(replay.malformed)
            self.metrics.active.labels(route).dec()
            self.metrics.responses.labels(route, outcome).inc()
            log.info(
                "response ended",
                extra={
                    "route": route,
                    "outcome": outcome,
                    "messages": total,
                    "bytes": size,
                    "seconds": round(time.monotonic() - began, 3),
                    **identity.current().logged,
                },
            )
