"""Pauses between attempts."""

from tardis_machine.backoff import Backoff


def test_pauses_do_not_grow_while_something_gets_through() -> None:
    backoff = Backoff(0.1, 10.0)
    pauses = []
    for _ in range(20):
        backoff.halve()
        pauses.append(backoff.next_pause_s())
    assert max(pauses) <= 0.2


def test_pauses_double_up_to_the_longest_and_begin_anew() -> None:
    backoff = Backoff(0.1, 1.0)
    for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert expected / 2 <= backoff.next_pause_s() <= expected
    assert backoff.failures == 6
    backoff.reset()
    assert backoff.next_pause_s() <= 0.1
    assert len({backoff.next_pause_s() for _ in range(20)}) > 1


def test_pauses_stay_finite_after_any_number_of_failures() -> None:
    backoff = Backoff(0.1, 30.0)
    backoff.failures = 100_000
    assert 15.0 <= backoff.next_pause_s() <= 30.0
