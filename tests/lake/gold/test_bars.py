"""Bars: the server's, from Silver's trades."""

from typing import Any

import pytest
from pyspark.sql import functions as f

from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.tables import SILVER, Tables
from tardis_machine.messages import TradeBar
from tests.lake.gold.sampled import EXCHANGES, MADE, served
from tests.lake.rows import numbered

FIELDS = {
    "symbol": "symbol",
    "kind": "kind",
    "interval": "interval",
    "open": "open",
    "high": "high",
    "low": "low",
    "close": "close",
    "volume": "volume",
    "buy_volume": "buy_volume",
    "sell_volume": "sell_volume",
    "trades": "trade_count",
    "vwap": "vwap",
    "open_timestamp": "open_ts",
    "close_timestamp": "close_ts",
    "local_timestamp": "local_ts",
    "timestamp": "event_ts",
}


@pytest.mark.whole_path
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("data_type", MADE["bars"])
def test_bars_are_those_of_the_server(sampled: Tables, exchange: str, data_type: str) -> None:
    bars = sampled.read(GOLD["bars"].table).where(f"name = '{data_type}'")
    own = numbered(bars.where(bars.exchange == exchange)).collect()
    held = {tuple(row[column] for column in FIELDS.values()) for row in own}
    expected = {
        tuple(getattr(message, name) for name in FIELDS)
        for message in served(exchange, data_type)
        if isinstance(message, TradeBar)
    }
    assert expected
    assert expected <= held
    # The server leaves the last time bar open; in the lake the day is over.
    last = held - expected
    if "ticks" in data_type:
        assert not last
    else:
        symbols = [bar[0] for bar in last]
        assert len(symbols) == len(set(symbols)) > 0


def test_bars_have_every_trade_that_no_disconnect_cut_off(sampled: Tables) -> None:
    trades = sampled.read(SILVER["trade"]).where("exchange = 'bitmex'")
    bars = sampled.read(GOLD["bars"].table).where("exchange = 'bitmex' AND name = 'trade_bar_1m'")
    [(count, volume)] = trades.agg(f.count("*"), f.sum("amount").cast("double")).collect()
    [(counted, summed)] = bars.agg(f.sum("trade_count"), f.sum("volume")).collect()
    assert (counted, summed) == (count, pytest.approx(volume))
    width: Any = f.unix_micros("event_ts") - f.unix_micros("start_ts")
    assert [row[0] for row in bars.select(width).distinct().collect()] == [60_000_000]
    assert [row[0] for row in bars.select("origin").distinct().collect()] == ["replay"]
