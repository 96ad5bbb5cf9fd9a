from typing import Any

import msgspec
import pytest

from tardis_machine.engine import Side, create, parse_all

START = 1_709_251_200_000


def _bars(name: str, *trades: tuple[int, float, float, Side]) -> list[dict[str, Any]]:
    emitter = create("x", parse_all([name]))
    emitter.begin("2024-03-01T00:00:09.000000Z")
    for ms, price, amount, side in trades:
        emitter.trade("S", None, price, amount, side, START + ms)
    return [msgspec.json.decode(line) for line in emitter.take().data.splitlines()]


def test_a_time_bar_ends_with_the_first_trade_of_a_later_bucket() -> None:
    bars = _bars(
        "trade_bar_1s",
        (100, 10, 1, "buy"),
        (900, 12, 2, "sell"),
        (950, 9, 0.5, "unknown"),
        (2500, 11, 1, "buy"),
    )
    assert bars == [
        {
            "type": "trade_bar",
            "symbol": "S",
            "exchange": "x",
            "name": "trade_bar_1s",
            "interval": 1000,
            "kind": "time",
            "open": 10,
            "high": 12,
            "low": 9,
            "close": 9,
            "volume": 3.5,
            "buyVolume": 1,
            "sellVolume": 2,
            "trades": 3,
            "vwap": (10 + 24 + 4.5) / 3.5,
            "openTimestamp": "2024-03-01T00:00:00.100Z",
            "closeTimestamp": "2024-03-01T00:00:00.950Z",
            "localTimestamp": "2024-03-01T00:00:09.000000Z",
            "timestamp": "2024-03-01T00:00:01.000Z",
        }
    ]


def test_a_late_trade_moves_neither_close_nor_its_time() -> None:
    (bar,) = _bars(
        "trade_bar_3ticks", (500, 10, 1, "buy"), (700, 11, 1, "buy"), (600, 15, 2, "sell")
    )
    assert (bar["close"], bar["high"], bar["volume"]) == (11, 15, 4)
    assert bar["closeTimestamp"] == bar["timestamp"] == "2024-03-01T00:00:00.700Z"


def test_volume_bars_end_with_the_trade_that_fills_them() -> None:
    bars = _bars("trade_bar_0.5vol", (1, 1, 0.3, "buy"), (2, 2, 0.3, "buy"), (3, 3, 0.1, "buy"))
    assert [bar["volume"] for bar in bars] == [0.6]
    assert bars[0]["interval"] == 0.5


def test_fractional_intervals_bucket_by_their_milliseconds() -> None:
    bars = _bars("trade_bar_1.5s", (1400, 1, 1, "buy"), (1600, 2, 1, "buy"), (3100, 3, 1, "buy"))
    assert [bar["timestamp"][17:] for bar in bars] == ["01.500Z", "03.000Z"]


def test_no_volume_has_no_average() -> None:
    (bar,) = _bars("trade_bar_2ticks", (1, 1, 0, "buy"), (2, 2, 5, "buy"))
    assert bar["vwap"] is None
    assert bar["volume"] == 5


@pytest.mark.parametrize("name", ["trade_bar_10ticks", "trade_bar_1s", "trade_bar_100vol"])
def test_the_last_open_bar_is_not_flushed(name: str) -> None:
    assert _bars(name, (1, 1, 1, "buy"), (2, 1, 1, "buy")) == []
