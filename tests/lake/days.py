"""Days of history made by hand, in a cache, as if they had been fetched."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tardis_machine.history.filters import Filter
from tests.support.feeds.generator import write

START = datetime(2024, 3, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
MINUTES = 1440


def write_day(
    directory: Path,
    minutes: Mapping[int, bytes],
    *,
    day: int = 0,
    channels: Sequence[str] = ("orderBookL2", "trade"),
) -> Path:
    """Write a day of bitmex of which these minutes have lines, for trades and book changes."""
    filters = [Filter(channel) for channel in channels]
    lines = (minutes.get(minute, b"") for minute in range(MINUTES))
    write(directory, "bitmex", START + timedelta(days=day), lines, filters=filters)
    return directory


def trade(
    us: int, price: float = 1, *, size: int = 1, trade_id: str = "m", symbol: str = "XBTUSD"
) -> bytes:
    """Write a recorded trade of so many microseconds after the day's beginning."""
    return trades(us, [(price, size, trade_id)], symbol)


def trades(us: int, rows: list[tuple[float, int, str | None]], symbol: str = "XBTUSD") -> bytes:
    """Write a recorded message of several trades."""
    time = stamp(us)[:23] + "Z"
    data = [
        {"timestamp": time, "symbol": symbol, "side": "Buy", "size": size, "price": price}
        | ({} if trade_id is None else {"trdMatchID": trade_id})
        for price, size, trade_id in rows
    ]
    return line(us, {"table": "trade", "action": "insert", "data": data})


def book(us: int, action: str, price: float, size: int) -> bytes:
    """Write a recorded book message of one level."""
    row = {
        "timestamp": stamp(us)[:23] + "Z",
        "symbol": "XBTUSD",
        "id": int(price * 10),
        "side": "Buy",
        "size": size,
        "price": price,
    }
    return line(us, {"table": "orderBookL2", "action": action, "data": [row]})


def line(us: int, message: object) -> bytes:
    """Write a recorded line."""
    return f"{stamp(us)}0Z ".encode() + msgspec.json.encode(message) + b"\n"


def stamp(us: int) -> str:
    moment = datetime.fromtimestamp((START_US + us) // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{us % 1_000_000:06}"
