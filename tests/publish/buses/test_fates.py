"""Every record of a batch has exactly one fate, whatever a bus does."""

from collections.abc import Callable, Sequence

import pytest

from tardis_machine.publish.buses.base import Limits
from tardis_machine.publish.buses.errors import (
    BusUnavailableError,
    FateError,
    RecordRejectedError,
)
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import Record
from tests.support.events import records
from tests.support.scripted_bus import ScriptedBus

AWAY = BusUnavailableError("b", "away")
NEVER = RecordRejectedError("b", "never")


def test_failures_come_in_order_and_the_rest_is_delivered():
    fates = Fates("b", 5)
    fates.fail([3], NEVER)
    fates.deliver([0, 2, 4], duplicates=2)
    fates.fail([1], AWAY)

    result = fates.result()

    assert (result.delivered, result.duplicates) == (3, 2)
    assert result.failures == [(1, AWAY), (3, NEVER)]
    assert fates.to_be_retried


def test_what_is_open_is_known():
    fates = Fates("b", 4)
    assert list(fates.open()) == [0, 1, 2, 3]
    fates.deliver([1])
    assert fates.open() == [0, 2, 3]
    assert not fates.is_open(1)
    assert not fates.to_be_retried


@pytest.mark.parametrize(
    "settle",
    [
        lambda fates: fates.deliver([1, 1]),
        lambda fates: fates.fail([0], AWAY),
        lambda fates: fates.deliver([3]),
        lambda fates: fates.deliver([-1]),
        lambda fates: fates.result(),
    ],
    ids=["twice", "twice, otherwise", "none such", "negative", "too few"],
)
def test_more_or_less_than_one_fate_is_refused(settle: Callable[[Fates], object]):
    fates = Fates("b", 3)
    fates.deliver([0])

    with pytest.raises(FateError):
        settle(fates)


class Careless(ScriptedBus):
    """Tells the fate of some records only."""

    def __init__(self, tell: Callable[[Fates], object]) -> None:
        super().__init__(lambda *_: {}, Limits(100, 1 << 20, 0.0))
        self._tell = tell

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        self._tell(fates)


def explode(fates: Fates) -> None:
    fates.deliver([0])
    raise ZeroDivisionError("a bug in a client")


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (lambda fates: fates.deliver([0]), "did not say what became"),
        (lambda fates: fates.deliver([0, 0]), "not exactly one fate"),
        (explode, "ZeroDivisionError: a bug in a client"),
    ],
    ids=["forgets", "repeats", "raises"],
)
def test_the_base_takes_nothing_less(tell: Callable[[Fates], object], reason: str):
    """What a bus does not account for is sent again: twice is allowed, lost is not."""
    bus = Careless(tell)

    result = bus.send(records(bus, 3), 1)

    assert result.delivered == 1
    assert [place for place, _ in result.failures] == [1, 2]
    assert all(error.retriable and reason in str(error) for _, error in result.failures)
