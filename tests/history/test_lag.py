"""Replays that wait for minutes that are yet to come, by a clock that the test sets."""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tardis_machine.history import Filter, History, HistoryReader, ReaderClosedError
from tardis_machine.history.cache import MINUTE
from tardis_machine.history.lag import LagWait
from tests.history.slices import START, expected, write
from tests.support.servers.tardis_api import Fault, TardisApi
from tests.support.waiting import wait_until

FILTERS = [Filter("trades", ("BTC/USD",))]
LAG = 30
SECOND = 1_000_000


class Waiting:
    """A history whose clock is set in minutes since the start."""

    def __init__(self, api: TardisApi, directory: Path) -> None:
        self.api = api
        self.now = 0
        self.history = History(
            endpoint=api.endpoint, cache_dir=directory, sleep=lambda _: None, clock=lambda: self.now
        )

    def set_due(self, minute: int, us: int = 0) -> None:
        """Let a minute be due, or be so long before or after that."""
        self.now = (START + minute + LAG) * MINUTE + SECOND // 10 + us

    def read(self, start: int, end: int) -> HistoryReader:
        first, last = (START + start) * MINUTE, (START + end) * MINUTE
        return self.history.read("ftx", FILTERS, first, last, lag_minutes=LAG)

    def asked(self) -> set[int]:
        return {call.minute - START for call in self.api.calls}

    def waits(self) -> int:
        return len(self.history._lag_timer._waits)


@pytest.fixture
def waiting(tardis_api: TardisApi, tmp_path: Path) -> Iterator[Waiting]:
    waiting = Waiting(tardis_api, tmp_path)
    yield waiting
    waiting.history.close()


def until_due(reader: HistoryReader) -> bytes:
    """Read until the reader waits for a minute that is yet to come."""
    blocks = []
    while not isinstance(waits := reader.pending(), LagWait):
        if waits is None:
            blocks.append(next(reader))
        else:
            waits.exception()
    return b"".join(blocks)


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_minutes_come_when_they_are_due(waiting: Waiting) -> None:
    waiting.set_due(2)
    reader = waiting.read(0, 5)
    assert until_due(reader) == expected(0, 3)
    for minute in (3, 4):
        waits = reader.pending()
        assert isinstance(waits, LagWait)
        assert waits.at == (START + minute + LAG) * MINUTE + SECOND // 10
        assert waiting.asked() == set(range(minute))
        waiting.set_due(minute)
        waits.result()
        if minute == 3:
            assert until_due(reader) == expected(3, 4)
    assert b"".join(reader) == expected(4, 5)
    wait_until(lambda: not threads_named("tardis-lag"))


def test_minutes_that_are_due_are_fetched_side_by_side(waiting: Waiting) -> None:
    held = threading.Event()
    waiting.set_due(9)
    reader = waiting.read(0, 20)
    for minute in range(1, 9):
        waiting.api.fail_at(START + minute, Fault(wait_for=held))
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(until_due, reader)
        wait_until(lambda: waiting.api.held == 8)
        held.set()
        assert read.result() == expected(0, 10)
    assert waiting.asked() == set(range(10))
    reader.close()


def test_minute_that_is_due_a_moment_later_is_not_fetched(waiting: Waiting) -> None:
    waiting.set_due(1, -1)
    with waiting.read(0, 2) as reader:
        assert until_due(reader) == expected(0, 1)
        assert waiting.asked() == {0}


def test_range_in_the_future_fetches_nothing(waiting: Waiting) -> None:
    waiting.set_due(-1000)
    with waiting.read(0, 1_000_000) as reader:
        assert until_due(reader) == b""
        assert waiting.asked() == set()


def test_cached_minute_is_not_waited_for(waiting: Waiting, tmp_path: Path) -> None:
    waiting.set_due(0)
    write(tmp_path, 1)
    assert b"".join(waiting.read(0, 2)) == expected(0, 2)
    assert waiting.asked() == {0}


def test_clock_that_is_set_back_is_waited_for_again(waiting: Waiting) -> None:
    waiting.set_due(0)
    with waiting.read(0, 2) as reader:
        assert until_due(reader) == expected(0, 1)
        waits = reader.pending()
        assert waits is not None
        waiting.set_due(1)
        waits.result()
        waiting.set_due(1, -SECOND)
        again = reader.pending()
        assert isinstance(again, LagWait)
        waiting.set_due(1)
        again.result()
        assert b"".join(reader) == expected(1, 2)


@pytest.mark.parametrize("closes", ["reader", "history"])
def test_closing_ends_the_wait_at_once(waiting: Waiting, closes: str) -> None:
    reader = waiting.read(0, 2)
    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(next, reader)
        wait_until(lambda: waiting.waits() == 1)
        (reader if closes == "reader" else waiting.history).close()
        assert isinstance(blocked.exception(), ReaderClosedError)
    assert waiting.waits() == 0
    wait_until(lambda: not threads_named("tardis-lag"))


def test_many_that_wait_share_a_thread_and_keep_no_worker(waiting: Waiting) -> None:
    readers = [waiting.read(0, 2) for _ in range(50)]
    for reader in readers:
        assert until_due(reader) == b""
    assert waiting.waits() == 50
    assert threads_named("tardis-lag") == 1
    wait_until(lambda: threads_named("tardis-fetch") == 0)
    write(waiting.history.cache.directory, 0)
    # What needs no minute of the future is served beside them.
    first, last = START * MINUTE, (START + 1) * MINUTE
    assert b"".join(waiting.history.read("ftx", FILTERS, first, last)) == expected(0, 1)
    for reader in readers:
        reader.close()
    assert waiting.waits() == 0


def test_asking_again_keeps_one_wait(waiting: Waiting) -> None:
    with waiting.read(0, 2) as reader:
        until_due(reader)
        assert len({id(reader.pending()) for _ in range(100)}) == 1
        assert waiting.waits() == 1


def test_reader_that_is_dropped_waits_no_longer(waiting: Waiting) -> None:
    reader = waiting.read(0, 2)
    until_due(reader)
    del reader
    gc.collect()
    assert waiting.waits() == 0
