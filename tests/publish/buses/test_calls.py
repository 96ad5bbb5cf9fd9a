"""Calls of services that take several records at once: split, bounded, and never out of order."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze import Event, Series
from tardis_machine.publish.buses.calls import CallLimits, Calls
from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    NotSentError,
    RecordRejectedError,
    ThrottledError,
)
from tardis_machine.publish.buses.fates import Fates, SendResult
from tardis_machine.publish.record import Record, Target

LIMITS = CallLimits(10, 1_000, 4)
Answer = Callable[[str, Sequence[Record]], Sequence[BusError | None]]


def record(position: int, key: str, destination: str = "d", weight: int = 10) -> Record:
    series = Series("x", key, "trade", "trade")
    event = Event(b"", series, str(position), 0, position)
    return Record(event, Target(series, destination, key, ()), weight)


class Service:
    """Takes calls in memory; `answer` says what becomes of the records of one."""

    def __init__(self, answer: Answer | None = None) -> None:
        self._answer = answer or (lambda _, records: [None] * len(records))
        self._lock = threading.Lock()
        self.calls: list[tuple[str, list[Record]]] = []
        self.taken: list[Record] = []
        self.under_way: dict[str, set[str]] = {}

    def call(self, destination: str, records: Sequence[Record]) -> Sequence[BusError | None]:
        keys = {each.key for each in records}
        with self._lock:
            self.calls.append((destination, list(records)))
            others = self.under_way.setdefault(destination, set())
            assert not keys & others, "a key is in two calls at a time"
            others |= keys
        try:
            answers = self._answer(destination, records)
        finally:
            with self._lock:
                self.under_way[destination] -= keys
        with self._lock:
            pairs = zip(records, answers, strict=False)
            self.taken += [each for each, error in pairs if error is None]
        return answers


def send(
    service: Service,
    records: Sequence[Record],
    *,
    limits: CallLimits = LIMITS,
    strict: bool = False,
) -> SendResult:
    calls = Calls("b", limits, service.call, destinations=3, strict=strict)
    fates = Fates("b", len(records))
    try:
        calls.send(records, fates, time.monotonic() + 30)
    finally:
        calls.close()
    return fates.result()


def test_calls_are_bounded_by_count_weight_and_destination():
    records = [record(n, f"k{n % 7}", f"d{n % 3}", weight=60) for n in range(300)]
    service = Service()

    assert send(service, records, limits=CallLimits(10, 500, 4)).delivered == 300

    for destination, taken in service.calls:
        assert {each.destination for each in taken} == {destination}
        assert len(taken) <= 8
        assert sum(each.weight for each in taken) <= 500


def test_few_records_take_few_calls():
    service = Service()

    send(service, [record(n, f"k{n}") for n in range(10)])

    assert len(service.calls) == 1


def test_a_record_heavier_than_a_call_goes_alone():
    service = Service()

    send(service, [record(0, "a"), record(1, "a", weight=5_000), record(2, "a")])

    assert [len(taken) for _, taken in service.calls] == [1, 1, 1]


def test_several_calls_are_under_way():
    together = threading.Barrier(3, timeout=20)

    def answer(_: str, records: Sequence[Record]) -> list[None]:
        together.wait()
        return [None] * len(records)

    records = [record(n, key) for n, key in enumerate(_keys_of_queues(3) * 10)]

    assert send(Service(answer), records, limits=CallLimits(10, 10_000, 3)).delivered == 30


def _keys_of_queues(count: int) -> list[str]:
    """Give one key of each queue: which key is whose depends on the process."""
    found: dict[int, str] = {}
    for number in range(1_000):
        found.setdefault(hash(f"k{number}") % count, f"k{number}")
    return [found[queue] for queue in range(count)]


def test_what_failed_holds_its_key_and_nothing_else():
    def answer(_: str, records: Sequence[Record]) -> list[BusError | None]:
        return [
            BusUnavailableError("b", "internal", destination="d")
            if each.event.position == 3
            else None
            for each in records
        ]

    records = [record(n, "hot" if n % 2 else "cold") for n in range(100)]
    service = Service(answer)

    result = send(service, records, limits=CallLimits(5, 1_000, 1))

    failed = {place: type(error) for place, error in result.failures}
    assert failed.pop(3) is BusUnavailableError
    # Inside the call of the failed one, the next of its key may have got in.
    assert set(failed.values()) == {NotSentError}
    assert {records[place].key for place in failed} == {"hot"}
    assert min(failed) == 5
    assert [each.event.position for each in service.taken if each.key == "cold"] == [
        *range(0, 100, 2)
    ]


@pytest.mark.parametrize(
    ("error", "hit"),
    [
        (ThrottledError("b", "slow down", destination="d0"), {"d0"}),
        (BusUnavailableError("b", "500", destination="d0"), {"d0"}),
        (BusUnavailableError("b", "no route to host"), {"d0", "d1", "d2"}),
    ],
    ids=["throttled", "destination", "bus"],
)
def test_trouble_stops_what_it_concerns(error: BusError, hit: set[str]):
    failing = threading.Event()

    def answer(destination: str, records: Sequence[Record]) -> list[BusError | None]:
        if destination == "d0":
            failing.set()
            if isinstance(error, ThrottledError):
                return [error] * len(records)
            raise error
        failing.wait(20)
        return [None] * len(records)

    records = [record(n, "k", f"d{n % 3}") for n in range(300)]
    service = Service(answer)

    result = send(service, records)

    assert len([1 for destination, _ in service.calls if destination == "d0"]) == 1
    untouched = {each.destination for each in records} - hit
    failed = {records[place].destination for place, _ in result.failures}
    assert not failed & untouched
    assert "d0" in failed
    assert all(failure.retriable for _, failure in result.failures)


def test_a_refused_call_is_halved_until_the_culprit_is_alone():
    def answer(_: str, records: Sequence[Record]) -> list[None]:
        if any(each.event.position in {3, 17} for each in records):
            raise RecordRejectedError("b", "invalid", destination="d")
        return [None] * len(records)

    records = [record(n, "k") for n in range(40)]
    service = Service(answer)

    result = send(service, records)

    assert [place for place, _ in result.failures] == [3, 17]
    assert [each.event.position for each in service.taken] == [
        n for n in range(40) if n not in {3, 17}
    ]


@pytest.mark.parametrize("count", [0, 1, 11])
def test_an_answer_for_more_or_fewer_records_is_none(count: int):
    result = send(Service(lambda *_: [None] * count), [record(n, "k") for n in range(10)])

    assert result.delivered == 0
    assert all(error.retriable for _, error in result.failures)


def test_calls_that_hang_are_given_up_and_the_next_ones_go_out():
    hang = threading.Event()

    def answer(destination: str, records: Sequence[Record]) -> list[None]:
        if destination == "d0":
            hang.wait(60)
        return [None] * len(records)

    records = [record(n, f"k{n}", f"d{n % 2}") for n in range(100)]
    service = Service(answer)
    calls = Calls("b", CallLimits(10, 1_000, 2), service.call, destinations=2, strict=False)
    fates = Fates("b", len(records))
    calls.send(records, fates, time.monotonic() + 0.5)
    result = fates.result()
    hang.set()
    while any(service.under_way.values()):
        time.sleep(0.005)

    assert result.delivered == 50
    assert {records[place].destination for place, _ in result.failures} == {"d0"}
    assert any("not acknowledged in time" in str(error) for _, error in result.failures)
    again = Fates("b", len(records))
    calls.send(records, again, time.monotonic() + 30)
    calls.close()
    assert again.result().delivered == 100


@given(
    keys=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    failing=st.sets(st.integers(0, 119), max_size=30),
    strict=st.booleans(),
    in_flight=st.integers(1, 4),
)
def test_sending_what_failed_again_first_keeps_the_order(
    keys: list[int], failing: set[int], *, strict: bool, in_flight: int
):
    """Strictly always; otherwise whoever was overtaken was so inside one call."""
    left_to_fail = set(failing)
    together: dict[int, set[int]] = {}

    def answer(_: str, records: Sequence[Record]) -> list[BusError | None]:
        found: list[BusError | None] = []
        for each in records:
            position = each.event.position
            failed = position in left_to_fail
            left_to_fail.discard(position)
            if failed:
                together[position] = {other.event.position for other in records}
            error = BusUnavailableError("b", "internal", destination="d")
            found.append(error if failed else None)
        return found

    service = Service(answer)
    left = [record(n, f"k{key}") for n, key in enumerate(keys)]
    while left:
        result = send(service, left, limits=CallLimits(7, 10_000, in_flight), strict=strict)
        left = [left[place] for place, _ in result.failures]

    assert sorted(each.event.position for each in service.taken) == list(range(len(keys)))
    for key in set(keys):
        order = [each.event.position for each in service.taken if each.key == f"k{key}"]
        for place, position in enumerate(order):
            overtaken = [other for other in order[place:] if other < position]
            assert not (strict and overtaken)
            assert all(position in together[other] for other in overtaken)
