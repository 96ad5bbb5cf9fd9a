"""Lines as recorded from BitMEX."""

import json
from datetime import UTC, datetime

import msgspec


def bitmex_trades(exchange: str, minute: int) -> bytes:
    """Return a minute of lines with 1,000 trades, which the server answers with several writes."""
    assert exchange == "bitmex"
    lines = []
    for number in range(1000):
        moment = datetime.fromtimestamp(minute * 60 + number * 0.06, UTC)
        stamp = moment.isoformat(timespec="microseconds").removesuffix("+00:00")
        trade = {
            "timestamp": f"{stamp[:23]}Z",
            "symbol": "XBTUSD",
            "side": "Buy",
            "size": 100 + number,
            "price": 61_000.5,
            "trdMatchID": f"{minute}-{number}",
        }
        inserted = {"table": "trade", "action": "insert", "data": [trade]}
        message = json.dumps(inserted, separators=(",", ":"))
        lines.append(f"{stamp}0Z {message}\n")
    return "".join(lines).encode()


def stamp(us: int) -> str:
    """Return the local time so many microseconds after 2024-03-01T00:00Z."""
    return f"2024-03-01T00:00:{us // 1_000_000:02}.{us % 1_000_000:06}"


def trade(us: int, price: float = 1, digit: int = 5) -> bytes:
    """Return a line with a trade; `digit` is the seventh of its local time's fraction."""
    row = {
        "timestamp": "2024-03-01T00:00:00.000Z",
        "symbol": "XBTUSD",
        "side": "Buy",
        "size": 1,
        "price": price,
        "trdMatchID": "m",
    }
    message = msgspec.json.encode({"table": "trade", "action": "insert", "data": [row]})
    return f"{stamp(us)}{digit}Z ".encode() + message + b"\n"


def book(us: int, action: str, price: float, size: int) -> bytes:
    """Return a line that changes one level of the book."""
    row = {
        "timestamp": "2024-03-01T00:00:00.000Z",
        "symbol": "XBTUSD",
        "id": int(price * 10),
        "side": "Buy",
        "size": size,
        "price": price,
    }
    message = msgspec.json.encode({"table": "orderBookL2", "action": action, "data": [row]})
    return f"{stamp(us)}0Z ".encode() + message + b"\n"
