"""Books rebuilt from Silver: the server's snapshots, and what is read off them."""

from typing import Any

import pytest
from pyspark.sql import Row

from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.tables import Tables
from tardis_machine.messages import BookSnapshot
from tests.lake.gold.conftest import EXCHANGES, MADE, served
from tests.lake.test_end_to_end import numbered

[NAME] = MADE["books"]


def levels(side: Any) -> tuple[tuple[float | None, float | None], ...]:
    return tuple((level.price, level.amount) for level in side)


def snapshots(tables: Tables, exchange: str) -> dict[tuple[str, int, int], Row]:
    books = tables.read(GOLD["books"].table).where(f"exchange = '{exchange}'")
    return {(row.symbol, row.local_ts, row.event_ts): row for row in numbered(books).collect()}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_snapshots_are_those_of_the_server(sampled: Tables, exchange: str) -> None:
    held = snapshots(sampled, exchange)
    expected = [each for each in served(exchange, NAME) if isinstance(each, BookSnapshot)]
    assert len(held) == len(expected) > 50
    for message in expected:
        row = held[message.symbol, message.local_timestamp, message.timestamp]
        assert levels(row.bids) == levels(message.bids)
        assert levels(row.asks) == levels(message.asks)
        assert (row.name, row.depth, row.interval_ms, row.grouping) == (NAME, 10, 1000, None)
        assert row.origin == "replay"


def test_the_top_is_that_of_the_snapshots(sampled: Tables) -> None:
    books = snapshots(sampled, "bitmex")
    tops = numbered(sampled.read(GOLD["top_of_book"].table).where("exchange = 'bitmex'")).collect()
    assert len(tops) == len(books)
    for top in tops:
        book = books[top.symbol, top.local_ts, top.event_ts]
        bid, ask = book.bids[0], book.asks[0]
        assert (top.bid_price, top.bid_amount) == (bid.price, bid.amount)
        assert (top.ask_price, top.ask_amount) == (ask.price, ask.amount)
        bids = sum(level.amount or 0 for level in book.bids)
        asks = sum(level.amount or 0 for level in book.asks)
        assert (top.bid_depth, top.ask_depth) == (pytest.approx(bids), pytest.approx(asks))
        assert top.imbalance == pytest.approx((bids - asks) / (bids + asks))
        assert top.spread == ask.price - bid.price > 0
        assert top.mid_price == (ask.price + bid.price) / 2
        assert top.spread_bps == pytest.approx(top.spread / top.mid_price * 10_000)
