"""The publisher: every log of a journal directory delivered to every bus."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tardis_machine.backoff import Backoff
from tardis_machine.journal import Directory, Log, OtherVersionError
from tardis_machine.journal.directory import belongs
from tardis_machine.log import dropped_lines
from tardis_machine.publish.accounts import Account, BusSnapshot, Snapshot, Statistics
from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.courtesy import Courtesy
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
        self,
        buses: Mapping[str, BusConfig],
        directory: Directory,
        config: PublishConfig,
        before_removal: Callable[[], None] = lambda: None,
        written: Callable[[], int] = lambda: 0,
    ) -> None:
        """`before_removal` is called when the books hold a log that is about to be deleted.

        `written` gives how many bytes a server has written that this process gives way to.
        """
        self.directory = directory
        self._buses = dict(buses)
        self._destinations = destinations(buses)
        self._config = config
        self._before_removal = before_removal
        self._retired = {name: Account() for name in buses}
        self._gone: dict[str, OtherVersionError | None] = {}
        self._versions: dict[str, OtherVersionError | None] = {}
        self._said: set[tuple[str, str]] = set()
        self._encoding = Encoding([settings.routing().include for settings in buses.values()])
        self._draining = False
        self._courtesy = Courtesy(written, config.give_way_s)
        self._letters = {
            name: DeadLetters(
                config.dead_letters(directory.path), name, config.dead_letter_max_bytes
            )
            for name in buses
        }
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
        for name in self._buses:
            if self._deliveries[name].failed:
                self._revive(name)
        logs = self.directory.logs()
        names = {log.name for log in logs}
        self._gone = {name: self._gone[name] for name in self._gone if name in names}
        self._versions = {name: self._versions[name] for name in self._versions if name in names}
        for log in logs:
            try:
                self._attend(log)
            except OSError as error:  # the others have nothing to do with it
                self._say_trouble(log, error)

    def settle(self) -> bool:
        """Tick; tell whether every log whose writer was gone before is delivered and dealt with."""
        drained = all(
            all(delivery.drained(log) for delivery in self._owed(log))
            for log in self.directory.logs()
            if log.finished() and log.name not in self._gone
        )
        self.tick()  # afterwards: what is drained by now is deleted or set aside by this
        return drained

    def drain(self, deadline: float | None, told: threading.Event | None = None) -> bool:
        """Deliver all finished logs; False if the deadline came first, or somebody `told` so."""
        self._draining = True
        for delivery in self._deliveries.values():
            delivery.drain()
        while True:
            if self.settle():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if told is not None and told.is_set():
                return False
            time.sleep(_POLL_S)

    def stop(self, deadline: float) -> None:
        """End the threads; what a bus holds on to is abandoned, and stays in the journal."""
        for delivery in self._deliveries.values():  # all at once: one that hangs takes all the time
            delivery.end()
        for delivery in self._deliveries.values():
            if not delivery.stop(deadline):
                _log.warning("bus did not let go in time", extra={"bus": delivery.name})

    def snapshot(self, *, final: bool = False, closing: str = "") -> Snapshot:
        """Take stock from what is on disk, so that the books always balance.

        `closing` names a log that counts as ended, though its server could not end it.
        """
        logs = [log for log in self.directory.logs() if log.name not in self._gone]
        others = {bus for log in logs for bus in log.buses(())} - self._buses.keys()
        buses = {}
        for name in (*self._buses, *sorted(others)):
            delivery, letters = self._deliveries.get(name), self._letters.get(name)
            living, ended = Account(), msgspec.structs.replace(self._retired.get(name, Account()))
            size = 0
            counted = {}
            for log in logs:
                if name not in log.buses(self._buses) or not self._ours(log, name):
                    continue
                state = log.cursor_state(name)
                reached = state.segment, state.seen
                if delivery is not None:
                    reached = delivery.reached(log, reached)
                finished = log.finished()
                account = ended if finished or log.name == closing else living
                messages = account.add(state, log.end().messages, log.skipped(*reached))
                if not finished:
                    counted[log.name] = messages
                size += _bytes_behind(log, state.segment, state.offset)
            living.merge(ended)
            buses[name] = BusSnapshot(
                living,
                ended,
                Statistics() if delivery is None else delivery.statistics,
                size,
                0 if letters is None else letters.size(),
                counted,
            )
        return Snapshot(
            buses,
            time.monotonic(),
            self.directory.aside_bytes(),
            self._courtesy.total_s,
            dropped_lines(),
            final=final,
        )

    def _deliver(self, name: str, statistics: Statistics | None = None) -> Delivery:
        return Delivery(
            BUSES[name](self._buses[name]),
            self._config,
            self._encoding,
            self._letters[name],
            self._collect,
            statistics,
            self._courtesy.gives_way,
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

    def _ours(self, log: Log, name: str) -> bool:
        """Tell whether a log's messages for a bus are this configuration's, or of none there is."""
        return name not in self._buses or belongs(log, name, self._destinations)

    def _owed(self, log: Log) -> list[Delivery]:
        """Give the deliveries of the buses that a log was written for, if it can be read."""
        found: list[Delivery] = []
        if self._other_version(log) is not None:
            return found
        for name in log.buses(self._buses):
            if name in self._buses and belongs(log, name, self._destinations):
                found.append(self._deliveries[name])
            else:
                self._say_once(log, name, "log waits for a bus that is configured otherwise")
        return found

    def _other_version(self, log: Log) -> OtherVersionError | None:
        """Tell, from the first sight of a log, whether another version of the format wrote it."""
        if log.name not in self._versions:
            self._versions[log.name] = None
            try:
                log.check_version()
            except OtherVersionError as error:
                self._versions[log.name] = error
        return self._versions[log.name]

    def _collect(self, log: Log) -> None:
        """Delete the segments of a log that every bus is past."""
        log.collect(min(log.cursor_state(bus).segment for bus in log.buses(self._buses)))

    def _attend(self, log: Log) -> None:
        """Take up a log, or put away one that is done."""
        if log.name in self._gone:  # and there it is: it could not be put away before
            self._put_away(log)
            return
        owed = self._owed(log)
        for delivery in owed:
            delivery.follow(log)
        if log.finished() and all(delivery.drained(log) for delivery in owed):
            self._finish(log, owed)

    def _finish(self, log: Log, owed: list[Delivery]) -> None:
        """Delete a log that is delivered, unless it also waits for a bus that is not configured.

        What was written by another version of the format is kept aside instead.
        """
        unreadable = self._other_version(log) or next(
            (error for each in owed if (error := each.unreadable(log))), None
        )
        ours = {delivery.name for delivery in owed}
        end = log.end().messages
        waiting = [
            bus
            for bus in log.buses(self._buses)
            if bus not in ours and log.cursor_state(bus).seen < end
        ]
        if waiting and unreadable is None:
            return
        for delivery in owed:
            state = delivery.leave(log)
            if unreadable is not None:
                state.dropped += max(0, end - state.seen)
            self._retired[delivery.name].add(state, end)
        self._gone[log.name] = unreadable
        self._before_removal()
        self._put_away(log)

    def _put_away(self, log: Log) -> None:
        """Delete a log that the books hold, or keep it aside."""
        unreadable = self._gone[log.name]
        if unreadable is None:
            end = log.end().messages
            log.remove()
            _log.info("log delivered", extra={"log": log.name, "messages": end})
        else:
            extra = {"path": str(log.set_aside()), "reason": str(unreadable)}
            _log.error("log kept aside", extra=extra)

    def _say_trouble(self, log: Log, error: OSError) -> None:
        if (log.name, str(error)) not in self._said:
            self._said.add((log.name, str(error)))
            extra = {"log": str(log.path), "error": str(error)}
            _log.error("log cannot be dealt with, it is tried again", extra=extra)

    def _say_once(self, log: Log, bus: str, event: str) -> None:
        if (log.name, bus) not in self._said:
            self._said.add((log.name, bus))
            extra = {"bus": bus, "log": str(log.path), "destination": log.destination(bus)}
            _log.warning(event, extra=extra)


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
    *,
    adopt: bool = False,
) -> Snapshot:
    """Deliver what servers that are gone have left, and say how that went.

    Raises LockedError while others do so, BoundError if it was written for other destinations and
    is not to be adopted.
    """
    directory.lock()
    try:
        with directory.entrance():
            directory.bind(destinations(buses), adopt=adopt, partly=True)
        publisher = Publisher(buses, directory, config)
        publisher.start()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        publisher.drain(deadline, told)
        publisher.stop(time.monotonic() + _STOP_S)
        return publisher.snapshot(final=True)
    finally:
        directory.unlock()


def _bytes_behind(log: Log, segment: int, offset: int) -> int:
    """Sum up the segments from a place on."""
    sizes = log.sizes()
    return sum(
        max(0, size - offset) if number == segment else size
        for number, size in sizes.items()
        if number >= segment
    )
