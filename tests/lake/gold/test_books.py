"""Books rebuilt from Silver: the server's snapshots, and what is read off them."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tardis_machine.lake import backfill, manifest
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.refresh import Wanted, refresh
from tardis_machine.lake.tables import BREAKS, Tables
from tardis_machine.lake.units import plan
from tardis_machine.messages import BookSnapshot
from tests.lake.gold.sampled import EXCHANGES, MADE, sample_replay, served
from tests.lake.rows import numbered

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


def test_a_disconnect_is_where_it_was_whatever_was_backfilled_before(
    sampled: Tables, spark: SparkSession, tmp_path: Path
) -> None:
    """Each replay knows it by its own last message: that of options came long before a trade's."""
    tables = Tables(spark, str(tmp_path))
    for data_type in ("option_summary", "trade", "book_change"):
        units = plan([sample_replay("deribit", data_type)], manifest.finished(tables))
        assert not backfill.run(tables, units, {"sampleData": "true"}, attempts=1).failed
    assert len({row.local_ts for row in tables.read(BREAKS).collect()}) > 1
    made = {"books": NAME, "bars": "trade_bar_1m"}
    refresh(tables, [Wanted(GOLD[name], variant) for name, variant in made.items()])
    for name, variant in made.items():
        table = GOLD[name].table
        both = [
            each.read(table).where(f"exchange = 'deribit' AND name = '{variant}'")
            for each in (tables, sampled)
        ]
        assert both[0].count() > 0
        assert both[0].exceptAll(both[1]).count() == both[1].exceptAll(both[0]).count() == 0


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
