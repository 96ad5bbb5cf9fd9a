"""Ways to a bus that are in trouble, each with its own pauses, and what that says of its health.

Records go to a bus together, on its main lane. A destination that fails gets a lane of its own,
where its records wait for its next attempt, in order, while the others go on.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from tardis_machine.backoff import Backoff
from tardis_machine.bounded import shortened
from tardis_machine.log import Throttle
from tardis_machine.publish.accounts import Statistics
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.loads import Sent

_log = logging.getLogger(__name__)

_TROUBLED_TIMEOUT_S: Final = 5.0
"""How long the first attempt at a destination that failed may keep the others waiting."""


class Lane:
    """Records that wait for another attempt; `destination` is None for the bus as a whole.

    `timeout_s` is what an attempt may take.
    """

    def __init__(self, destination: str | None, backoff: Backoff, timeout_s: float) -> None:
        self.destination = destination
        self.backoff = backoff
        self.timeout_s = timeout_s
        self.waiting: deque[Sent] = deque()
        self.weight = 0
        self.due = 0.0
        self.fruitless = 0
        self.unhealthy = False
        self.failing_since: float | None = None

    def put_back(self, records: Iterable[Sent]) -> None:
        """Let records that were taken wait before all others."""
        again = list(records)
        self.waiting.extendleft(reversed(again))
        self.weight += sum(sent.record.weight for sent in again)

    def append(self, sent: Sent) -> None:
        self.waiting.append(sent)
        self.weight += sent.record.weight

    def take(self) -> Sent:
        sent = self.waiting.popleft()
        self.weight -= sent.record.weight
        return sent


class Lanes:
    """The lanes of one bus. Only the bus's sender opens and closes them."""

    def __init__(
        self,
        bus: str,
        config: PublishConfig,
        statistics: Statistics,
        *,
        after_death: bool = False,
    ) -> None:
        """`after_death`: the delivery before this one died, so the bus is still unhealthy."""
        self._died = after_death
        self._bus = bus
        self._config = config
        self._statistics = statistics
        self._retries_said = Throttle()
        self.main = self._lane(None)
        self.aside: dict[str, Lane] = {}

    def due(self, now: float) -> Lane | None:
        """Give the destination whose next attempt has been due longest."""
        ready = [lane for lane in self.aside.values() if lane.due <= now]
        return min(ready, key=lambda lane: lane.due, default=None)

    def next_due(self) -> float | None:
        return min((lane.due for lane in self.aside.values()), default=None)

    def open(self, destination: str) -> Lane:
        """Give a destination a lane of its own, and what of it waits on the main one."""
        lane = self.aside[destination] = self._lane(destination)
        waiting, self.main.waiting = self.main.waiting, deque()
        self.main.weight = 0
        for sent in waiting:
            (lane if sent.record.destination == destination else self.main).append(sent)
        return lane

    def lengthen(self, lane: Lane) -> None:
        """Give a lane more time after an attempt that got nothing through.

        Slow or dead, nobody can tell: what is cut short each time arrives each time anew, and is
        never acknowledged.
        """
        lane.timeout_s = min(2 * lane.timeout_s, self._config.send_timeout_s)

    def hurry(self, longest_s: float) -> None:
        """Cut pauses short."""
        latest = time.monotonic() + longest_s
        for lane in self._all():
            lane.due = min(lane.due, latest)

    def fail(
        self,
        lane: Lane,
        reason: str,
        *,
        retriable: bool = True,
        records: int = 0,
        progress: bool = False,
    ) -> None:
        """Let a lane pause after an attempt; `progress` is one that got some records through.

        Slow is not broken: a destination that takes part of what it is given stays healthy, and
        is not given it more and more rarely.
        """
        if progress:
            lane.backoff.halve()
            self._recover(lane, said=lane.unhealthy)
        self.note(lane, reason, retriable=retriable, records=records, progress=progress)
        pause_s = lane.backoff.next_pause_s()
        lane.due = time.monotonic() + (self._config.retry_max_s if lane.unhealthy else pause_s)

    def note(
        self,
        lane: Lane,
        reason: str,
        *,
        retriable: bool = True,
        records: int = 0,
        progress: bool = False,
    ) -> None:
        """Remember trouble and tell of it, but not over and over."""
        now = time.monotonic()
        statistics = self._statistics
        statistics.last_error = reason = shortened(reason)
        if not progress:
            lane.fruitless += 1
            lane.failing_since = lane.failing_since or now
            failing_s = now - lane.failing_since
            enough = lane.fruitless >= self._config.retry_max or not retriable
            if not lane.unhealthy and (enough or failing_s >= self._config.retry_max_s):
                lane.unhealthy = True
                statistics.healthy = False
                _log.error("bus unhealthy", extra=self._named(lane) | {"reason": reason})
        held_back = self._retries_said.allow()
        if held_back is not None:
            extra = self._named(lane) | {"reason": reason, "records": records}
            _log.warning("retrying", extra=extra | ({"more": held_back} if held_back else {}))

    def succeed(self, lane: Lane) -> None:
        """Note an attempt without any failure; a destination with nothing left joins the others."""
        self._recover(lane, said=True)
        lane.due = 0.0
        lane.backoff.reset()
        if lane.destination is not None and not lane.waiting:
            del self.aside[lane.destination]
        statistics = self._statistics
        if not self.aside and self.main.failing_since is None and not self._died:
            statistics.last_error = ""

    def die(self, reason: str) -> None:
        """Count the death of a delivery: its bus is unhealthy until `acknowledge` is called."""
        self._statistics.deaths += 1
        self._died = True
        self.note(self.main, reason, retriable=False)

    def acknowledge(self) -> None:
        """Note that the bus acknowledged a record, which ends the trouble of a death."""
        if self._died:
            self._died = False
            _log.info("bus recovered", extra={"bus": self._bus, "deaths": self._statistics.deaths})
            self._assess()

    def _recover(self, lane: Lane, *, said: bool) -> None:
        """Forget the trouble of a lane on which something got through."""
        if said and lane.failing_since is not None:
            failed_s = round(time.monotonic() - lane.failing_since, 3)
            _log.info("bus recovered", extra=self._named(lane) | {"after_s": failed_s})
        lane.failing_since = None
        lane.fruitless = 0
        lane.unhealthy = False
        self._assess()

    def _assess(self) -> None:
        self._statistics.healthy = not (self._died or any(lane.unhealthy for lane in self._all()))

    def _all(self) -> Iterable[Lane]:
        return (self.main, *self.aside.values())

    def _lane(self, destination: str | None) -> Lane:
        backoff = Backoff(self._config.retry_min_ms / 1000, self._config.retry_max_s)
        timeout_s = self._config.send_timeout_s
        if destination is not None:  # the whole bus, on the main one, holds nobody up
            timeout_s = min(timeout_s, _TROUBLED_TIMEOUT_S)
        return Lane(destination, backoff, timeout_s)

    def _named(self, lane: Lane) -> dict[str, object]:
        where = {} if lane.destination is None else {"destination": lane.destination}
        return {"bus": self._bus, **where}
