"""A bus that fails in scripted ways: what is sent again, in which order, and how often."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tardis_machine.bronze import Context, EncodedBatch
from tardis_machine.journal import Directory, Entry, Log, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.segment import Listing
from tardis_machine.publish.accounts import Statistics
from tardis_machine.publish.buses.base import Limits
from tardis_machine.publish.buses.errors import BusUnavailableError, RecordRejectedError
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetters, read
from tardis_machine.publish.delivery import Delivery
from tardis_machine.publish.encoding import Encoding
from tardis_machine.publish.lanes import Lanes
from tardis_machine.publish.loads import Load, Sent
from tardis_machine.publish.record import Record
from tests.publish.promises import events_of
from tests.support.events import lines, records
from tests.support.scripted_bus import Fail, ScriptedBus

# Batches are full, on a machine that is busy with something else too.
LIMITS = Limits(100, 1 << 20, 2.0)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A finished log of 1,000 messages in entries of 50."""
    writer = Writer(tmp_path / "journal", "p", ["scripted"], max_bytes=1 << 24, fsync=None)
    provenance = encode_provenance(Provenance("p", "r"))
    for start in range(0, 1_000, 50):
        assert writer.append(provenance, lines(50, start=start), 50, start)
    writer.close()
    return Directory(tmp_path / "journal").logs()[0]


@pytest.fixture
def deliver(log: Log, tmp_path: Path) -> Iterator[Callable[..., tuple[Delivery, ScriptedBus]]]:
    """Run a delivery over the log until it is drained."""
    stopped: list[Delivery] = []

    def delivered(
        fail: Fail,
        *,
        limits: Limits = LIMITS,
        until: object = None,
        routes: Mapping[str, str] | None = None,
        **settings: float,
    ) -> tuple[Delivery, ScriptedBus]:
        bus = ScriptedBus(fail, limits, routes=routes)
        config = PublishConfig(retry_min_ms=1, retry_max_s=0.01, retry_max=3, **settings)
        letters = DeadLetters(tmp_path / "dead", "scripted")
        delivery = Delivery(bus, config, Encoding([frozenset()]), letters, lambda _: None)
        delivery.follow(log)
        delivery.start()
        stopped.append(delivery)
        while not delivery.drained(log) and not (callable(until) and until(delivery)):
            time.sleep(0.005)
        return delivery, bus

    yield delivered
    for delivery in stopped:
        was_drained = delivery.drained(log)
        assert delivery.stop(time.monotonic() + 10)
        if was_drained:  # nothing that bounds memory is counted as held for ever, or twice
            statistics = delivery.statistics
            assert (statistics.held_back, statistics.held_back_bytes) == (0, 0)
            assert (delivery.held, delivery._held_bytes) == (0, 0)
            assert (delivery._unsent, delivery._unsent_bytes) == (0, 0)
            lanes = (delivery._lanes.main, *delivery._lanes.aside.values())
            assert [(len(lane.waiting), lane.weight) for lane in lanes] == [(0, 0)] * len(lanes)


EXPECTED = [event.event_id for event in events_of(lines(1_000))]


def unavailable() -> BusUnavailableError:
    return BusUnavailableError("scripted", "scripted")


def test_batches_are_bounded_by_count(deliver: Callable[..., tuple[Delivery, ScriptedBus]]) -> None:
    _, bus = deliver(lambda *_: {}, limits=LIMITS._replace(records=70))
    assert max(map(len, bus.batches)) == 70
    assert [event_id for batch in bus.batches for event_id in batch] == EXPECTED


def test_batches_are_bounded_by_bytes(deliver: Callable[..., tuple[Delivery, ScriptedBus]]) -> None:
    _, bus = deliver(lambda *_: {}, limits=Limits(1_000, 2_000, 0.0))
    sizes = {record.event.event_id: len(record.value) for record in bus.taken}
    assert all(sum(sizes[each] for each in batch) <= 2_000 for batch in bus.batches)
    assert len(bus.batches) < 1_000
    assert [event_id for batch in bus.batches for event_id in batch] == EXPECTED


def test_a_record_larger_than_a_batch_goes_alone(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
) -> None:
    _, bus = deliver(lambda *_: {}, limits=Limits(1_000, 1, 0.0))
    assert {len(batch) for batch in bus.batches} == {1}
    assert len(bus.batches) == 1_000


@pytest.mark.parametrize(("age_s", "left_s"), [(0, 1_000), (400, 600), (5_000, 250), (-50, 1_000)])
def test_what_waited_in_the_journal_has_less_to_wait_for_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, left_s: int
) -> None:
    """And a backlog long enough for full batches; a clock that was set back changes nothing."""
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns - age_s * 10**9)
    writer = Writer(tmp_path / "journal", "p", ["scripted"], max_bytes=1 << 24, fsync=None)
    assert writer.append(encode_provenance(Provenance("p", "r")), lines(5), 5, 0)
    writer.close()
    monkeypatch.setattr(time, "time", lambda: now_ns / 1e9)
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    bus = ScriptedBus(lambda *_: {}, LIMITS._replace(delay_s=1_000))
    letters = DeadLetters(tmp_path / "dead", "scripted")
    delivery = Delivery(bus, PublishConfig(), Encoding([frozenset()]), letters, lambda _: None)
    [log] = Directory(tmp_path / "journal").logs()
    delivery.follow(log)
    bus.meanwhile()
    assert delivery._until_full(7.0) == pytest.approx(left_s, abs=0.001)


class Counting(Encoding):
    """Knows how much was encoded at a time."""

    def __init__(self) -> None:
        super().__init__([frozenset()])
        self.sizes: list[int] = []

    def events(self, log: str, entry: Entry) -> tuple[Context, EncodedBatch]:
        self.sizes.append(entry.messages)
        return super().events(log, entry)


def test_what_a_live_stream_appended_one_by_one_is_encoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    writer = Writer(tmp_path / "journal", "p", ["scripted"], max_bytes=1 << 24, fsync=None)
    with monkeypatch.context() as clock:
        for number in range(100):  # ten a millisecond
            clock.setattr(time, "time_ns", lambda then=now_ns + number * 100_000: then)
            data = lines(1, start=number)
            assert writer.append(encode_provenance(Provenance("p", "r")), data, 1, number)
    writer.close()
    bus, encoding = ScriptedBus(lambda *_: {}, LIMITS), Counting()
    letters = DeadLetters(tmp_path / "dead", "scripted")
    delivery = Delivery(bus, PublishConfig(), encoding, letters, lambda _: None)
    [log] = Directory(tmp_path / "journal").logs()
    delivery.follow(log)
    delivery.start()
    while not delivery.drained(log):
        time.sleep(0.005)
    assert delivery.stop(time.monotonic() + 10)
    assert encoding.sizes == [21, 21, 21, 21, 16]
    assert [event_id for batch in bus.batches for event_id in batch] == EXPECTED[:100]
    assert delivery.leave(log).delivered == 100


def test_log_of_a_writer_that_is_gone_is_delivered_before_any_of_a_younger_log(
    tmp_path: Path,
) -> None:
    """However much of it there is: more entries than are taken at a time, and room for more."""
    provenance = encode_provenance(Provenance("p", "r"))
    numbers = (range(70), range(70, 75))
    for entries in numbers:
        writer = Writer(tmp_path / "journal", "p", ["scripted"], max_bytes=1 << 26, fsync=None)
        for entry in entries:
            data = lines(100, start=100 * entry)  # too much to be joined
            assert writer.append(provenance, data, 100, 100 * entry)
        writer.close()
    bus = ScriptedBus(lambda *_: {}, Limits(10_000, 1 << 23, 0.0))
    letters = DeadLetters(tmp_path / "dead", "scripted")
    delivery = Delivery(bus, PublishConfig(), Encoding([frozenset()]), letters, lambda _: None)
    logs = Directory(tmp_path / "journal").logs()
    for log in logs:
        delivery.follow(log)
    delivery.start()
    while not all(delivery.drained(log) for log in logs):
        time.sleep(0.005)
    assert delivery.stop(time.monotonic() + 10)
    assert len(logs) == 2
    assert [record.event.position for record in bus.taken] == list(range(7_500))


class Breaking(Encoding):
    """Beyond what it is meant to do itself about entries that cannot be encoded."""

    def events(self, log: str, entry: Entry) -> tuple[Context, EncodedBatch]:
        raise RuntimeError("broken")


def test_while_a_bus_waits_it_is_fed_and_does_not_suffer_from_that(
    log: Log, tmp_path: Path
) -> None:
    for encoding, fed in ((Breaking([frozenset()]), 0), (Encoding([frozenset()]), 400)):
        bus = ScriptedBus(lambda *_: {}, LIMITS)
        letters = DeadLetters(tmp_path / "dead", "scripted")
        delivery = Delivery(bus, PublishConfig(), encoding, letters, lambda _: None)
        delivery.follow(log)
        bus.meanwhile()
        assert delivery.held == fed
        delivery.start()
        while not delivery.drained(log) and not delivery.failed:
            time.sleep(0.005)
        assert delivery.failed is not bool(fed)
        assert delivery.stop(time.monotonic() + 10)


def test_a_log_at_rest_is_looked_at_closely_only_a_few_times_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "live", "p", ["scripted"], max_bytes=1 << 24, fsync=None)
    [live] = Directory(tmp_path / "live").logs()
    bus = ScriptedBus(lambda *_: {}, Limits(100, 1 << 20, 0.0))
    letters = DeadLetters(tmp_path / "dead", "scripted")
    delivery = Delivery(bus, PublishConfig(), Encoding([frozenset()]), letters, lambda _: None)
    looks = 0
    listing = live.listing

    def look() -> Listing:
        nonlocal looks
        looks += 1
        return listing()

    monkeypatch.setattr(live, "listing", look)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    delivery.follow(live)
    provenance = encode_provenance(Provenance("p", "r"))
    for start in (0, 50):
        assert writer.append(provenance, lines(50, start=start), 50, start)
        now_s += 0.02
        bus.meanwhile()  # the feeder's turn
        assert delivery.held == start + 50
        looks = 0
        for _ in range(100):
            now_s += 0.02
            bus.meanwhile()
        assert 2 <= looks <= 10
    writer.close()
    delivery.leave(live)


def test_only_what_failed_is_sent_again_and_first(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]], log: Log
) -> None:
    def fail(batch: int, records: Sequence[Record]) -> dict[int, Exception]:
        return {7: unavailable(), 50: unavailable()} if batch == 0 else {}

    delivery, bus = deliver(fail)
    first, second = bus.batches[:2]
    again = [each for each in second if each in set(first)]
    assert second[: len(again)] == again
    assert first[7] in again
    assert first[50] in again
    # Keys of other records went on undisturbed: what was taken is not sent twice.
    taken = [record.event.event_id for record in bus.taken]
    assert sorted(taken) == sorted(EXPECTED)
    assert len(set(taken)) == len(taken)
    by_key: dict[str, list[int]] = {}
    for record in bus.taken:
        by_key.setdefault(record.key, []).append(record.event.position)
    assert all(positions == sorted(positions) for positions in by_key.values())
    assert delivery.statistics.retried == len(again)
    state = log.cursor_state("scripted")
    assert (state.seen, state.delivered) == (1_000, 1_000)


def test_an_exception_is_a_failure_of_the_whole_batch(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
) -> None:
    def fail(batch: int, records: Sequence[Record]) -> dict[int, Exception]:
        if not raised:
            raised.append(batch)
            raise RuntimeError("a bug in a client")
        return {}

    raised: list[int] = []
    _, bus = deliver(fail)
    assert [record.event.event_id for record in bus.taken] == EXPECTED


def test_dead_letters_do_not_block_the_rest(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]], log: Log, tmp_path: Path
) -> None:
    def fail(_: int, records: Sequence[Record]) -> dict[int, Exception]:
        return {
            index: RecordRejectedError("scripted", "never", destination="there")
            for index, record in enumerate(records)
            if record.event.position % 100 == 0
        }

    deliver(fail)
    state = log.cursor_state("scripted")
    assert (state.delivered, state.dead_lettered) == (990, 10)
    letters = list(read(tmp_path / "dead" / "scripted.ndjson"))
    assert [letter.position for letter in letters] == list(range(0, 1_000, 100))
    assert {letter.reason for letter in letters} == {"scripted there: never"}
    assert [letter.event().event_id for letter in letters if letter.event()] == EXPECTED[::100]


def test_unhealthy_after_so_many_failures_then_recovered(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]], log: Log
) -> None:
    allowed = threading.Event()

    def fail(_: int, records: Sequence[Record]) -> dict[int, Exception]:
        return {} if allowed.is_set() else {index: unavailable() for index in range(len(records))}

    delivery, bus = deliver(fail, until=lambda delivery: not delivery.statistics.healthy)
    assert log.cursor_state("scripted").seen == 0
    assert delivery.statistics.last_error == "scripted: scripted"
    allowed.set()
    while not delivery.drained(log):
        time.sleep(0.005)
    assert delivery.statistics.healthy
    assert [record.event.event_id for record in bus.taken] == EXPECTED


def test_lane_of_a_destination_takes_only_what_waits_for_it() -> None:
    bus = ScriptedBus(lambda *_: {}, LIMITS, routes=ROUTES)
    lanes = Lanes("scripted", PublishConfig(), Statistics())
    waiting = [Sent(Load.__new__(Load), record) for record in records(bus, 8)]
    lanes.main.put_back(waiting)

    lane = lanes.open("books")

    for each, wanted in ((lane, {"books"}), (lanes.main, {"base"})):
        assert {sent.record.destination for sent in each.waiting} == wanted
        assert each.weight == sum(sent.record.weight for sent in each.waiting)
    assert [*lane.waiting] == waiting[3::4]


def test_a_bus_that_takes_a_part_again_has_recovered(caplog: pytest.LogCaptureFixture) -> None:
    """It is not asked every half a minute until it takes a whole batch, which it may never do."""
    caplog.set_level(logging.INFO, "tardis_machine.publish")
    statistics = Statistics()
    config = PublishConfig(retry_min_ms=1, retry_max_s=30, retry_max=3)
    lanes = Lanes("scripted", config, statistics)
    for _ in range(3):
        lanes.fail(lanes.main, "away")
    assert not statistics.healthy
    assert lanes.main.due > time.monotonic() + 20

    lanes.fail(lanes.main, "too fast", progress=True)

    assert statistics.healthy
    assert lanes.main.due < time.monotonic() + 1
    assert [record.message for record in caplog.records].count("bus recovered") == 1


def test_memory_is_bounded_while_the_bus_is_away(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
) -> None:
    def fail(_: int, records: Sequence[Record]) -> dict[int, Exception]:
        return {index: unavailable() for index in range(len(records))}

    delivery, _ = deliver(
        fail,
        limits=Limits(50, 1 << 20, 0.0),
        until=lambda delivery: delivery.statistics.retried > 500,
    )
    assert delivery.held <= 4 * 50 + 50


ROUTES = {"bookChange": "books"}


def fail_books(records: Sequence[Record]) -> dict[int, BusUnavailableError]:
    """Refuse what goes to one of the two destinations."""
    return {
        place: BusUnavailableError("scripted", "away", destination="books")
        for place, record in enumerate(records)
        if record.destination == "books"
    }


def alone(bus: ScriptedBus) -> list[float]:
    """Tell how long each attempt at the one destination alone might take."""
    return [timeout_s for where, timeout_s in bus.timeouts if where == {"books"}]


def books_fail() -> tuple[threading.Event, Fail]:
    """Let records of one destination fail until they are allowed."""
    allowed = threading.Event()

    def fail(_: int, records: Sequence[Record]) -> dict[int, BusUnavailableError]:
        return {} if allowed.is_set() else fail_books(records)

    return allowed, fail


def positions(bus: ScriptedBus, destination: str) -> list[int]:
    return [r.event.position for r in bus.taken if r.destination == destination]


def test_a_failing_destination_does_not_hold_the_others(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]], log: Log
) -> None:
    """More than a window of records passes it by, and it loses nothing of its own."""
    allowed, fail = books_fail()
    delivery, bus = deliver(
        fail,
        limits=LIMITS._replace(records=20),
        routes=ROUTES,
        until=lambda delivery: delivery.statistics.delivered == 750,
    )
    assert positions(bus, "base") == [n for n in range(1_000) if n % 4 != 3]
    assert positions(bus, "books") == []
    assert log.cursor_state("scripted").seen == 0
    allowed.set()
    while not delivery.drained(log):
        time.sleep(0.005)
    assert positions(bus, "books") == list(range(3, 1_000, 4))
    assert len(bus.taken) == 1_000
    assert delivery.held == 0


def test_trouble_of_the_bus_as_a_whole_parts_no_destinations(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
) -> None:
    def fail(batch: int, records: Sequence[Record]) -> dict[int, BusUnavailableError]:
        return {place: unavailable() for place in range(len(records))} if batch < 3 else {}

    _, bus = deliver(fail, routes=ROUTES)
    assert bus.batches[0] == bus.batches[1] == bus.batches[2] == bus.batches[3]
    assert [record.event.event_id for record in bus.taken] == EXPECTED


def test_a_bus_that_failed_is_given_no_less_time(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
) -> None:
    """Else a slow one never acknowledges anything again, and stores all of it each time."""

    def fail(batch: int, records: Sequence[Record]) -> dict[int, BusUnavailableError]:
        return {place: unavailable() for place in range(len(records))} if batch < 5 else {}

    _, bus = deliver(fail, routes=ROUTES, send_timeout_s=30.0)
    assert {timeout_s for _, timeout_s in bus.timeouts} == {30.0}


@pytest.mark.parametrize(
    ("longest_s", "given"), [(30.0, [5.0, 10.0, 20.0, 30.0]), (2.0, [2.0, 2.0, 2.0, 2.0])]
)
def test_a_destination_that_fails_is_given_more_time_with_each_attempt(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
    log: Log,
    longest_s: float,
    given: list[float],
) -> None:
    """And keeps what it may have needed until it has caught up."""
    allowed, fail = books_fail()
    delivery, bus = deliver(
        fail,
        limits=LIMITS._replace(records=20),
        routes=ROUTES,
        until=lambda delivery: delivery.statistics.retried > 200,
        send_timeout_s=longest_s,
    )
    allowed.set()
    while not delivery.drained(log):
        time.sleep(0.005)
    assert alone(bus)[:4] == given
    assert set(alone(bus)[4:]) == {longest_s}
    assert {timeout_s for where, timeout_s in bus.timeouts if "base" in where} == {longest_s}


def test_what_waits_for_a_failing_destination_is_bounded(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]],
) -> None:
    delivery, bus = deliver(
        lambda _, records: fail_books(records),
        limits=LIMITS._replace(records=20),
        routes=ROUTES,
        until=lambda delivery: delivery.statistics.retried > 200,
        held_back_max_records=60,
    )
    assert delivery.held <= 60 + 50 + 4 * 20 + 50
    # Between two looks at it some of them may be under way again.
    assert delivery.statistics.held_back <= 60 + 50
    assert len(bus.taken) < 750


def test_a_hot_shard_is_normal_operation(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]], caplog: pytest.LogCaptureFixture
) -> None:
    """Part of every batch is refused once: it is said once, and no health comes and goes."""
    caplog.set_level(logging.INFO, "tardis_machine.publish")
    refused: set[str] = set()
    health: list[bool] = []

    def fail(_: int, records: Sequence[Record]) -> dict[int, BusUnavailableError]:
        found = {}
        for place, record in enumerate(records):
            if record.event.position % 10 == 7 and record.event.event_id not in refused:
                refused.add(record.event.event_id)
                found[place] = BusUnavailableError("scripted", "too fast", destination="base")
        health.append(delivery_of[0].statistics.healthy if delivery_of else True)
        return found

    delivery_of: list[Delivery] = []
    delivery, bus = deliver(fail, limits=LIMITS._replace(records=20))
    delivery_of.append(delivery)
    assert sorted(record.event.event_id for record in bus.taken) == sorted(EXPECTED)
    said = [record.message for record in caplog.records]
    assert said.count("retrying") == 1
    assert "bus recovered" not in said
    assert all(health)
    assert len(refused) == 100
