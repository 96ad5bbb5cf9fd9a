"""What the server holds of publishing: the journal it writes, the publisher it watches."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from tardis_machine.bronze import Origin
from tardis_machine.config import ConfigError, to_dict, with_absolute_paths
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import (
    BoundError,
    Directory,
    Flow,
    Provenance,
    Scribe,
    Ticket,
    WhenFull,
    Writer,
)
from tardis_machine.journal.entry import Buffer, encode_provenance
from tardis_machine.journal.segment import aside
from tardis_machine.log import JsonFormatter
from tardis_machine.publish.accounts import Account, BusReport, DrainReport, Snapshot
from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.monitoring import PublishingCollector, State
from tardis_machine.publish.process import SILENT_S, Settings
from tardis_machine.publish.supervisor import Supervisor
from tardis_machine.waiting import in_thread

if TYPE_CHECKING:
    from tardis_machine.replays.normalizer import Pour

_log = logging.getLogger(__name__)

_LIVE: Final = "ws-stream"
_OPEN_WAIT_S: Final = 5.0


class PublisherStartError(TardisMachineError):
    """The publisher's process could not be started."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the publisher cannot be started: {reason}")


class Outbox:
    """Nothing happens before `start`: no file, no process."""

    def __init__(
        self,
        buses: Mapping[str, BusConfig],
        journal: JournalConfig,
        publish: PublishConfig,
        registry: CollectorRegistry,
    ) -> None:
        for config in buses.values():
            config.expect_client()
        # Whoever embeds the server may change its folder, and start the publisher again there.
        self._buses = {name: with_absolute_paths(config) for name, config in buses.items()}
        self._journal = with_absolute_paths(journal)
        self._publish = with_absolute_paths(publish)
        self._scribe: Scribe | None = None
        self._supervisor: Supervisor | None = None
        self._snapshot: Snapshot | None = None
        self._heard_at = 0.0
        self._sync_failures = 0
        self.producer_id = publish.producer_id or f"{socket.gethostname()}-{os.getpid()}"
        self.stopped = False
        registry.register(PublishingCollector(self._state))

    @property
    def scribe(self) -> Scribe:
        """The thread that writes the journal."""
        if self._scribe is None:
            raise RuntimeError("publishing has not been started")
        return self._scribe

    @property
    def publisher_pid(self) -> int | None:
        return None if self._supervisor is None else self._supervisor.pid

    async def start(self) -> None:
        """Open a log and start the publisher; leave neither behind on failure or cancellation."""
        scribe = await self._open_scribe()
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(asyncio.to_thread, scribe.close)
            supervisor = self._make_supervisor(scribe.writer)
            try:
                await supervisor.start()
            except OSError as error:
                raise PublisherStartError(error.strerror or str(error)) from error
            undo.pop_all()
        self._scribe, self._supervisor = scribe, supervisor
        self._snapshot, self._sync_failures = None, 0
        self._heard_at = time.monotonic()
        self.stopped = False

    async def _open_scribe(self) -> Scribe:
        """Open a log in a thread; if cancelled, end the log once the thread has opened it."""
        opening = asyncio.ensure_future(in_thread(self._open, "journal-open"))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # On a disk that hangs it goes on by itself.
            await asyncio.wait([asyncio.ensure_future(_end(opening))], timeout=_OPEN_WAIT_S)
            raise

    def _make_supervisor(self, writer: Writer) -> Supervisor:
        root = logging.getLogger()
        formatters = [handler.formatter for handler in root.handlers]
        settings = Settings(
            buses={name: to_dict(config) for name, config in self._buses.items()},
            publish=to_dict(self._publish),
            journal=str(writer.path.parent),
            log=writer.path.name,
            fsync_s=self._journal.fsync_s,
            log_format="json" if any(isinstance(f, JsonFormatter) for f in formatters) else "human",
            debug=root.level == logging.DEBUG,
        )
        return Supervisor(
            settings, self._take, lambda: -1 if writer.ring is None else writer.ring.waits
        )

    async def stop(self, *, drain: bool = True) -> DrainReport:
        """End the log and let the publisher deliver it, within the configured time.

        `drain`: False leaves what the journal holds to the next server.
        """
        self.stopped = True
        ended = False
        try:
            ended = await asyncio.to_thread(self.scribe.close)
        finally:  # also if this is cancelled: nothing else ends the publisher
            assert self._supervisor is not None
            timeout_s = self._publish.drain_timeout_s if drain else 0.0
            await self._supervisor.drain(timeout_s, ended=ended)
        snapshot = self._snapshot
        if snapshot is None or not snapshot.final:
            _log.error(
                "publisher gave no report: see its journal", extra={"dir": self._journal.path}
            )
            left = Account(journalled=self.scribe.writer.messages)
            return DrainReport([BusReport(bus, left) for bus in self._buses])
        if not ended:  # what is not in a segment yet is pending, too
            snapshot.reach(self.scribe.writer.path.name, self.scribe.writer.appended, ended=True)
        return DrainReport([BusReport(bus, each.ended) for bus, each in snapshot.buses.items()])

    def response(
        self,
        *,
        flow: str,
        request_id: str,
        session_id: str,
        transport: str,
        route: str,
        origin: str,
    ) -> "ResponseJournal | None":
        """Open the journal of one response; None if its flow is not published."""
        if flow not in self._publish.publish_flows:
            return None
        provenance = Provenance(
            producer_id=self.producer_id,
            request_id=request_id,
            session_id=session_id,
            origin=int(Origin[origin.upper()]),
            transport=transport,
            route=route,
            source=self._publish.publish_source,
        )
        when_full = WhenFull.DROP if flow == _LIVE else WhenFull(self._journal.when_full)
        return ResponseJournal(self.scribe, Flow(encode_provenance(provenance), when_full))

    def unhealthy(self) -> list[str]:
        """Name what keeps publishing from going on, in words for the health check."""
        trouble = self._publisher_trouble()
        found = [f"publisher: {trouble}"] if trouble else []
        stalled = frozenset() if self._scribe is None else self._scribe.writer.space.stalled
        snapshot = self._snapshot
        for name in self._buses:
            bus = None if snapshot is None else snapshot.buses.get(name)
            if bus is not None and not bus.statistics.healthy:
                found.append(f"{name}: unhealthy")
            elif name in stalled:
                found.append(f"{name}: stalled")
        if self._scribe is not None and self._scribe.shortage is not None:
            found.append(f"journal: {self._scribe.shortage}")
        if self._scribe is not None and self._scribe.gone:
            found.append("journal: deleted or moved, nothing is published")
        elif snapshot is not None and snapshot.aside_bytes:
            found.append(f"journal: {snapshot.aside_bytes} bytes kept aside, they cannot be read")
        if unsynced := self._unsynced():
            found.append(f"journal: not synced ({unsynced}), power loss may cost messages")
        return found

    def health(self) -> dict[str, object]:
        """Tell the state of publishing and of each bus, for the health check."""
        trouble = dict(each.split(": ", 1) for each in self.unhealthy())
        buses: dict[str, dict[str, object]] = {}
        snapshot = self._books()
        for name in self._buses:
            bus = None if snapshot is None else snapshot.buses.get(name)
            if bus is None:
                buses[name] = {"state": trouble.get(name, "starting")}
                continue
            buses[name] = {
                "state": trouble.get(name, "healthy"),
                "pending": bus.account.pending,
                "deadLettered": bus.account.dead_lettered,
                "dropped": bus.account.dropped,
            }
        return {"publisher": trouble.get("publisher", "running"), "buses": buses}

    def _publisher_trouble(self) -> str:
        """Say why nobody knows how the buses are; empty if the publisher says it."""
        supervisor = self._supervisor
        if supervisor is None:
            return ""
        if not supervisor.watching and not self.stopped:
            return "its supervision failed, and is begun again"
        if not supervisor.running:
            return "not running"
        if not supervisor.back:
            return "died, and is not back"
        silent_s = time.monotonic() - self._heard_at
        return f"silent for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    def _open(self) -> Scribe:
        """Begin a log; refuses a directory that is another's or cannot be written to."""
        path = self._journal.claim()
        self._publish.claim_dead_letters(path)
        flag = self._journal.flag("dir")
        kept = Directory(path).aside_bytes()
        if kept >= self._journal.max_bytes:  # not without an end: somebody has to look at it
            raise ConfigError(
                flag,
                str(path),
                f"{kept} bytes are kept aside in {aside(path)}, as much as --journal-max-bytes; "
                "expected somebody to look at them and move them away",
            )
        try:
            writer = Writer(
                path,
                self.producer_id,
                list(self._buses),
                max_bytes=self._journal.max_bytes,
                destinations=destinations(self._buses),
                adopt=self._journal.adopt,
                stall_s=self._journal.stall_s,
                fsync=self._journal.fsync_s,
                ring_bytes=self._journal.ring_bytes,
            )
        except BoundError as error:
            raise ConfigError(flag, str(path), error.reason) from error
        except OSError as error:
            raise ConfigError(
                flag, str(path), f"expected a directory that can be written: {error.strerror}"
            ) from error
        return Scribe(writer)

    def _unsynced(self) -> str:
        """Say why the last sync of the journal failed; empty if it can be relied on."""
        return "" if self._scribe is None else self._scribe.writer.syncing.reason

    def _take(self, snapshot: Snapshot) -> None:
        self._take_sync_failures(snapshot)
        self._snapshot = snapshot
        self._heard_at = time.monotonic()

    def _take_sync_failures(self, snapshot: Snapshot) -> None:
        """Count failures of the publisher, which syncs what goes through the ring, as our own."""
        known, self._sync_failures = self._sync_failures, snapshot.sync_failures
        if snapshot.sync_failures < known:  # it has been started again since
            known = 0
        if snapshot.sync_failures > known and self._scribe is not None:
            self._scribe.writer.syncing.fail(snapshot.sync_error)

    def _books(self) -> Snapshot | None:
        """Give what the publisher said last, with what was journalled since then as pending."""
        if self._snapshot is not None and self._scribe is not None and not self.stopped:
            writer = self._scribe.writer
            self._snapshot.reach(writer.path.name, writer.appended)
        return self._snapshot

    def _state(self) -> State:
        supervisor, scribe = self._supervisor, self._scribe
        ring = None if scribe is None else scribe.writer.ring
        return State(
            snapshot=self._books(),
            stalled=frozenset() if scribe is None else scribe.writer.space.stalled,
            buses=tuple(self._buses),
            running=supervisor is not None and supervisor.running,
            reporting=not self._publisher_trouble(),
            restarts=0 if supervisor is None else supervisor.restarts,
            supervision_failures=0 if supervisor is None else supervisor.failures,
            journal_bytes=0 if scribe is None else scribe.writer.space.used,
            journal_max_bytes=self._journal.max_bytes,
            journal_room_bytes=0 if scribe is None else scribe.writer.space.room,
            journal_waiting=0 if scribe is None else scribe.waiting,
            journal_unsynced=bool(self._unsynced()),
            ring_bytes=0 if ring is None else ring.used,
            ring_max_bytes=0 if ring is None else ring.size,
            lost=0 if scribe is None else scribe.lost,
        )


async def _end(opening: asyncio.Future[Scribe]) -> None:
    """End a log that is being opened, unless that fails."""
    with contextlib.suppress(Exception):
        scribe = await opening
        await asyncio.to_thread(scribe.close)


class ResponseJournal:
    """The journal of one response: where its messages go before its client gets them."""

    def __init__(self, scribe: Scribe, flow: Flow) -> None:
        self._scribe = scribe
        self._flow = flow
        self._position = 0
        self._pour: Pour | None = None

    def admit(self, pour: "Pour") -> bool:
        """Let a pour write messages down by itself; False where nobody but the scribe can."""
        ring = self._scribe.writer.ring
        if ring is None:
            return False
        pour.journal(ring.shared, self._flow.provenance, self._position, self._scribe.renew)
        self._pour = pour
        return True

    def append(self, data: Buffer, count: int) -> Ticket:
        """Write messages; they may be sent once the ticket is done, and that may take space."""
        position = self._reached()
        ticket = self._scribe.write(self._flow, data, count, position)
        self._position = position + count
        if self._pour is not None:
            self._pour.position = self._position
        return ticket

    def append_hidden(self, data: bytes, count: int) -> Ticket:
        """Write control events that the client did not ask for; they take no position."""
        return self._scribe.submit(self._flow, data, count, self._reached(), hidden=True)

    def append_last(self, data: bytes, count: int) -> None:
        """Write the control events that end the response; they are lost rather than wait for room.

        No client waits for them, so a full journal would queue them without bound.
        """
        last = Flow(self._flow.provenance, WhenFull.DROP, makes_room=False)
        self._scribe.submit(last, data, count, self._reached(), hidden=True)

    def cancel(self) -> None:
        """Write nothing more, and take back what waits: the response ends before its data does."""
        self._scribe.cancel(self._flow)

    def _reached(self) -> int:
        """How many messages of the response are written down."""
        return self._position if self._pour is None else self._pour.position
