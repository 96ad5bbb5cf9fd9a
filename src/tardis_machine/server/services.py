"""What every response needs, whichever port it goes out of."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tardis_machine.errors import TardisMachineError
from tardis_machine.history import History
from tardis_machine.metrics import Metrics
from tardis_machine.options import ReplayNormalizedOptions
from tardis_machine.progress import Progress
from tardis_machine.replay import Batch
from tardis_machine.server.access import Gate
from tardis_machine.server.pace import Journal, Replay, Turns, deliver
from tardis_machine.server.settings import ServerConfig

if TYPE_CHECKING:
    from tardis_machine.publish.outbox import Outbox

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Services:
    """The parts of a running server that its responses share."""

    config: ServerConfig
    history: History
    metrics: Metrics
    outbox: "Outbox | None" = None
    turns: Turns = field(default_factory=Turns)
    progress: Progress = field(default_factory=Progress)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Make the gate that both ports share."""
        self.gate = Gate(self.config)
        self._running: set[asyncio.Task[object]] = set()

    def end(self) -> None:
        """End every response that is under way."""
        for task in self._running:
            task.cancel()

    def journal(
        self, options: Sequence[ReplayNormalizedOptions], *, flow: str, transport: str, route: str
    ) -> Journal | None:
        """Open the journal of a response, if it is to be published."""
        if self.outbox is None or not all(each.publish for each in options):
            return None
        identity = uuid.uuid4().hex
        return self.outbox.response(
            flow=flow,
            request_id=identity,
            session_id=identity,
            transport=transport,
            route=route,
            origin="replay",
        )

    async def run(
        self,
        route: str,
        replay: Replay,
        batches: Iterator[Batch],
        send: Callable[[bytes], Awaitable[None]],
        journal: Journal | None = None,
        *,
        eager: bool = True,
    ) -> None:
        """Deliver a replay to one client, and account for it however it ends."""
        messages = self.metrics.messages.labels(route)
        sent_bytes = self.metrics.bytes.labels(route)
        total = size = 0
        began = time.monotonic()

        async def counted(data: bytes, count: int) -> None:
            nonlocal total, size
            await send(data)
            total += count
            size += len(data)
            messages.inc(count)
            sent_bytes.inc(len(data))
            if self.progress.on:
                self.progress.advance(task, replay.progress, total)

        outcome = "disconnected"
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self.progress.begin(task, route)
        self.metrics.active.labels(route).inc()
        try:
            await deliver(replay, batches, counted, turns=self.turns, journal=journal, eager=eager)
            outcome = "finished"
        except ConnectionError:
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self._running.discard(task)
            self.progress.end(task)
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
                },
            )


def status_of(error: BaseException) -> int:
    """Answer an error with its own status: the upstream's, or what the options deserve."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) and 400 <= status <= 599 else 500


def text_of(error: BaseException) -> str:
    """Give the text a client may see: ours are written for it, others stay in the log."""
    if isinstance(error, TardisMachineError):
        return str(error)
    return f"internal error ({type(error).__name__}): see the server's log"
