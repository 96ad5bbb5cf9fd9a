"""What the server holds of publishing: the journal it writes, the publisher it watches."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from tardis_machine.bronze import Origin
from tardis_machine.config import ConfigError, to_dict
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import BoundError, Directory, JournalFullError, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.segment import aside
from tardis_machine.log import JsonFormatter, Throttle
from tardis_machine.publish.accounts import Account, BusReport, DrainReport, Snapshot
from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.monitoring import PublishingCollector, State
from tardis_machine.publish.process import SILENT_S, Settings
from tardis_machine.publish.supervisor import Supervisor

_log = logging.getLogger(__name__)

_LIVE: Final = "ws-stream"
_SHORTEST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 0.25
_LOOK_EVERY_S: Final = 1.0


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
        self._buses = dict(buses)
        self._journal = journal
        self._publish = publish
        self._writer: Writer | None = None
        self._supervisor: Supervisor | None = None
        self._snapshot: Snapshot | None = None
        self._stalled: frozenset[str] = frozenset()
        self._looked_at = 0.0
        self._heard_at = 0.0
        self.producer_id = publish.producer_id or f"{socket.gethostname()}-{os.getpid()}"
        self.stopped = False
        self.lost = 0
        self.lost_said = Throttle()
        registry.register(PublishingCollector(self._state))

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            raise RuntimeError("publishing has not been started")
        return self._writer

    @property
    def publisher_pid(self) -> int | None:
        return None if self._supervisor is None else self._supervisor.pid

    async def start(self) -> None:
        """Open a log and start the publisher."""
        path = self._journal.path
        self._refuse_full_aside(path)
        try:
            self._writer = Writer(
                path,
                self.producer_id,
                list(self._buses),
                max_bytes=self._journal.max_bytes,
                destinations=destinations(self._buses),
                adopt=self._journal.adopt,
                stall_s=self._journal.stall_s,
                fsync=self._journal.fsync_s,
            )
        except BoundError as error:
            raise ConfigError(self._journal.flag("dir"), str(path), error.reason) from error
        except OSError as error:
            raise ConfigError(
                self._journal.flag("dir"),
                str(path),
                f"expected a directory that can be written: {error.strerror}",
            ) from error
        root = logging.getLogger()
        formatters = [handler.formatter for handler in root.handlers]
        settings = Settings(
            buses={name: to_dict(config) for name, config in self._buses.items()},
            publish=to_dict(self._publish),
            journal=str(path),
            log=self._writer.path.name,
            log_format="json" if any(isinstance(f, JsonFormatter) for f in formatters) else "human",
            debug=root.level == logging.DEBUG,
        )
        self._supervisor = Supervisor(settings, self._take)
        self._heard_at = time.monotonic()
        try:
            await self._supervisor.start()
        except OSError as error:
            self._writer.close()
            raise PublisherStartError(error.strerror or str(error)) from error

    async def stop(self) -> DrainReport:
        """End the log and let the publisher deliver it, within the configured time."""
        self.stopped = True
        self.writer.close()
        assert self._supervisor is not None
        await self._supervisor.drain(self._publish.drain_timeout_s)
        snapshot = self._snapshot
        if snapshot is None or not snapshot.final:
            _log.error(
                "publisher gave no report: see its journal", extra={"dir": self._journal.path}
            )
            left = Account(journalled=self.writer.messages)
            return DrainReport([BusReport(bus, left) for bus in self._buses])
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
        when_full = "drop" if flow == _LIVE else self._journal.when_full
        return ResponseJournal(self, encode_provenance(provenance), when_full)

    def unhealthy(self) -> list[str]:
        """Name what keeps publishing from going on, in words for the health check."""
        trouble = self._publisher_trouble()
        found = [f"publisher: {trouble}"] if trouble else []
        stalled = self._stalled_buses()
        snapshot = self._snapshot
        for name in self._buses:
            bus = None if snapshot is None else snapshot.buses.get(name)
            if bus is not None and not bus.statistics.healthy:
                found.append(f"{name}: unhealthy")
            elif name in stalled:
                found.append(f"{name}: stalled")
        if snapshot is not None and snapshot.aside_bytes:
            found.append(f"journal: {snapshot.aside_bytes} bytes kept aside, they cannot be read")
        return found

    def health(self) -> dict[str, object]:
        """Tell the state of publishing and of each bus, for the health check."""
        trouble = dict(each.split(": ", 1) for each in self.unhealthy())
        buses: dict[str, dict[str, object]] = {}
        for name in self._buses:
            bus = None if self._snapshot is None else self._snapshot.buses.get(name)
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
        if not supervisor.running:
            return "not running"
        if not supervisor.back:
            return "died, and is not back"
        silent_s = time.monotonic() - self._heard_at
        return f"silent for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    def _refuse_full_aside(self, path: Path) -> None:
        """Refuse to add to what is kept aside without an end: somebody has to look at it."""
        kept = Directory(path).aside_bytes()
        if kept >= self._journal.max_bytes:
            raise ConfigError(
                self._journal.flag("dir"),
                str(path),
                f"{kept} bytes are kept aside in {aside(path)}, as much as --journal-max-bytes; "
                "expected somebody to look at them and move them away",
            )

    def _take(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._heard_at = time.monotonic()

    def _stalled_buses(self) -> frozenset[str]:
        """Look at most once a second: it reads every cursor."""
        now = time.monotonic()
        if self._writer is not None and now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._stalled = self._writer.space.stalled()
        return self._stalled

    def _state(self) -> State:
        supervisor, writer = self._supervisor, self._writer
        return State(
            snapshot=self._snapshot,
            stalled=self._stalled_buses(),
            buses=tuple(self._buses),
            running=supervisor is not None and supervisor.running,
            reporting=not self._publisher_trouble(),
            restarts=0 if supervisor is None else supervisor.restarts,
            journal_bytes=0 if writer is None else writer.space.measure().bytes,
            journal_max_bytes=self._journal.max_bytes,
            lost=self.lost,
        )


class ResponseJournal:
    """The journal of one response: where its messages go before its client gets them."""

    def __init__(self, outbox: Outbox, provenance: bytes, when_full: str) -> None:
        self._outbox = outbox
        self._writer = outbox.writer
        self._provenance = provenance
        self._when_full = when_full
        self._position = 0

    def append(self, data: bytes, count: int) -> bool:
        """Write messages that the client is about to get; False if it has to wait for space."""
        if self._writer.append(self._provenance, data, count, self._position) or self._make_room(
            data, count, hidden=False
        ):
            self._position += count
            return True
        return False

    def append_hidden(self, data: bytes, count: int) -> bool:
        """Write control events that the client did not ask for; they take no position."""
        return self._writer.append(
            self._provenance, data, count, self._position, hidden=True
        ) or self._make_room(data, count, hidden=True)

    async def wait_for_space(self) -> None:
        """Wait until buses have moved on, or have stalled for long enough to be skipped ahead."""
        pause_s = _SHORTEST_WAIT_S
        while pause_s < _LONGEST_WAIT_S:  # then the caller tries: only that tells of a full disk
            await asyncio.sleep(pause_s)
            if self._writer.has_room() or self._writer.make_room(forced=False):
                return
            pause_s *= 2

    def _make_room(self, data: bytes, count: int, *, hidden: bool) -> bool:
        """Deal with a full journal as the flow wants it; False if it waits."""
        if self._when_full == "pace":
            return False
        writer = self._writer
        if self._when_full == "error":
            raise JournalFullError(writer.space.used, writer.space.max_bytes)
        while writer.make_room(forced=True):
            if writer.append(self._provenance, data, count, self._position, hidden=hidden):
                return True
        outbox = self._outbox
        outbox.lost += count
        held_back = outbox.lost_said.allow()
        if held_back is not None:
            _log.error("disk full: messages not published", extra={"lost": outbox.lost})
        return True
