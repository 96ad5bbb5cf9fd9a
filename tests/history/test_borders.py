"""A replay's answer is that of an empty cache, also where wider slices are cached."""

import logging
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from random import Random

import pytest

from tardis_machine.history import History, sample
from tardis_machine.history.cache import MINUTE
from tests.history.slices import FILTERS, START, write
from tests.support.servers.tardis_api import Fault, TardisApi

MINUTES = 9
RANGES = [(start, end) for start in range(MINUTES) for end in range(start + 1, MINUTES + 1)]


def recording(seed: int) -> Callable[[str, int], bytes]:
    """Minutes of few lines, or none, with disconnects at random places, mostly at borders."""
    random = Random(seed)
    minutes: dict[int, bytes] = {}
    for minute in range(MINUTES):
        seconds = sorted(random.sample(range(60), random.choice([0, 1, 2, 3])))
        lines = [
            line
            for second in seconds
            for line in (
                *[b"\n"] * (random.random() < 0.3),
                b"2024-03-01T00:%02d:%02d.0000000Z {}\n" % (minute, second),
            )
        ]
        minutes[minute] = b"".join([*lines, *[b"\n"] * (random.random() < 0.3)])
    return lambda _, minute: minutes.get(minute - START, b"")


def answer(history: History, start: int, end: int) -> bytes:
    """Several disconnects in a row are one to a client."""
    with history.read("ftx", FILTERS, (START + start) * MINUTE, (START + end) * MINUTE) as reader:
        lines = b"".join(reader).splitlines()
    runs = ([*run] if line else [b""] for line, run in groupby(lines))
    return b"\n".join(line for run in runs for line in run)


@pytest.fixture
def histories(tardis_api: TardisApi, tmp_path: Path) -> Callable[[str], History]:
    def make(name: str) -> History:
        return History(
            endpoint=tardis_api.endpoint, cache_dir=tmp_path / name, sleep=lambda _: None
        )

    return make


@pytest.mark.parametrize("seed", range(25))
def test_every_range_is_answered_as_by_an_empty_cache(
    seed: int, histories: Callable[[str], History], tardis_api: TardisApi, tmp_path: Path
) -> None:
    random = Random(seed)
    lines = tardis_api.lines = recording(seed)
    tardis_api.suggested_minutes = random.choice([1, 4, 60])
    tardis_api.max_minutes = random.choice([1, 3, 60])
    for _ in range(random.randrange(1, 5)):
        start = random.randrange(MINUTES)
        size = 1 + random.randrange(MINUTES - start)
        write(tmp_path / "cached", start, size, lines=lines)
    write(tmp_path / "cached", 0, MINUTES, lines=lines)
    ranges = [*RANGES, *RANGES]
    random.shuffle(ranges)
    with histories("cached") as cached:
        for start, end in ranges:
            with histories(f"fresh-{start}-{end}") as fresh:
                assert answer(cached, start, end) == answer(fresh, start, end), (start, end)
        fetched = [(call.minute, call.minutes) for call in tardis_api.calls]
        for start, end in ranges:
            answer(cached, start, end)
        assert [(call.minute, call.minutes) for call in tardis_api.calls] == fetched
        assert cached.cache.pinned == 0


WIDE = (
    b"2024-03-01T00:00:30.0000000Z 0\n\n"
    b"2024-03-01T00:01:30.0000000Z 1\n\n"
    b"2024-03-01T00:02:30.0000000Z 2\n"
)
"""Three minutes with a disconnect at each border."""


@pytest.mark.parametrize("status", [None, 401, 403])
def test_border_that_cannot_be_fetched_is_served_from_the_wider_slice_and_logged(
    status: int | None,
    histories: Callable[[str], History],
    tardis_api: TardisApi,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(tmp_path / "cached", 0, 3, lines=lambda _, minute: WIDE if minute == START else b"")
    if status is None:
        tardis_api.close()
    else:
        tardis_api.fail(*[Fault(status=status, body="no")] * 9)
    with histories("cached") as history:
        assert answer(history, 1, 2) == b"\n2024-03-01T00:01:30.0000000Z 1\n"
    assert len(tardis_api.calls) == (status is not None)
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.message.startswith("disconnect at the border of a cached slice")
    assert record.__dict__["minute"] == "2024-03-01T00:01Z"


def test_only_the_border_minute_is_fetched_and_only_once(
    histories: Callable[[str], History], tardis_api: TardisApi, tmp_path: Path
) -> None:
    by_minute = {0: WIDE[:32], 1: WIDE[32:64], 2: WIDE[64:]}
    tardis_api.lines = lambda _, minute: by_minute.get(minute - START, b"")
    write(tmp_path / "cached", 0, 3, lines=tardis_api.lines)
    with histories("cached") as history:
        for _ in range(2):
            assert answer(history, 0, 3) == WIDE.removesuffix(b"\n")
            assert answer(history, 1, 3) == WIDE[32:].removesuffix(b"\n")
    assert [(call.minute - START, call.minutes) for call in tardis_api.calls] == [(1, 1)]


@pytest.mark.parametrize("size", [1440, 720])
def test_day_of_slices_that_end_with_it_is_served_without_a_fetch(
    size: int, histories: Callable[[str], History], tardis_api: TardisApi, tmp_path: Path
) -> None:
    """The lake takes history by such days."""

    def lines(_: str, minute: int) -> bytes:
        return b"\n" + b"2024-03-%02dT00:00:00.0000000Z {}\n" % (1 + (minute - START) // 1440)

    for start in range(0, 2880, size):
        write(tmp_path / "cached", start, size, lines=lines)
    with histories("cached") as history:
        days = [answer(history, start, start + 1440) for start in (0, 1440)]
        assert answer(history, 0, 2880) == b"\n".join(days)
    assert [day.count(b"{}") for day in days] == [1440, 1440]
    assert tardis_api.calls == []


def test_sample_data_has_the_same_answer_for_a_range_and_for_its_minutes() -> None:
    first = int(sample.START.timestamp()) // 60
    with sample.sample_history() as history:

        def read(exchange: str, start: int, end: int) -> bytes:
            times = ((first + each) * MINUTE for each in (start, end))
            return b"".join(history.read(exchange, [], *times))

        for exchange in sample.EXCHANGES:
            minutes = [read(exchange, each, each + 1) for each in range(sample.MINUTES)]
            for start in range(sample.MINUTES):
                for end in range(start + 1, sample.MINUTES + 1):
                    assert read(exchange, start, end) == b"".join(minutes[start:end])
