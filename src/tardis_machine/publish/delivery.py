"""One bus's way from the journal to the acknowledgement: a thread that feeds, a thread that sends.

The feeder reads entries behind the cursor, encodes and routes them, as far ahead as the window
allows. The sender gathers batches by count, bytes and time, and moves the cursor over an entry
once each of its records is acknowledged or dead. They take turns: two threads that want Python's
lock at the same time mostly wait for it. While a bus has nothing to do but wait for
acknowledgements, the sender feeds. What failed is sent again before anything new of
its destination, in order, so that order per key holds; nothing else is sent twice. A destination
that fails waits in a lane of its own, and holds the others only when more is set aside for it than
may be kept in memory.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from tardis_machine.bronze import Context, Rejected
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import CursorState, Entry, Gap, Log, OtherVersionError
from tardis_machine.log import Throttle
from tardis_machine.publish.accounts import Statistics
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import BusError, NotSentError
from tardis_machine.publish.buses.fates import Failure
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters
from tardis_machine.publish.encoding import Encoding
from tardis_machine.publish.lanes import Lane, Lanes
from tardis_machine.publish.loads import Batch, Load, Sent, Track, fitting, weight_of
from tardis_machine.publish.record import Records

_log = logging.getLogger(__name__)

_WINDOW_BATCHES: Final = 4
_WINDOW_BYTES: Final = 32 << 20
_ENTRIES_PER_TURN: Final = 64
_LOOKS: Final = 4
"""How often the journal is looked at, at least, in the time that a batch has to fill."""
_SHORTEST_IDLE_S: Final = 0.001
_LONGEST_IDLE_S: Final = 0.02
_WAKE_S: Final = 0.5
_DRAIN_PAUSE_S: Final = 0.5


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
        gives_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start nothing yet; `passed` is called when the bus reached a later segment of a log.

        `statistics` are those of a delivery that has failed, to be gone on with. While `gives_way`
        says so, nothing is begun.
        """
        self.name = bus.name
        self.statistics = statistics or Statistics()
        self._bus = bus
        self._limits = bus.limits
        self._config = config
        self._encoding = encoding
        self._dead_letters = dead_letters
        self._passed = passed
        self._gives_way = gives_way
        self._router = bus.router()
        after_death = statistics is not None
        self._lanes = Lanes(bus.name, config, self.statistics, after_death=after_death)
        # With nothing to part it from, a destination's trouble is the bus's.
        self._parted = len(bus.destinations()) > 1 or bus.config.routing().destination is not None
        self._last = self._lanes.main
        self._deaths_said = Throttle()
        self._tracks: dict[str, Track] = {}
        # Held by whoever feeds, and by the sender while it sends.
        self._turn = threading.Lock()
        self._broken: Exception | None = None
        self._feeds_meanwhile = False
        bus.meanwhile = self._feed_meanwhile
        self._changed = threading.Condition()
        # Guarded by _changed, as the lanes are: what is fed and not yet taken for a batch, all
        # that is held, and how much of that waits for destinations that fail.
        self._queue: deque[Load] = deque()
        self._unsent = 0
        self._unsent_bytes = 0
        self._held = 0
        self._held_bytes = 0
        self.statistics.held_back = self.statistics.held_back_bytes = 0
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

    def leave(self, log: Log) -> CursorState:
        """Forget a log that is drained; gives what became of it, though it may not be on disk."""
        tracks = dict(self._tracks)
        cursor = tracks.pop(log.name).cursor
        cursor.close()
        self._tracks = tracks
        return cursor.state

    def drained(self, log: Log) -> bool:
        track = self._tracks.get(log.name)
        return track is not None and track.drained

    def unreadable(self, log: Log) -> OtherVersionError | None:
        """Tell why a log cannot be read any further."""
        track = self._tracks.get(log.name)
        return None if track is None else track.unreadable

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
            self._lanes.hurry(_DRAIN_PAUSE_S)
            self._changed.notify_all()

    def end(self) -> None:
        """Tell both threads to end, without waiting for them."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self, deadline: float) -> bool:
        """End both threads; False if the bus did not let go of the sender in time."""
        self.end()
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
            with self._changed:
                if not self._failed:
                    self._lanes.die(f"{type(error).__name__}: {error}")
                self._failed = self._stopping = True
                self._changed.notify_all()

    # The feeder.

    def _run_feeder(self) -> None:
        # A batch is waited for anyway: looking more often than it takes to fill only costs.
        shortest_s = max(_SHORTEST_IDLE_S, min(self._limits.delay_s / _LOOKS, _LONGEST_IDLE_S))
        idle_s = shortest_s
        while self._wait_for_room():
            try:
                with self._turn:
                    fed = self._feed_all()
            except OSError as error:
                self._note(f"the journal cannot be read: {error}")
                fed, idle_s = False, _WAKE_S
            if fed:
                idle_s = shortest_s
            else:
                time.sleep(idle_s)
                idle_s = min(idle_s * 2, _LONGEST_IDLE_S)

    def _feed_meanwhile(self) -> None:
        """Feed while the bus waits, which must not suffer from what goes wrong here."""
        self._feeds_meanwhile = True
        try:
            self._feed_all()
        except OSError as error:
            self._note(f"the journal cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - raised when the bus is done
            self._broken = error

    def _feed_all(self) -> bool:
        """Take some entries of every log, oldest first, as far as there is room; False: none.

        A log whose writer is gone is read to its end before any younger one, so that order per
        key holds over a restart. Logs whose writers live were written side by side.
        """
        fed = False
        older: Track | None = None
        for track in self._tracks.values():
            # Asked only now: what its writer wrote last must not come behind the younger one.
            if older is not None and older.log.finished() and not older.exhausted:
                break
            fed = self._feed(track) or fed
            older = track
        return fed

    def _feed(self, track: Track) -> bool:
        """Take some entries of a log; False if there was none."""
        if track.exhausted:
            return False
        for turn in range(_ENTRIES_PER_TURN):
            if self._stopping or not self._has_room():
                return True
            if self._holds_back():
                return turn > 0
            finished = not track.reader.ready and track.log.finished()
            if not finished and track.reader.at_rest():
                return turn > 0
            try:
                found = track.reader.read()
            except OtherVersionError as error:
                track.unreadable, track.exhausted = error, finished
                return turn > 0
            if found is None:
                track.exhausted = finished
                return turn > 0
            if isinstance(found, Entry):
                found = track.reader.read_on(found)
            load = Load(track, found)
            if not self._fill(load, found):
                return True
            self._enqueue(load)
        return True

    def _fill(self, load: Load, found: Entry | Gap) -> bool:
        """Encode and route; False if stopped while dead letters could not be written."""
        if isinstance(found, Gap):
            context, line, position = self._encoding.announce(self.name, found)
            self._router.context = context
            event = self._encoding.event(context, line, position)
            load.fill(context, Records.of(self._router.route([event])))
        else:
            context, batch = self._encoding.events(load.track.log.name, found)
            load.unencodable = len(batch.rejected)
            if batch.rejected and not self._bury(context, batch.rejected):
                return False
            if batch.messages != found.messages:
                _log.error(
                    "entry's message count is wrong",
                    extra={"said": found.messages, "found": batch.messages, "offset": found.offset},
                )
            self._router.context = context
            load.fill(context, self._router.route_batch(batch))
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
            while not self._stopping and (not self._has_room() or self._is_supplied()):
                self._changed.wait(_WAKE_S)
            return not self._stopping

    def _holds_back(self) -> bool:
        """Tell whether somebody else goes first: nobody does when time is short."""
        return not self._draining and self._gives_way()

    def _is_supplied(self) -> bool:
        """Tell whether the sender has a batch to go on with, and feeds itself meanwhile."""
        return self._feeds_meanwhile and self._unsent >= self._limits.records

    def _has_room(self) -> bool:
        aside = self.statistics
        return (
            self._held - aside.held_back < self._limits.records * _WINDOW_BATCHES
            and self._held_bytes - aside.held_back_bytes < _WINDOW_BYTES
            and aside.held_back < self._config.held_back_max_records
            and aside.held_back_bytes < self._config.held_back_max_bytes
        )

    def _enqueue(self, load: Load) -> None:
        limits = self._limits
        # What waited in the journal, behind a batch that was being sent, has less to wait here; a
        # backlog needs some time still to make full batches.
        waited_s = max(0.0, time.time() - load.ingest_us / 1e6)
        load.due = time.monotonic() + max(limits.delay_s - waited_s, limits.delay_s / _LOOKS)
        with self._changed:
            # In between, the sender only waits for the time of what is there already.
            first = not self._unsent
            load.track.loads.append(load)
            self._queue.append(load)
            self._unsent += load.open
            self._unsent_bytes += load.weight
            self._held += load.open
            self._held_bytes += load.weight
            if first or self._unsent >= limits.records or self._unsent_bytes >= limits.bytes:
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
        main = self._lanes.main
        while not self._stopping:
            try:
                unusable = self._bus.connect()
            except TardisMachineError as error:
                self._lanes.fail(main, str(error), retriable=error.retriable)
            except Exception as error:  # noqa: BLE001 - a bug in one bus must not stop it for good
                _log.exception("bus failed unexpectedly", extra={"bus": self.name})
                self._lanes.fail(main, f"{type(error).__name__}: {error}")
            else:
                for trouble in unusable.values():
                    self._note(str(trouble))
                _log.info("bus connected", extra={"bus": self.name})
                self._lanes.succeed(main)
                return
            self._wait_until(main.due)

    def _wait_until(self, due: float) -> None:
        with self._changed:
            if self._draining:
                due = min(due, time.monotonic() + _DRAIN_PAUSE_S)
            while not self._stopping and (left_s := due - time.monotonic()) > 0:
                self._changed.wait(min(left_s, _WAKE_S))

    def _gather(self) -> Batch | None:
        """Wait for a full batch, or for the time of one that is not; None when stopping.

        Empty if only messages that were filtered have come.
        """
        lanes = self._lanes
        with self._changed:
            while not self._stopping:
                if self._holds_back():
                    self._changed.wait(_LONGEST_IDLE_S)
                    continue
                now = time.monotonic()
                wait_s = lanes.main.due - now
                if wait_s <= 0:
                    wait_s = self._until_full(now)
                    troubled = lanes.due(now)
                    # By turns, so that trouble without end does not hold what is well.
                    if troubled is not None and (wait_s > 0 or self._last is lanes.main):
                        return self._take_aside(troubled)
                    if wait_s <= 0:
                        return self._take()
                    wait_s = min(wait_s, (lanes.next_due() or now + wait_s) - now)
                self._changed.wait(min(max(wait_s, _SHORTEST_IDLE_S), _WAKE_S))
            return None

    def _until_full(self, now: float) -> float:
        """Give the time until the next batch of the main lane is to go; 0 for now."""
        limits = self._limits
        if self._lanes.main.waiting:
            return 0.0
        if self._unsent >= limits.records or self._unsent_bytes >= limits.bytes:
            return 0.0
        if not self._queue:
            return _WAKE_S
        if self._draining or not self._unsent:
            return 0.0
        return max(0.0, self._queue[0].due - now)

    def _take_aside(self, lane: Lane) -> Batch:
        """Take what waits for a destination that failed."""
        self._last = lane
        before, weight = len(lane.waiting), lane.weight
        batch = Batch(lane)
        self._take_waiting(batch)
        self.statistics.held_back -= before - len(lane.waiting)
        self.statistics.held_back_bytes -= weight - lane.weight
        return batch

    def _take(self) -> Batch:
        """Take a batch: what failed before, in order, then what is new."""
        main = self._last = self._lanes.main
        batch = Batch(main)
        records, room = self._limits.records, self._limits.bytes
        self._take_waiting(batch)
        while not main.waiting and self._queue and len(batch.records) < records:
            load = self._queue[0]
            if self._lanes.aside:
                self._set_aside(load)
            whole, count, weight = load.records, len(load.records), load.weight
            left = room - batch.weight
            if count > records - len(batch.records) or weight > left:
                count, weight = fitting(whole, records - len(batch.records), left)
                if not count and not batch.records:
                    count, weight = 1, whole.weights[0]  # larger than any batch: alone
            if count:
                batch.add(load, whole if count == len(whole) else whole[:count], weight)
            self._unsent -= count
            self._unsent_bytes -= weight
            if count < len(whole):
                load.leave(whole[count:])
                break
            load.leave(Records.of(()))
            self._queue.popleft()
        return batch

    def _take_waiting(self, batch: Batch) -> None:
        """Take what fits of the records that wait in the batch's lane."""
        lane = batch.lane
        while lane.waiting and len(batch.records) < self._limits.records:
            load, record = lane.waiting[0]
            if batch.records and batch.weight + record.weight > self._limits.bytes:
                break
            lane.take()
            batch.add(load, Records.of((record,)), record.weight)

    def _set_aside(self, load: Load) -> None:
        """Let those records of a load wait whose destination has a lane of its own."""
        lanes = self._lanes.aside
        staying = []
        for record in load.records:
            lane = lanes.get(record.destination)
            if lane is None:
                staying.append(record)
            else:
                lane.append(Sent(load, record))
                self.statistics.held_back += 1
                self.statistics.held_back_bytes += record.weight
        if len(staying) < len(load.records):
            before, weight = len(load.records), load.weight
            load.leave(Records.of(staying))
            self._unsent -= before - len(staying)
            self._unsent_bytes -= weight - load.weight

    def _send(self, batch: Batch) -> None:
        with self._turn:
            result = self._bus.send(batch.records, batch.lane.timeout_s)
        if self._broken is not None:
            raise self._broken
        statistics = self.statistics
        statistics.batches.observe(len(batch.records))
        now_us = time.time_ns() // 1000
        failed = [place for place, _ in result.failures]
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
            if not statistics.delivered:
                _log.info("first delivery", extra={"bus": self.name, "records": result.delivered})
            statistics.delivered += result.delivered
        again = self._bury_rejected(batch, result.failures) if failed else []
        with self._changed:
            self._held -= len(batch.records) - len(again)
            self._held_bytes -= batch.weight - weight_of([sent.record for sent, _ in again])
            if result.delivered and not self._failed:
                self._lanes.acknowledge()
            if again:
                reached = set(range(len(batch.records))).difference(failed)
                self._try_again(batch, again, {batch.records[p].destination for p in reached})
            else:
                self._lanes.succeed(batch.lane)
            self._changed.notify_all()

    def _bury_rejected(
        self, batch: Batch, failures: Sequence[Failure]
    ) -> list[tuple[Sent, BusError]]:
        """Bury what will never be delivered; give what may yet be, in order."""
        failed = list(
            zip(batch.at([place for place, _ in failures]), [e for _, e in failures], strict=True)
        )
        buried = self._dead([(sent, str(error)) for sent, error in failed if not error.retriable])
        again = []
        for sent, error in failed:
            if not error.retriable and buried:
                buried -= 1
            else:
                again.append((sent, error))
        return again

    def _try_again(
        self, batch: Batch, again: Sequence[tuple[Sent, BusError]], reached: Collection[str]
    ) -> None:
        """Let what failed wait where it belongs: with its destination, or with the whole bus.

        `reached` are the destinations that took some of the batch.
        """
        self.statistics.retried += len(again)
        lanes, lane = self._lanes, batch.lane
        records = [sent for sent, _ in again]
        causes = [(s, e) for s, e in again if not isinstance(e, NotSentError)] or again
        reasons = {sent.record.destination: str(error) for sent, error in reversed(causes)}
        reason = str(causes[0][1])
        whole = not self._parted or any(
            error.destination is None or isinstance(error, NotSentError) for _, error in causes
        )
        if lane is not lanes.main:
            lane.put_back(records)
            self._count_aside(records)
            if whole:
                lanes.fail(lanes.main, reason)
            if not reached:
                lanes.lengthen(lane)
            lanes.fail(lane, reason, records=len(records), progress=bool(reached))
        elif whole:
            lane.put_back(records)
            lanes.fail(lane, reason, records=len(records), progress=bool(reached))
        else:
            lane.put_back([sent for sent in records if sent.record.destination not in reasons])
            for destination, why in reasons.items():
                own = [sent for sent in records if sent.record.destination == destination]
                opened = lanes.open(destination)
                opened.put_back(own)
                self._count_aside(opened.waiting)
                lanes.fail(opened, why, records=len(own), progress=destination in reached)

    def _count_aside(self, records: Iterable[Sent]) -> None:
        weights = [sent.record.weight for sent in records]
        self.statistics.held_back += len(weights)
        self.statistics.held_back_bytes += sum(weights)

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
            segment = state.segment
            done = 0
            while done < len(loads) and not loads[done].open:
                loads[done].book(state)
                done += 1
            if not done:
                continue
            try:
                track.cursor.save()
            except OSError as error:  # the next step saves it; a crash before costs duplicates
                self._note(f"the cursor cannot be written: {error}")
            if state.segment != segment:
                self._passed(track.log)
            # Last of all: without loads the log counts as drained, and another thread deletes it.
            for _ in range(done):
                loads.popleft()

    # Trouble.

    def _note(self, reason: str, *, retriable: bool = True) -> None:
        self._lanes.note(self._lanes.main, reason, retriable=retriable)

    def _say_dead(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            held_back = self._deaths_said.allow()
            if held_back is not None:
                extra = {"bus": self.name, "reason": letter.reason, "event_id": letter.event_id}
                _log.error(
                    "dead-lettered", extra=extra | ({"more": held_back} if held_back else {})
                )

    def _say_dead_letter_trouble(self, error: OSError) -> None:
        self._note(f"dead letters cannot be written: {error}")
