"""Calls of a service that takes several records of one destination at once.

A batch is split by destination, then by key, so that several calls can be under way and none
carries a key of which an earlier record is unacknowledged or has failed. Each call is bounded by
count and by weight.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple

from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    NotSentError,
    RecordRejectedError,
    ThrottledError,
)
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import Record

_LOOK_AHEAD_CALLS: Final = 8
"""How many calls' worth of records are looked through for keys that a strict call may carry."""
_MAX_THREADS: Final = 32


class CallLimits(NamedTuple):
    """What one call takes, and how many calls to one destination may be under way."""

    records: int
    weight: int
    in_flight: int


Call = Callable[[str, Sequence[Record]], Sequence[BusError | None]]
"""Sends records to a destination; tells what became of each, or raises BusError for all."""


class _Queue:
    """Records of one destination and some of its keys, which go out one call after the other."""

    def __init__(self, destination: str) -> None:
        self.destination = destination
        self.places: deque[int] = deque()
        self.halves: deque[list[int]] = deque()
        self.held: set[str] = set()
        self.stopped = False

    def take(self, records: Sequence[Record], limits: CallLimits, *, strict: bool) -> list[int]:
        """Take the next call's places; those of keys that wait are left out for good."""
        while self.halves:
            half = [place for place in self.halves.popleft() if records[place].key not in self.held]
            if half:
                return half
        taken: list[int] = []
        keys: set[str] = set()
        passed: list[int] = []
        weight = 0
        while self.places and len(taken) < limits.records:
            record = records[self.places[0]]
            if taken and weight + record.weight > limits.weight:
                break
            if len(passed) >= limits.records * _LOOK_AHEAD_CALLS:
                break
            place = self.places.popleft()
            if record.key in self.held:
                continue
            if strict and record.key in keys:
                passed.append(place)
                continue
            taken.append(place)
            keys.add(record.key)
            weight += record.weight
        self.places.extendleft(reversed(passed))
        return taken


class Calls:
    """Makes the calls of one bus, from threads of its own."""

    def __init__(
        self, bus: str, limits: CallLimits, call: Call, *, destinations: int, strict: bool
    ) -> None:
        self._bus = bus
        self._limits = limits
        self._call = call
        self._strict = strict
        self._threads = min(_MAX_THREADS, limits.in_flight * destinations)
        self._pool = self._new_pool()

    def send(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        """Send what is open; tell the fate of each when its call is over or time is up."""
        queues = self._queues(records, fates.open())
        idle = list(queues)
        running: dict[Future[Sequence[BusError | None]], tuple[_Queue, list[int]]] = {}
        while True:
            for queue in idle:
                places = [] if queue.stopped else self._next(queue, records)
                if places:
                    batch = [records[place] for place in places]
                    future = self._pool.submit(self._call, queue.destination, batch)
                    running[future] = (queue, places)
            if not running:
                break
            done, _ = wait(running, max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
            if not done:
                self._abandon(running.values(), fates)
                break
            idle = []
            for future in done:
                queue, places = running.pop(future)
                self._settle(future, queue, places, records, fates, queues)
                idle.append(queue)
        for place in fates.open():
            reason = "held back behind a record that was not delivered"
            destination = records[place].destination
            fates.fail([place], NotSentError(self._bus, reason, destination=destination))

    def close(self) -> None:
        """Let the threads end; calls under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next(self, queue: _Queue, records: Sequence[Record]) -> list[int]:
        return queue.take(records, self._limits, strict=self._strict)

    def _queues(self, records: Sequence[Record], places: Iterable[int]) -> list[_Queue]:
        """Split by destination, and by key as far as there is enough for several calls."""
        parted: dict[str, list[int]] = {}
        for place in places:
            parted.setdefault(records[place].destination, []).append(place)
        found: list[_Queue] = []
        for destination, own in parted.items():
            weight = sum([records[place].weight for place in own])
            calls = max(-(-len(own) // self._limits.records), -(-weight // self._limits.weight))
            queues = [_Queue(destination) for _ in range(min(calls, self._limits.in_flight))]
            for place in own:
                queues[hash(records[place].key) % len(queues)].places.append(place)
            found += queues
        return found

    def _settle(
        self,
        future: Future[Sequence[BusError | None]],
        queue: _Queue,
        places: list[int],
        records: Sequence[Record],
        fates: Fates,
        queues: Iterable[_Queue],
    ) -> None:
        try:
            answers = future.result()
        except RecordRejectedError as error:
            if len(places) == 1:
                fates.fail(places, error)
            else:  # who is to blame was not said: halve until one is left
                half = len(places) // 2
                queue.halves.extendleft([places[half:], places[:half]])
            return
        except BusError as error:
            fates.fail(places, error)
            _stop(queues, error.destination)
            return
        if len(answers) != len(places):
            reason = f"{len(answers)} answers for {len(places)} records"
            fates.fail(places, BusUnavailableError(self._bus, reason))
            _stop(queues, queue.destination)
            return
        for place, failure in zip(places, answers, strict=True):
            if failure is None:
                fates.deliver([place])
                continue
            fates.fail([place], failure)
            if failure.retriable:
                queue.held.add(records[place].key)
            if isinstance(failure, ThrottledError):
                _stop(queues, queue.destination)

    def _abandon(self, running: Iterable[tuple[_Queue, list[int]]], fates: Fates) -> None:
        """Give up on calls that hang; what becomes of them is never looked at."""
        for queue, places in running:
            error = BusUnavailableError(
                self._bus, "not acknowledged in time", destination=queue.destination
            )
            fates.fail(places, error)
        self.close()
        self._pool = self._new_pool()

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix=f"{self._bus}-call")


def _stop(queues: Iterable[_Queue], destination: str | None) -> None:
    """Start no more calls to a destination, or to any."""
    for queue in queues:
        if destination in {None, queue.destination}:
            queue.stopped = True
