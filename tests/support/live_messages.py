"""Messages as exchanges send them, for tests of live streams."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.support.servers.exchange import Answer

XBT = "XBTUSD"
BTC = "BTCUSDT"


def bitmex_trade(price: float, symbol: str = XBT, **more: object) -> dict[str, Any]:
    row = {"timestamp": "2024-03-01T00:00:00.500Z", "symbol": symbol, "side": "Buy", "size": 1}
    return {"table": "trade", "action": "insert", "data": [{**row, "price": price, **more}]}


def bitmex_book(action: str, *levels: tuple[int, float, int], symbol: str = XBT) -> dict[str, Any]:
    rows = [
        {"symbol": symbol, "id": i, "side": "Buy", "price": price, "size": size}
        for i, price, size in levels
    ]
    return {"table": "orderBookL2", "action": action, "data": rows, "filter": {"symbol": symbol}}


def depth(
    first: int, last: int, previous: int, *bids: Sequence[str], symbol: str = BTC
) -> dict[str, Any]:
    """A book update of binance-futures."""
    data = {
        "e": "depthUpdate",
        "E": 1709251200000,
        "T": 1709251200000,
        "s": symbol,
        "U": first,
        "u": last,
        "pu": previous,
        "b": bids or [["100", "1"]],
        "a": [],
    }
    return {"stream": f"{symbol.lower()}@depth@0ms", "data": data}


def mark_price(price: str, symbol: str = BTC) -> dict[str, Any]:
    data = {"e": "markPriceUpdate", "E": 1709251200000, "s": symbol, "p": price, "i": "1"}
    return {"stream": f"{symbol.lower()}@markPrice@1s", "data": data | {"r": "", "T": 0}}


def futures_trade(price: str, symbol: str = BTC, number: int = 1) -> dict[str, Any]:
    data = {"e": "trade", "E": 1709251200000, "T": 1709251200000, "s": symbol, "t": number}
    return {
        "stream": f"{symbol.lower()}@trade",
        "data": {**data, "p": price, "q": "1", "X": "MARKET", "m": True},
    }


def depth_snapshot(last_id: int, *bids: Sequence[str]) -> Answer:
    """A REST answer of binance-futures, with a book of these bids."""
    return lambda _: web.json_response({"lastUpdateId": last_id, "bids": bids, "asks": []})


DEPTH = "/fapi/v1/depth"
OPEN_INTEREST = "/fapi/v1/openInterest"
EXCHANGE_INFO = "/fapi/v1/exchangeInfo"
