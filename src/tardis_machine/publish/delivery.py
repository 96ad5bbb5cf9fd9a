"""One bus's way from the journal to the acknowledgement: a thread that feeds, a thread that sends.

The feeder reads entries behind the cursor, encodes and routes them, as far ahead as the window
allows. The sender gathers batches by count, bytes and time, and moves the cursor over an entry
once each of its records is acknowledged or dead. What failed is sent again before anything new,
in order, so that order per key holds; nothing else is sent twice.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tardis_machine.backoff import Backoff
from tardis_machine.bronze import Context, Rejected
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import Cursor, CursorState, Entry, Gap, Log, Reader
from tardis_machine.log import Throttle
from tardis_machine.publish.accounts import Statistics
from tardis_machine.publish.buses.base import BusUnavailableError, EventBus, Failure, SendResult
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters
from tardis_machine.publish.encoding import Encoding
from tardis_machine.publish.record import Record

_log = logging.getLogger(__name__)

_WINDOW_BATCHES: Final = 4
_WINDOW_BYTES: Final = 32 << 20
_ENTRIES_PER_TURN: Final = 64
_SHORTEST_IDLE_S: Final = 0.001
_LONGEST_IDLE_S: Final = 0.02
_WAKE_S: Final = 0.5
_DRAIN_PAUSE_S: Final = 0.5


class Load:
    """An entry or a gap on its way, and what became of its messages so far."""

    __slots__ = (
        "context",
        "dead",
        "duplicates",
        "fed_at",
        "gap",
        "ingest_us",
        "messages",
        "offset",
        "open",
        "records",
        "segment",
        "size",
        "track",
        "unencodable",
    )

    def __init__(self, track: "Track", found: Entry | Gap) -> None:
        self.track = track
        self.gap = isinstance(found, Gap)
        self.segment = found.segment
        self.offset = found.offset if isinstance(found, Gap) else found.end
        self.messages = found.messages
        self.ingest_us = 0
        self.context = Context()
        self.records: Sequence[Record] = ()
        self.size = 0
        self.open = 0
        self.dead = 0
        self.unencodable = 0
        self.duplicates = 0
        self.fed_at = 0.0

    def fill(self, context: Context, records: Sequence[Record]) -> None:
        self.context = context
        self.ingest_us = context.ingest_us or 0
        self.records = records
        self.size = sum([len(record.value) for record in records])
        self.open = len(records)

    def book(self, state: CursorState) -> None:
        """Enter all of it into the cursor's counts and move the cursor behind it."""
        state.segment, state.offset = self.segment, self.offset
        state.seen += self.messages
        if self.gap:
            # The one record it may have announces it, and is no message of the journal.
            state.dropped += self.messages
            return
        state.filtered += self.messages - len(self.records) - self.unencodable
        state.delivered += len(self.records) - self.dead
        state.dead_lettered += self.dead + self.unencodable
        state.duplicates += self.duplicates


class Sent(NamedTuple):
    """A record that has to be sent again, and the load it belongs to."""

    load: Load
    record: Record


class Batch:
    """Records of several loads, in order; `parts` says how many of which."""

    __slots__ = ("parts", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.parts: list[tuple[Load, int]] = []

    def add(self, load: Load, records: Sequence[Record]) -> None:
        self.records += records
        self.parts.append((load, len(records)))

    def loads_of(self, indexes: Iterable[int]) -> Iterator[tuple[Load, Record]]:
        """Give the records at these places, ascending, with their loads."""
        parts = iter(self.parts)
        load, end = next(parts)
        for index in indexes:
            while index >= end:
                load, count = next(parts)
                end += count
            yield load, self.records[index]


class Track:
    """A bus's way through one log."""

    def __init__(self, log: Log, cursor: Cursor) -> None:
        state = cursor.state
        self.log = log
        self.cursor = cursor
        self.reader = Reader(log, state.segment, state.offset, state.seen)
        self.loads: deque[Load] = deque()
        self.exhausted = False

    @property
    def drained(self) -> bool:
        """Tell whether the log is finished and all of it resolved."""
        return self.exhausted and not self.loads


class Delivery:
    """Publishes to one bus."""

    def __init__(
        self,
        bus: EventBus[Any],
        config: PublishConfig,
        encoding: Encoding,
        dead_letters: DeadLetters,
        passed: Callable[[Log], None],
        statistics: Statistics | None = None,
    ) -> None:
        """`passed` is called when the bus has moved on to a later segment of a log.

        `statistics` are those of a delivery that has failed, to be gone on with.
        """
        self.name = bus.name
        self.statistics = statistics or Statistics()
        self._bus = bus
        self._limits = bus.limits
        self._config = config
        self._encoding = encoding
        self._dead_letters = dead_letters
        self._passed = passed
        self._router = bus.router()
        self._backoff = Backoff(config.retry_min_ms / 1000, config.retry_max_s)
        self._failing_since: float | None = None
        self._retries_said = Throttle()
        self._deaths_said = Throttle()
        self._tracks: dict[str, Track] = {}
        self._changed = threading.Condition()
        # Guarded by _changed: what is fed and not yet taken for a batch, and all that is held.
        self._queue: deque[Load] = deque()
        self._taken = 0
        self._unsent = 0
        self._unsent_bytes = 0
        self._held = 0
        self._held_bytes = 0
        self._again: list[Sent] = []
        self._stopping = False
        self._failed = False
        self._draining = False
        self._threads = [
            threading.Thread(
                target=self._guard, args=(run,), name=f"{self.name}-{name}", daemon=True
            )
            for name, run in (("feed", self._run_feeder), ("send", self._run_sender))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def failed(self) -> bool:
        """Tell whether a thread of it has died: it takes up nothing any more."""
        return self._failed and not any(thread.is_alive() for thread in self._threads)

    def follow(self, log: Log) -> None:
        """Begin with a log, where the bus's cursor in it stands."""
        if log.name not in self._tracks:
            self._tracks = {**self._tracks, log.name: Track(log, log.cursor(self.name))}

    def leave(self, log: Log) -> None:
        """Forget a log that is drained."""
        tracks = dict(self._tracks)
        tracks.pop(log.name).cursor.close()
        self._tracks = tracks

    def drained(self, log: Log) -> bool:
        track = self._tracks.get(log.name)
        return track is not None and track.drained

    def reached(self, log: Log, otherwise: tuple[int, int]) -> tuple[int, int]:
        """Tell how far a log has been read: the segment, and the messages before that place."""
        track = self._tracks.get(log.name)
        return otherwise if track is None else (track.reader.segment, track.reader.messages)

    @property
    def held(self) -> int:
        """Count the records in memory."""
        return self._held

    def drain(self) -> None:
        """Wait for no batch to fill from now on, and not long after a failure."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def stop(self, deadline: float) -> bool:
        """End both threads; False if the bus did not let go of the sender in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        alive = any(thread.is_alive() for thread in self._threads)
        for track in self._tracks.values():
            track.cursor.close()
        return not alive

    def _guard(self, run: Callable[[], None]) -> None:
        """Run one of the two threads: when it dies, so does the other, and the bus is unhealthy.

        What it had in hand is unknown then, so nobody goes on with it: whoever takes over begins
        at the cursors.
        """
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - nothing may leave the bus seeming healthy
            _log.exception("delivery died", extra={"bus": self.name})
            self._note_trouble(f"{type(error).__name__}: {error}", retriable=False)
            with self._changed:
                self._failed = self._stopping = True
                self._changed.notify_all()

    # The feeder.

    def _run_feeder(self) -> None:
        idle_s = _SHORTEST_IDLE_S
        while not self._stopping:
            try:
                fed = self._feed_all()
            except OSError as error:
                self._note_trouble(f"the journal cannot be read: {error}", retriable=True)
                fed, idle_s = False, _WAKE_S
            if fed:
                idle_s = _SHORTEST_IDLE_S
            else:
                time.sleep(idle_s)
                idle_s = min(idle_s * 2, _LONGEST_IDLE_S)

    def _feed_all(self) -> bool:
        """Take some entries of every log, oldest first; False if there was none.

        A log whose writer is gone is read to its end before any younger one, so that order per
        key holds over a restart. Logs whose writers live were written side by side.
        """
        fed = False
        for track in self._tracks.values():
            fed = self._feed(track) or fed
            if track.log.finished() and not track.exhausted:
                break
        return fed

    def _feed(self, track: Track) -> bool:
        """Take some entries of a log; False if there was none."""
        if track.exhausted:
            return False
        for turn in range(_ENTRIES_PER_TURN):
            if not self._wait_for_room():
                return True
            finished = track.log.finished()
            found = track.reader.read()
            if found is None:
                track.exhausted = finished
                return turn > 0
            load = Load(track, found)
            if not self._fill(load, found):
                return True
            self._enqueue(load)
        return True

    def _fill(self, load: Load, found: Entry | Gap) -> bool:
        """Encode and route; False if stopped while dead letters could not be written."""
        if isinstance(found, Gap):
            context, line, position = self._encoding.announce(self.name, found)
            events = [self._encoding.event(context, line, position)]
        else:
            context, encoded = self._encoding.events(load.track.log.name, found)
            events = [event for event in encoded if not isinstance(event, Rejected)]
            load.unencodable = len(encoded) - len(events)
            if load.unencodable:
                rejected = [each for each in encoded if isinstance(each, Rejected)]
                if not self._bury(context, rejected):
                    return False
            if len(encoded) != found.messages:
                _log.error(
                    "entry's message count is wrong",
                    extra={"said": found.messages, "found": len(encoded), "offset": found.offset},
                )
        self._router.context = context
        load.fill(context, self._router.route(events))
        return True

    def _bury(self, context: Context, rejected: Sequence[Rejected]) -> bool:
        """Write dead letters, however long the disk refuses; False when stopping."""
        letters = [self._dead_letters.of_line(context, each) for each in rejected]
        while letters and not self._stopping:
            try:
                written = self._dead_letters.add(letters)
            except OSError as error:
                self._say_dead_letter_trouble(error)
                time.sleep(_WAKE_S)
            else:
                self._say_dead(letters[:written])
                del letters[:written]
        return not letters

    def _wait_for_room(self) -> bool:
        """Wait until the window has room for another entry; False when stopping."""
        with self._changed:
            while not self._stopping and (
                self._held >= self._limits.records * _WINDOW_BATCHES
                or self._held_bytes >= _WINDOW_BYTES
            ):
                self._changed.wait(_WAKE_S)
            return not self._stopping

    def _enqueue(self, load: Load) -> None:
        load.fed_at = time.monotonic()
        with self._changed:
            load.track.loads.append(load)
            self._queue.append(load)
            self._unsent += load.open
            self._unsent_bytes += load.size
            self._held += load.open
            self._held_bytes += load.size
            self._changed.notify_all()

    # The sender.

    def _run_sender(self) -> None:
        try:
            self._connect()
            while (batch := self._gather()) is not None:
                if batch.records:
                    self._send(batch)
                self._move_cursors()
        finally:
            self._bus.close()

    def _connect(self) -> None:
        """Connect before the first record, so that a wrong address is said at once."""
        while not self._stopping:
            try:
                self._bus.connect()
            except TardisMachineError as error:
                self._note_trouble(str(error), retriable=error.retriable)
                if not self._pause():
                    return
            except Exception as error:  # noqa: BLE001 - a bug in one bus must not stop it for good
                _log.exception("bus failed unexpectedly", extra={"bus": self.name})
                self._note_trouble(f"{type(error).__name__}: {error}", retriable=True)
                if not self._pause():
                    return
            else:
                _log.info("bus connected", extra={"bus": self.name})
                self._note_recovery()
                return

    def _gather(self) -> Batch | None:
        """Wait for a full batch, or for the time of one that is not; None when stopping.

        Empty if only messages that were filtered have come.
        """
        limits = self._limits
        with self._changed:
            while not self._stopping:
                if self._again:
                    break
                if self._unsent >= limits.records or self._unsent_bytes >= limits.bytes:
                    break
                wait_s = _WAKE_S
                if self._queue:
                    age_s = time.monotonic() - self._queue[0].fed_at
                    if self._draining or age_s >= limits.delay_s or not self._unsent:
                        break
                    wait_s = min(wait_s, limits.delay_s - age_s)
                self._changed.wait(wait_s)
            if self._stopping:
                return None
            return self._take()

    def _take(self) -> Batch:
        """Take a batch: what failed before, in order, then what is new."""
        batch = Batch()
        records, room = self._limits.records, self._limits.bytes
        taken = 0
        for load, record in self._again[:records]:
            room -= len(record.value)
            if room < 0 and taken:
                break
            batch.add(load, (record,))
            taken += 1
        del self._again[:taken]
        while not self._again and self._queue and len(batch.records) < records:
            load = self._queue[0]
            whole = load.records if not self._taken else load.records[self._taken :]
            size = load.size if not self._taken else sum([len(r.value) for r in whole])
            fitting = len(whole)
            if fitting > records - len(batch.records) or size > room:
                fitting, size = _fitting(whole, records - len(batch.records), room)
                if not fitting and not batch.records:
                    fitting, size = 1, len(whole[0].value)  # larger than any batch: alone
            if fitting:
                batch.add(load, whole[:fitting])
            self._unsent -= fitting
            self._unsent_bytes -= size
            room -= size
            if fitting < len(whole):
                self._taken += fitting
                break
            self._queue.popleft()
            self._taken = 0
        return batch

    def _send(self, batch: Batch) -> None:
        try:
            result = self._bus.send(batch.records, self._config.send_timeout_s)
        except Exception as error:  # noqa: BLE001 - a bug in one bus must not stop it for good
            _log.exception("bus failed unexpectedly", extra={"bus": self.name})
            reason = BusUnavailableError(self.name, f"{type(error).__name__}: {error}")
            failures = [Failure(index, reason) for index in range(len(batch.records))]
            result = SendResult(0, 0, failures)
        statistics = self.statistics
        statistics.batches.observe(len(batch.records))
        now_us = time.time_ns() // 1000
        failed = [index for index, _ in result.failures]
        start = 0
        for load, count in batch.parts:
            delivered = count
            if failed:
                delivered -= bisect_left(failed, start + count) - bisect_left(failed, start)
            load.open -= delivered
            start += count
            statistics.latency.observe((now_us - load.ingest_us) / 1e6, delivered)
        if result.delivered:
            batch.parts[-1][0].duplicates += result.duplicates
            self._note_recovery()
            if not statistics.delivered:
                _log.info("first delivery", extra={"bus": self.name, "records": result.delivered})
            statistics.delivered += result.delivered
        if failed:
            self._settle_failures(batch, result.failures)

    def _settle_failures(self, batch: Batch, failures: Sequence[Failure]) -> None:
        """Keep what may yet be delivered for the next batch, bury what never will be."""
        failed = list(batch.loads_of([index for index, _ in failures]))
        dead = [
            (Sent(load, record), str(error))
            for (load, record), (_, error) in zip(failed, failures, strict=True)
            if not error.retriable
        ]
        buried = self._dead(dead)
        again: list[Sent] = []
        reason = ""
        for (load, record), (_, error) in zip(failed, failures, strict=True):
            if not error.retriable and buried:
                buried -= 1
                continue
            again.append(Sent(load, record))
            reason = reason or str(error)
        if again:
            with self._changed:
                self._again = again + self._again
            self.statistics.retried += len(again)
            self._note_trouble(reason, retriable=True, records=len(again))
            self._pause()

    def _dead(self, dead: Sequence[tuple[Sent, str]]) -> int:
        """Write dead letters; tells for how many that worked, the rest must be kept."""
        if not dead:
            return 0
        letters = [
            self._dead_letters.of_event(load.context, record.event, record.destination, reason)
            for (load, record), reason in dead
        ]
        try:
            written = self._dead_letters.add(letters)
        except OSError as error:
            self._say_dead_letter_trouble(error)
            return 0
        for (load, _), _ in dead[:written]:
            load.dead += 1
            load.open -= 1
        self._say_dead(letters[:written])
        return written

    def _move_cursors(self) -> None:
        """Book the loads that are resolved, oldest first, and save each cursor that moved."""
        for track in self._tracks.values():
            loads, state = track.loads, track.cursor.state
            before, segment = state.seen, state.segment
            place = state.place
            released = released_bytes = 0
            while loads and not loads[0].open:
                load = loads[0]
                load.book(state)
                released += len(load.records)
                released_bytes += load.size
                loads.popleft()
            if state.seen == before and state.place == place:
                continue
            try:
                track.cursor.save()
            except OSError as error:  # the next step saves it; a crash before costs duplicates
                self._note_trouble(f"the cursor cannot be written: {error}", retriable=True)
            with self._changed:
                self._held -= released
                self._held_bytes -= released_bytes
                self._changed.notify_all()
            if state.segment != segment:
                self._passed(track.log)

    # Trouble.

    def _note_trouble(self, reason: str, *, retriable: bool, records: int = 0) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        statistics = self.statistics
        statistics.last_error = reason
        failing_s = now - self._failing_since
        enough = self._backoff.failures + 1 >= self._config.retry_max
        if statistics.healthy and (
            enough or not retriable or failing_s >= self._config.retry_max_s
        ):
            statistics.healthy = False
            _log.error("bus unhealthy", extra={"bus": self.name, "reason": reason})
        held_back = self._retries_said.allow()
        if held_back is not None:
            extra = {"bus": self.name, "reason": reason, "records": records}
            _log.warning("retrying", extra=extra | ({"more": held_back} if held_back else {}))

    def _note_recovery(self) -> None:
        statistics = self.statistics
        if self._failing_since is not None:
            failed_s = time.monotonic() - self._failing_since
            _log.info("bus recovered", extra={"bus": self.name, "after_s": round(failed_s, 3)})
        self._failing_since = None
        self._backoff.reset()
        self._retries_said = Throttle()
        statistics.healthy = True
        statistics.last_error = ""

    def _pause(self) -> bool:
        """Wait before the next attempt; False when stopping."""
        pause_s = self._backoff.next_pause_s()
        if not self.statistics.healthy:
            pause_s = self._config.retry_max_s
        until = time.monotonic() + pause_s
        with self._changed:
            while not self._stopping and (left_s := until - time.monotonic()) > 0:
                if self._draining:
                    left_s = min(left_s, _DRAIN_PAUSE_S)
                    until = min(until, time.monotonic() + left_s)
                self._changed.wait(min(left_s, _WAKE_S))
            return not self._stopping

    def _say_dead(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            held_back = self._deaths_said.allow()
            if held_back is not None:
                extra = {"bus": self.name, "reason": letter.reason, "event_id": letter.event_id}
                _log.error(
                    "dead-lettered", extra=extra | ({"more": held_back} if held_back else {})
                )

    def _say_dead_letter_trouble(self, error: OSError) -> None:
        self._note_trouble(f"dead letters cannot be written: {error}", retriable=True)


def _fitting(records: Sequence[Record], count: int, size: int) -> tuple[int, int]:
    """Tell how many of the first records fit, and their bytes."""
    total = 0
    for number, record in enumerate(records[:count]):
        if total + len(record.value) > size:
            return number, total
        total += len(record.value)
    return min(count, len(records)), total
