"""Replays of the library that wait for minutes that are yet to come."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tardis_machine import replay, replay_normalized
from tardis_machine.history import History, ReaderClosedError
from tardis_machine.replays import RawRequest, ReplayEndedError
from tardis_machine.replays.requests import OptionsError
from tests.support.bitmex import bitmex_trades
from tests.support.servers.tardis_api import TardisApi
from tests.support.waiting import until, wait_until

SPAN: dict[str, Any] = {"from_": "2024-03-01", "to": "2024-03-01T00:02"}
FIRST_DUE = 1_709_251_200_000_000 + 10 * 60_000_000 + 100_000
WAIT: dict[str, Any] = {"wait_when_data_not_yet_available": 10}


class Source:
    """A history whose clock is set."""

    def __init__(self, api: TardisApi, directory: Path) -> None:
        self.now = FIRST_DUE
        self.history = History(endpoint=api.endpoint, cache_dir=directory, clock=lambda: self.now)

    def waits(self) -> bool:
        return bool(self.history._lag_timer._waits)

    def trades(self) -> Any:
        return replay_normalized(
            "bitmex", data_types=["trade"], history=self.history, **SPAN, **WAIT
        )


@pytest.fixture
def source(tardis_api: TardisApi, tmp_path: Path) -> Iterator[Source]:
    tardis_api.lines = bitmex_trades
    source = Source(tardis_api, tmp_path)
    yield source
    source.history.close()


def test_for_waits_until_a_minute_is_due(source: Source) -> None:
    request: RawRequest = {
        "exchange": "bitmex",
        "from_": SPAN["from_"],
        "to": SPAN["to"],
        "wait_when_data_not_yet_available": 10,
    }
    with ThreadPoolExecutor(3) as threads:
        counts = [
            threads.submit(lambda asked=asked: len(list(asked)))  # type: ignore[misc]
            for asked in (
                source.trades(),
                replay("bitmex", history=source.history, **SPAN, **WAIT),
                replay([request] * 2, history=source.history),
            )
        ]
        wait_until(lambda: len(source.history._lag_timer._waits) >= 3)
        source.now += 60_000_000
        assert [each.result() for each in counts] == [2000, 2000, 4000]


def test_close_ends_the_wait_of_another_thread(source: Source) -> None:
    trades = source.trades()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(list, trades)
        wait_until(source.waits)
        trades.close()
        assert isinstance(reading.exception(), ReaderClosedError | ReplayEndedError)
    assert not source.waits()


async def test_async_for_waits_beside_others_and_close_ends_it(source: Source) -> None:
    trades = source.trades()

    async def count() -> int:
        return len([trade async for trade in trades])

    counting = asyncio.ensure_future(count())
    await until(source.waits)
    await trades.aclose()
    with pytest.raises((ReaderClosedError, ReplayEndedError)):
        await counting
    assert not source.waits()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "yes"])
def test_wait_that_is_none_is_refused_by_its_argument(value: Any) -> None:
    expected = "invalid wait_when_data_not_yet_available: .*, expected true, false, or minutes"
    with pytest.raises(OptionsError, match=expected):
        replay("bitmex", sample=True, wait_when_data_not_yet_available=value, **SPAN)
