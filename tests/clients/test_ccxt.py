"""CCXT, made for exchanges by people who know nothing of this server, replays history here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from tardis_machine import replay_normalized
from tardis_machine.messages import Trade
from tests.clients.ccxt_part import installed
from tests.clients.door import Door

FROM, TO = "2024-03-01T00:00", "2024-03-01T00:02"
MARKET = {
    "id": "BTCUSDT",
    "lowercaseId": "btcusdt",
    "symbol": "BTC/USDT:USDT",
    "base": "BTC",
    "quote": "USDT",
    "settle": "USDT",
    "type": "swap",
    "swap": True,
    "contract": True,
    "linear": True,
    "contractSize": 1,
}


def test_ccxt_watches_the_trades_of_the_past(door: Door) -> None:
    # CCXT appends a number to its URL: the last parameter takes it.
    asked = {"exchange": "binance-futures", "from": FROM, "to": TO, "ccxt": ""}
    url = f"ws://127.0.0.1:{door.port + 1}/ws-replay?{urlencode(asked)}"
    watch = Path(__file__).with_name("ccxt_watch.py")
    done = subprocess.run(
        # -P: what lies beside the script is not what it imports.
        [sys.executable, "-P", watch, "binanceusdm", url, json.dumps(MARKET)],
        env=os.environ | {"PYTHONPATH": str(installed())},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    watched = [line.split() for line in done.stdout.splitlines()]
    replayed = [
        trade
        for trade in replay_normalized(
            exchange="binance-futures",
            from_=FROM,
            to=TO,
            symbols=["BTCUSDT"],
            data_types=["trade"],
            sample=True,
        )
        if isinstance(trade, Trade)
    ]
    assert "closing code 1000" in done.stderr
    assert len(watched) == len(replayed) > 0
    for (number, price, amount, side), trade in zip(watched, replayed, strict=True):
        assert number == trade.id
        assert (float(price), float(amount), side) == (trade.price, trade.amount, trade.side)
