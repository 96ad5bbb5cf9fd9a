"""The publisher: every log of a journal directory delivered to every bus."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from tardis_machine.backoff import Backoff
from tardis_machine.journal import Directory, Log
from tardis_machine.journal.segment import segment_path
from tardis_machine.publish.accounts import Account, BusSnapshot, Snapshot, Statistics
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetters
from tardis_machine.publish.delivery import Delivery
from tardis_machine.publish.encoding import Encoding

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_SHORTEST_S: Final = 0.2
_STOP_S: Final = 2.0
_GC_THRESHOLDS: Final = (100_000, 20, 100)
_SWITCH_S: Final = 0.0005


class Publisher:
    """Runs one delivery per bus over all logs, and deletes what all of them are past."""

    def __init__(
        self, buses: Mapping[str, BusConfig], directory: Directory, config: PublishConfig
    ) -> None:
        self.directory = directory
        self._buses = dict(buses)
        self._config = config
        self._names = tuple(buses)
        self._retired = {name: Account() for name in buses}
        self._kept_for: set[tuple[str, str]] = set()
        self._encoding = Encoding([settings.routing().include for settings in buses.values()])
        self._draining = False
        self._deliveries = {name: self._deliver(name) for name in buses}
        self._revivals = {name: Backoff(_SHORTEST_S, config.retry_max_s) for name in buses}
        self._revive_at: dict[str, float] = {}

    def start(self) -> None:
        """Begin; the journal's lock must be held."""
        self.tick()
        for delivery in self._deliveries.values():
            delivery.start()

    def tick(self) -> None:
        """Take up logs that are new, delete those that are done, and a delivery that died anew."""
        for name in self._names:
            if self._deliveries[name].failed:
                self._revive(name)
        for log in self.directory.logs():
            owed = self._owed(log)
            for delivery in owed:
                delivery.follow(log)
            if log.finished() and all(delivery.drained(log) for delivery in owed):
                self._finish(log)

    def drained(self) -> bool:
        """Tell whether every log whose writer is gone has been delivered."""
        return all(
            all(delivery.drained(log) for delivery in self._owed(log))
            for log in self.directory.logs()
            if log.finished()
        )

    def _deliver(self, name: str, statistics: Statistics | None = None) -> Delivery:
        letters = self._config.dead_letters(self.directory.path)
        return Delivery(
            BUSES[name](self._buses[name]),
            self._config,
            self._encoding,
            DeadLetters(letters, name, self._config.dead_letter_max_bytes),
            self._collect,
            statistics,
        )

    def _revive(self, name: str) -> None:
        """Begin anew at the cursors, each time after a longer pause."""
        now = time.monotonic()
        if name not in self._revive_at:
            self._revive_at[name] = now + self._revivals[name].next_pause_s()
        if now < self._revive_at[name]:
            return
        del self._revive_at[name]
        died = self._deliveries[name]
        died.stop(now)
        self._deliveries[name] = delivery = self._deliver(name, died.statistics)
        for log in self.directory.logs():
            if delivery in self._owed(log):
                delivery.follow(log)
        if self._draining:
            delivery.drain()
        delivery.start()

    def _owed(self, log: Log) -> list[Delivery]:
        """Give the deliveries of the buses that a log was written for."""
        wanted = _meta_buses(log)
        return [delivery for name, delivery in self._deliveries.items() if name in wanted]

    def drain(self, deadline: float | None, told: threading.Event | None = None) -> bool:
        """Deliver all finished logs; False if the deadline came first, or somebody `told` so."""
        self._draining = True
        for delivery in self._deliveries.values():
            delivery.drain()
        while True:
            self.tick()
            if self.drained():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if told is not None and told.is_set():
                return False
            time.sleep(_POLL_S)

    def stop(self, deadline: float) -> None:
        """End the threads; what a bus holds on to is abandoned, and stays in the journal."""
        for delivery in self._deliveries.values():
            if not delivery.stop(deadline):
                _log.warning("bus did not let go in time", extra={"bus": delivery.name})

    def snapshot(self, *, final: bool = False, standby: bool = False) -> Snapshot:
        """Take stock from what is on disk, so that the books always balance."""
        logs = self.directory.logs()
        kept = {bus for log in logs for bus in _meta_buses(log)} - set(self._names)
        buses = {}
        for name in (*self._names, *sorted(kept)):
            delivery = self._deliveries.get(name)
            account = msgspec.structs.replace(self._retired.get(name, Account()))
            size = 0
            for log in logs:
                if name not in _meta_buses(log):
                    continue
                state = log.cursor_state(name)
                segment, seen = state.segment, state.seen
                if delivery is not None:
                    segment, seen = delivery.reached(log, (segment, seen))
                account.add(state, log.end().messages, log.skipped(segment, seen))
                size += _bytes_behind(log, state.segment, state.offset)
            statistics = Statistics() if delivery is None else delivery.statistics
            buses[name] = BusSnapshot(account, statistics, size)
        return Snapshot(buses, final=final, standby=standby)

    def _collect(self, log: Log) -> None:
        """Delete the segments of a log that every bus is past."""
        log.collect(min(log.cursor_state(bus).segment for bus in _meta_buses(log)))

    def _finish(self, log: Log) -> None:
        """Delete a log that is delivered, unless it also waits for a bus that is not configured."""
        end = log.end().messages
        for bus in _meta_buses(log):
            if bus not in self._deliveries and log.cursor_state(bus).seen < end:
                if (log.name, bus) not in self._kept_for:
                    self._kept_for.add((log.name, bus))
                    _log.warning(
                        "log kept for a bus that is not configured",
                        extra={"bus": bus, "log": str(log.path)},
                    )
                return
        for delivery in self._owed(log):
            delivery.leave(log)
            self._retired[delivery.name].add(log.cursor_state(delivery.name), end)
        log.remove()
        _log.info("log delivered", extra={"log": log.name, "messages": end})


def tune() -> None:
    """Set up the interpreter for a process that does nothing but publish.

    Records are tuples without cycles, thousands at a time: looking for cycles in them only costs.
    And a thread that waits for acknowledgements must not wait 5 ms for one that encodes.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)


def drain_directory(
    directory: Directory,
    buses: Mapping[str, BusConfig],
    config: PublishConfig,
    timeout_s: float | None,
    told: threading.Event,
) -> Snapshot:
    """Deliver what servers that are gone have left, and say how that went."""
    directory.lock()
    try:
        publisher = Publisher(buses, directory, config)
        publisher.start()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        publisher.drain(deadline, told)
        publisher.stop(time.monotonic() + _STOP_S)
        return publisher.snapshot(final=True)
    finally:
        directory.unlock()


def _meta_buses(log: Log) -> list[str]:
    try:
        return log.meta().buses
    except FileNotFoundError:  # deleted meanwhile
        return []


def _bytes_behind(log: Log, segment: int, offset: int) -> int:
    total = 0
    for number in log.listing().segments:
        if number >= segment:
            try:
                size = segment_path(log.path, number).stat().st_size
            except FileNotFoundError:
                continue
            total += max(0, size - offset) if number == segment else size
    return total
