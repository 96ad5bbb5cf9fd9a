"""Times at which local times are due, by a clock that the tests set."""

import threading

import pytest

from tardis_machine.messages.times import iso_us
from tardis_machine.replays.pacing import Schedule
from tests.support.clock import ManualClock

START = 1_709_251_200_000_000
MINUTE = 60_000_000
TICK_NS = 5_000_000


def schedule(speed: float = 1.0, start: int = START) -> tuple[Schedule, ManualClock]:
    clock = ManualClock()
    return Schedule(start, start + MINUTE, speed, clock), clock


def local(us: int) -> str:
    return iso_us(START + us)


@pytest.mark.parametrize("speed", [0.001, 0.7, 1.0, 3.0, 10.0, 997.0, 1_000_000.0])
@pytest.mark.parametrize("us", [1, 4_999, 5_000, 5_001, 1_234_567, 59_999_999])
def test_due_at_the_first_tick_that_is_not_early(speed: float, us: int) -> None:
    kept, clock = schedule(speed)
    assert kept.due_in(local(0)) == 0
    began = clock.ns
    kept.wait(local(us))
    passed = clock.ns - began
    assert passed * speed >= us * 1000 * (1 - 1e-12)
    assert (passed - TICK_NS) * speed < us * 1000
    assert len(clock.waits) == 1


def test_the_clock_starts_with_the_first_time_it_is_asked_about() -> None:
    kept, clock = schedule()
    assert kept.due_in("") == 0
    clock.ns += 10**12
    assert kept.due_in(local(1_000_000)) == 1.0
    clock.ns += 400_000_000
    assert kept.due_in(local(1_000_000)) == pytest.approx(0.6)


def test_who_falls_behind_catches_up() -> None:
    kept, clock = schedule()
    kept.wait(local(1_000_000))
    clock.ns += 10**10
    assert kept.due_in(local(10_990_000)) == 0
    assert kept.due_in(local(11_500_000)) == 0.5


def test_time_stands_still_while_nobody_asks_for_more() -> None:
    kept, clock = schedule()
    kept.wait(local(1_000_000))
    reached = kept.reached
    clock.ns += 10**10
    assert kept.due_in(local(900_000)) == 0
    assert kept.reached == reached
    assert kept.due_in(local(5_000_000)) == 0
    assert kept.reached > reached


def test_times_that_should_not_be_there_hold_nobody_up_for_ever() -> None:
    kept, clock = schedule()
    kept.wait("2024-03-01T00:00:61.000000Z")
    assert clock.ns >= 60 * 10**9
    late, clock = schedule()
    late.wait("9999-12-31T23:59:59.999999Z")
    assert clock.ns == pytest.approx(60 * 10**9, rel=1e-6)


def test_the_first_minute_of_1970_is_a_time() -> None:
    kept, clock = schedule(start=0)
    kept.wait("1970-01-01T00:00:00.000000Z")
    kept.wait("1970-01-01T00:00:01.000000Z")
    assert clock.waits[-1] > 0.9


def test_stopping_wakes_who_waits() -> None:
    kept = Schedule(START, START + MINUTE, 0.001)
    came: list[bool] = []
    waiting = threading.Thread(target=lambda: came.append(kept.wait(local(MINUTE - 1))))
    waiting.start()
    kept.stop()
    waiting.join(60)
    assert came == [False]
    assert kept.due_in(local(MINUTE - 1)) == 0
