"""What type checkers see of the library: `make types` reads this file, nothing runs it."""

from typing import Any, assert_type

from tardis_machine import (
    BookChange,
    BookSnapshot,
    Channel,
    Message,
    Trade,
    replay,
    replay_normalized,
    stream_normalized,
)
from tardis_machine.live.stream import NormalizedStream
from tardis_machine.replays import NormalizedReplay, RawMessage


def one_type_is_that_of_its_messages() -> None:
    trades = replay_normalized("bitmex", from_="", to="", data_types=["trade"], sample=True)
    assert_type(trades, NormalizedReplay[Trade])
    assert_type(next(trades), Trade)
    assert_type([trade.price for trade in trades], list[float])
    quotes = replay_normalized(exchange="bitmex", from_date="", to_date="", data_types="quote")
    assert_type(quotes, NormalizedReplay[BookSnapshot])


async def so_it_is_in_async_code() -> None:
    async with replay_normalized("bitmex", from_="", to="", data_types=["book_change"]) as changes:
        async for change in changes:
            assert_type(change, BookChange)


def several_types_are_any_of_them() -> None:
    several = replay_normalized("bitmex", from_="", to="", data_types=["trade", "quote"])
    assert_type(next(several), Message)
    told = replay_normalized(
        "bitmex", from_="", to="", data_types=["trade"], with_disconnect_messages=True
    )
    assert_type(next(told), Message)
    merged = replay_normalized(
        [{"exchange": "bitmex", "from_": "", "to": "", "data_types": ["trade"]}], sample=True
    )
    assert_type(next(merged), Message)


async def live_ones_are_typed_the_same() -> None:
    async with stream_normalized("bitmex", data_types=["trade"], symbols=["XBTUSD"]) as trades:
        async for trade in trades:
            assert_type(trade, Trade)
    told = stream_normalized("bitmex", data_types=["trade"], with_error_messages=True)
    assert_type(told, NormalizedStream[Message])
    merged = stream_normalized([{"exchange": "bitmex", "data_types": ["trade"]}])
    assert_type(merged, NormalizedStream[Message])


def raw_messages_may_be_disconnects() -> None:
    plain = replay("bitmex", "2024-03-01", "2024-03-02", [Channel("trade", ["XBTUSD"])])
    assert_type(next(plain), RawMessage)
    assert_type(next(plain).message, Any)
    told = replay("bitmex", from_date="", to_date="", with_disconnects=True)
    assert_type(next(told), RawMessage | None)
    merged = replay([{"exchange": "bitmex", "from_": "", "to": "", "filters": ["trade"]}])
    assert_type(next(merged), RawMessage)
