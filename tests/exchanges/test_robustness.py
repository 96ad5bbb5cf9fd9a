"""Whatever a feed sends, a mapper gives valid messages or an error of the message."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tardis_machine import exchanges, messages
from tests.exchanges.feed import LOCAL, Feed

MS = 1_709_251_200_500
TIME = "2024-03-01T00:00:00.500Z"


def _note(channel: str, data: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "subscription",
        "params": {"channel": channel, "data": data},
    }


_TICKER = {
    "instrument_name": "BTC-9MAR24-60000-C",
    "timestamp": MS,
    "mark_price": 0.05,
    "last_price": None,
    "best_bid_price": 0.04,
    "best_bid_amount": 3,
    "open_interest": 7,
    "index_price": 62000.5,
    "underlying_index": "SYN.BTC-9MAR24",
}

MESSAGES: dict[str, list[dict[str, Any]]] = {
    "bitmex": [
        {
            "table": "trade",
            "action": "insert",
            "data": [
                {"timestamp": TIME, "symbol": "A", "side": "Buy", "size": 3, "price": 62000.5}
            ],
        },
        {
            "table": "orderBookL2",
            "action": "partial",
            "filter": {"symbol": "A"},
            "data": [
                {"symbol": "A", "id": 1, "side": "Buy", "size": 5, "price": 1.5, "timestamp": TIME}
            ],
        },
        {
            "table": "orderBookL2",
            "action": "update",
            "data": [{"symbol": "A", "id": 1, "side": "Buy", "size": 4}],
        },
        {"table": "orderBookL2", "action": "delete", "data": [{"symbol": "A", "id": 1}]},
        {
            "table": "instrument",
            "action": "partial",
            "data": [
                {
                    "symbol": "A",
                    "state": "Open",
                    "lastPrice": 1,
                    "fundingTimestamp": TIME,
                    "timestamp": TIME,
                }
            ],
        },
        {
            "table": "liquidation",
            "action": "insert",
            "data": [{"orderID": "a", "symbol": "A", "side": "Buy", "price": 2, "leavesQty": 9}],
        },
        {
            "table": "quote",
            "action": "insert",
            "data": [{"timestamp": TIME, "symbol": "A", "bidSize": 0, "bidPrice": 1}],
        },
    ],
    "deribit": [
        _note(
            "trades.BTC-PERPETUAL.raw",
            [
                {
                    "trade_id": "1",
                    "timestamp": MS,
                    "price": 2.5,
                    "instrument_name": "BTC-PERPETUAL",
                    "direction": "buy",
                    "amount": 10,
                    "liquidation": "MT",
                }
            ],
        ),
        _note(
            "book.BTC-PERPETUAL.raw",
            {
                "timestamp": MS,
                "instrument_name": "BTC-PERPETUAL",
                "prev_change_id": 7,
                "bids": [["new", 1.5, 2]],
                "asks": [["delete", 2.5, 0]],
            },
        ),
        _note("ticker.BTC-9MAR24-60000-C.raw", _TICKER | {"greeks": {"delta": 0.5, "rho": 0}}),
        _note("ticker.BTC-PERPETUAL.raw", _TICKER | {"instrument_name": "BTC-PERPETUAL"}),
    ],
    "binance-futures": [
        {
            "stream": "btcusdt@trade",
            "data": {"T": MS, "s": "BTCUSDT", "t": 7, "p": "62000.50", "q": "0.1", "m": True},
        },
        {
            "stream": "btcusdt@depth@0ms",
            "data": {
                "E": MS,
                "s": "BTCUSDT",
                "U": 100,
                "u": 101,
                "pu": 99,
                "b": [["1.0", "2"]],
                "a": [["3", "0"]],
            },
        },
        {
            "stream": "btcusdt@depthSnapshot",
            "generated": True,
            "data": {"lastUpdateId": 100, "bids": [["1.0", "1"]], "asks": [["3", "4"]]},
        },
        {
            "stream": "btcusdt@markPrice@1s",
            "data": {
                "e": "markPriceUpdate",
                "E": MS,
                "s": "BTCUSDT",
                "p": "1.5",
                "i": "1.4",
                "r": "0.0001",
                "T": MS,
            },
        },
        {
            "stream": "btcusdt@openInterest",
            "data": {"symbol": "BTCUSDT", "openInterest": "500.1"},
        },
        {
            "stream": "btcusdt@forceOrder",
            "data": {
                "o": {"s": "BTCUSDT", "S": "SELL", "p": "6", "X": "FILLED", "z": "4", "T": MS}
            },
        },
        {
            "stream": "btcusdt@bookTicker",
            "data": {"s": "BTCUSDT", "b": "1.50", "B": "3", "a": "2", "A": "4", "E": MS},
        },
    ],
}

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "0", "-1.50", "1e400", "nan", "Infinity", "1_0", "Buy", TIME, "\ud7ff\0"]
    )
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Name every place in a message."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [p for key, each in inner for p in ((*path, key), *_places(each, (*path, key)))]


@st.composite
def _spoiled(draw: st.DrawFn, exchange: str) -> bytes:
    """Draw a message of which a field is missing or replaced, bytes are changed, or none of it."""
    message = copy.deepcopy(draw(st.sampled_from(MESSAGES[exchange])))
    for _ in range(draw(st.integers(0, 2))):
        places = _places(message)
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        parent: Any = message
        for key in way:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(_JSON)
        else:
            del parent[last]
    line = msgspec.json.encode(message)
    if draw(st.integers(0, 9)) == 0:
        start = draw(st.integers(0, len(line)))
        line = line[:start] + draw(st.binary(max_size=3)) + line[start + draw(st.integers(0, 9)) :]
    return line


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("exchange", exchanges.names())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_spoiled_messages_give_valid_messages_or_errors_of_the_message(
    exchange: str, live: bool, data: st.DataObject
) -> None:
    feed = Feed(exchange, exchanges.get(exchange).data_types(), live=live)
    for line in data.draw(st.lists(_spoiled(exchange), min_size=1, max_size=8)):
        feed.emitter.begin(LOCAL)
        try:
            assert feed.handle(line) in (True, False)
        except ValueError as e:
            assert str(e)  # noqa: PT017
        messages.decode_lines(feed.emitter.take().data)


@pytest.mark.parametrize("exchange", exchanges.names())
@settings(max_examples=100, deadline=None)
@given(line=st.binary(max_size=60))
def test_bytes_of_no_meaning_are_errors_of_the_message(exchange: str, line: bytes) -> None:
    feed = Feed(exchange, exchanges.get(exchange).data_types())
    try:
        assert not feed.handle(line)
    except ValueError as e:
        assert str(e)  # noqa: PT017
    assert feed.emitter.take().count == 0


@pytest.mark.parametrize("exchange", exchanges.names())
def test_the_messages_that_are_spoiled_are_whole_otherwise(exchange: str) -> None:
    feed = Feed(exchange, exchanges.get(exchange).data_types())
    feed.emitter.begin(LOCAL)
    assert all(feed.handle(msgspec.json.encode(message)) for message in MESSAGES[exchange])
    kinds = {type(m).__name__ for m in messages.decode_lines(feed.emitter.take().data)}
    assert len(kinds) == len(exchanges.get(exchange).data_types())
