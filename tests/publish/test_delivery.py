"""A bus that fails in scripted ways: what is sent again, in which order, and how often."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tardis_machine.journal import Directory, Log, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.publish.buses.base import (
    BusUnavailableError,
    Failure,
    Limits,
    NotSentError,
    RecordRejectedError,
    SendResult,
)
from tardis_machine.publish.buses.file import FileConfig, FileEventBus
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetters, read
from tardis_machine.publish.delivery import Delivery
from tardis_machine.publish.encoding import Encoding
from tardis_machine.publish.record import Record
from tests.buses.events import lines
from tests.publish.promises import events_of

# Batches are full, on a machine that is busy with something else too.
LIMITS = Limits(100, 1 << 20, 0.5)
Fail = Callable[[int, Sequence[Record]], dict[int, Exception]]


class ScriptedBus(FileEventBus):
    """Keeps what it takes in memory; a script says which records of which batch fail, and how."""

    def __init__(self, fail: Fail, limits: Limits) -> None:
        super().__init__(FileConfig(path=Path("unused")))
        self._fail = fail
        self._limits = limits
        self.batches: list[list[str]] = []
        self.taken: list[Record] = []

    @property
    def limits(self) -> Limits:
        return self._limits

    def connect(self) -> None:
        """There is nothing to reach."""

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        failed = self._fail(len(self.batches), records)
        self.batches.append([record.event.event_id for record in records])
        held = {records[i].key for i, error in failed.items() if error.retriable}
        for index, record in enumerate(records):
            if index not in failed and record.key in held:
                failed[index] = NotSentError("file", "held back")
            elif index not in failed:
                self.taken.append(record)
        failures = [Failure(index, failed[index]) for index in sorted(failed)]
        return SendResult(len(records) - len(failures), 0, failures)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A finished log of 1,000 messages in entries of 50."""
    writer = Writer(tmp_path / "journal", "p", ["file"], max_bytes=1 << 24, fsync=None)
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
        fail: Fail, *, limits: Limits = LIMITS, until: object = None
    ) -> tuple[Delivery, ScriptedBus]:
        bus = ScriptedBus(fail, limits)
        config = PublishConfig(retry_min_ms=1, retry_max_s=0.01, retry_max=3)
        letters = DeadLetters(tmp_path / "dead", "file")
        delivery = Delivery(bus, config, Encoding(1), letters, lambda _: None)
        delivery.follow(log)
        delivery.start()
        stopped.append(delivery)
        while not delivery.drained(log) and not (callable(until) and until(delivery)):
            time.sleep(0.005)
        return delivery, bus

    yield delivered
    for delivery in stopped:
        assert delivery.stop(time.monotonic() + 10)


EXPECTED = [event.event_id for event in events_of(lines(1_000))]


def unavailable() -> BusUnavailableError:
    return BusUnavailableError("file", "scripted")


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
    state = log.cursor_state("file")
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
            index: RecordRejectedError("file", "never", destination="there")
            for index, record in enumerate(records)
            if record.event.position % 100 == 0
        }

    deliver(fail)
    state = log.cursor_state("file")
    assert (state.delivered, state.dead_lettered) == (990, 10)
    letters = list(read(tmp_path / "dead" / "file.ndjson"))
    assert [letter.position for letter in letters] == list(range(0, 1_000, 100))
    assert {letter.reason for letter in letters} == {"file there: never"}
    assert [letter.event().event_id for letter in letters if letter.event()] == EXPECTED[::100]


def test_unhealthy_after_so_many_failures_then_recovered(
    deliver: Callable[..., tuple[Delivery, ScriptedBus]], log: Log
) -> None:
    allowed = threading.Event()

    def fail(_: int, records: Sequence[Record]) -> dict[int, Exception]:
        return {} if allowed.is_set() else {index: unavailable() for index in range(len(records))}

    delivery, bus = deliver(fail, until=lambda delivery: not delivery.statistics.healthy)
    assert log.cursor_state("file").seen == 0
    assert delivery.statistics.last_error == "file: scripted"
    allowed.set()
    while not delivery.drained(log):
        time.sleep(0.005)
    assert delivery.statistics.healthy
    assert [record.event.event_id for record in bus.taken] == EXPECTED


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
