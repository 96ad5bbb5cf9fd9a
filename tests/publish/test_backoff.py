"""Pauses between attempts."""

import pytest

from tardis_machine.backoff import Backoff


def intervals(backoff: Backoff, failures: int, samples: int = 400) -> list[tuple[float, float]]:
    """Give the shortest and longest pause seen after so many failures in a row, for each."""
    seen: list[list[float]] = [[] for _ in range(failures)]
    for _ in range(samples):
        backoff.reset()
        for pauses in seen:
            pauses.append(backoff.next_pause_s())
    return [(min(pauses), max(pauses)) for pauses in seen]


def test_each_pause_is_twice_as_long_up_to_the_longest() -> None:
    found = intervals(Backoff(0.1, 1.0), 6)
    for (shortest, longest), interval in zip(found, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert interval / 2 <= shortest
        assert longest <= interval


def test_crowds_part() -> None:
    [(shortest, longest)] = intervals(Backoff(1.0, 30.0), 1)
    assert longest - shortest > 0.4


def test_failures_are_counted_until_a_success() -> None:
    backoff = Backoff(0.1, 1.0)
    for _ in range(3):
        backoff.next_pause_s()
    assert backoff.failures == 3
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_pause_s() <= 0.1


@pytest.mark.parametrize("failures", [60, 2_000])
def test_a_year_of_failures_does_not_overflow(failures: int) -> None:
    backoff = Backoff(0.1, 30.0)
    for _ in range(failures):
        backoff.next_pause_s()
    assert 15.0 <= backoff.next_pause_s() <= 30.0
