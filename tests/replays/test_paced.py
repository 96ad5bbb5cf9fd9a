"""Paced replays: the same bytes, none before its time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.history import Filter, History, ReaderClosedError
from tardis_machine.history import sample as sample_data
from tardis_machine.history.recorded_lines import MESSAGE
from tardis_machine.messages.times import us_of
from tardis_machine.replays import (
    MergedRawReplay,
    NativeReplay,
    NormalizedReplay,
    RawReplay,
    RawRequest,
    replay,
    replay_normalized,
)
from tardis_machine.replays.requests import OptionsError, ReplayNormalizedOptions, ReplayOptions
from tests.replays.span import END, START, START_US
from tests.support.bitmex import trade
from tests.support.clock import ManualClock
from tests.support.feeds.generator import write

MINUTE = 60_000_000
MINUTE_LATER = "2024-03-01T00:01"


@pytest.fixture(scope="module")
def sample() -> Iterator[History]:
    with sample_data.sample_history() as history:
        yield history


def _normalized(speed: float | None) -> list[ReplayNormalizedOptions]:
    return [
        ReplayNormalizedOptions(
            exchange=exchange,
            from_=START_US + late * MINUTE,
            to=START_US + 3 * MINUTE,
            data_types=("trade", "book_change", "trade_bar_10s"),
            speed=speed,
        )
        for late, exchange in enumerate(("deribit", "bitmex"))
    ]


def _raw(speed: float | None, channel: str = "trade") -> ReplayOptions:
    return ReplayOptions(
        exchange="bitmex",
        from_=START_US,
        to=START_US + MINUTE,
        filters=(Filter(channel),),
        with_disconnects=True,
        speed=speed,
    )


def _check(line: bytes, clock: ManualClock, speed: float) -> None:
    """Compare a message's local time, to microseconds, with how much time has passed."""
    local = line.partition(b'"localTimestamp":"')[2][:26].decode() + "Z"
    due_ns = (us_of(local) - START_US) * 1000 / speed
    assert due_ns <= clock.ns - 1_000 < due_ns + 5_001_000


@pytest.mark.parametrize("speed", [1.0, 1000.0])
def test_streams_of_a_merge_have_one_clock(sample: History, speed: float) -> None:
    clock = ManualClock()
    paced, found = NormalizedReplay(_normalized(speed), history=sample, clock=clock), []
    for batch in paced.batches():
        found.append(batch.data)
        for line in batch.data.splitlines():
            _check(line, clock, speed)
    at_once = NormalizedReplay(_normalized(None), history=sample).batches()
    assert b"".join(found) == b"".join(batch.data for batch in at_once)
    # Time moves in steps: there are far more messages than those.
    assert len(clock.waits) <= 3 * 60 * 1000 / speed / 5 + 1


def test_raw_lines_with_disconnects_and_lines_that_have_no_time(tmp_path: Path) -> None:
    lines = b"".join(
        [
            *(b"\n", trade(1_000), trade(1_200), trade(3_000_000), b"\n", b"no time\n"),
            *(trade(2_000_000), b"\n", trade(50_000_000)),
        ]
    )
    write(tmp_path, "bitmex", START, iter([lines]), filters=[Filter("trade")])
    clock = ManualClock()
    with History(cache_dir=tmp_path) as history:
        paced, found = RawReplay(_raw(1.0), history=history, clock=clock), []
        for data in paced.batches():
            found += data.splitlines(keepends=True)
            last = [line for line in data.splitlines() if line]
            if last and b"00:00:02" not in last[-1]:  # that one is late as it was recorded
                _check(last[-1], clock, 1.0)
        at_once = b"".join(RawReplay(_raw(None), history=history).batches())
    assert b"".join(found) == at_once
    assert found.count(b"\n") == 3
    assert paced.malformed == 1
    assert 50 * 10**9 < clock.ns < 51 * 10**9
    assert len(clock.waits) == 3


def test_native_replays_alone_and_in_a_session(sample: History) -> None:
    began = time.monotonic()
    alone = b"".join(NativeReplay(_raw(6000), history=sample).blocks())
    merged = MergedRawReplay([_raw(6000), _raw(6000, "quote")], history=sample).steps()
    parts = [part for step in merged for part in step.by_stream()]
    assert time.monotonic() - began > 2 * 0.009
    assert alone == b"".join(NativeReplay(_raw(None), history=sample).blocks())
    messages = b"".join(line[MESSAGE:] for line in alone.splitlines(keepends=True))
    assert b"".join(data for number, data in parts if number == 0) == messages


def test_raw_replays_merged_for_programs(sample: History) -> None:
    def asked(**speed: float) -> list[RawRequest]:
        return [
            {"exchange": each, "from_": START, "to": MINUTE_LATER, "filters": [channel], **speed}
            for each, channel in (("bitmex", "trade"), ("deribit", "trades"))
        ]

    began = time.monotonic()
    paced = list(replay(asked(speed=6000), history=sample).batches())
    assert time.monotonic() - began > 0.009
    assert b"".join(paced) == b"".join(replay(asked(), history=sample).batches())


async def test_for_and_async_for_wait(sample: History) -> None:
    """With real time, which only ever tells that something was not early."""
    speed = 600.0

    def asked() -> NormalizedReplay:
        return replay_normalized(
            exchange="bitmex",
            from_=START,
            to=MINUTE_LATER,
            data_types=["trade"],
            speed=speed,
            history=sample,
        )

    def is_early(local: int) -> bool:
        return time.monotonic() - began < (local - START_US) / 1e6 / speed

    began = time.monotonic()
    by_for = []
    for message in asked():
        assert not is_early(message.local_timestamp)
        by_for.append(message)
    began = time.monotonic()
    by_async_for = []
    async for message in asked():
        assert not is_early(message.local_timestamp)
        by_async_for.append(message)
    assert by_for == by_async_for
    assert by_for


@pytest.mark.parametrize("raw", [True, False])
def test_one_that_is_closed_neither_waits_nor_gives_what_is_not_due(
    sample: History, raw: bool
) -> None:
    asked: Any = {"exchange": "bitmex", "from_": START, "to": END, "speed": 0.001}
    replayed = (
        replay(**asked, history=sample)
        if raw
        else replay_normalized(**asked, data_types=["trade"], history=sample)
    )
    batches = replayed.batches()
    while replayed.due_in() < 1:
        next(batches)
    replayed.close()
    assert replayed.due_in() == 0
    with pytest.raises(ReaderClosedError):
        next(batches)


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf"), True, "10", 2e6])
def test_a_speed_that_is_none(sample: History, speed: float) -> None:
    for ask in (
        lambda: replay(exchange="bitmex", from_=START, to=END, speed=speed, history=sample),
        lambda: replay_normalized(
            exchange="bitmex",
            from_=START,
            to=END,
            data_types=["trade"],
            speed=speed,
            history=sample,
        ),
    ):
        with pytest.raises(OptionsError, match=r"^invalid speed: "):
            ask()


def test_different_speeds_cannot_be_merged(sample: History) -> None:
    options = [_normalized(1.0)[0], _normalized(None)[1]]
    with pytest.raises(OptionsError, match=r"^invalid speed: 1 and none, expected the same"):
        NormalizedReplay(options, history=sample)
    with pytest.raises(OptionsError, match=r"^invalid speed: 1 and 2, expected the same"):
        MergedRawReplay([_raw(1), _raw(2)], history=sample)
