"""Gold kept up: only what changed is made anew, late rows correct it, one origin counts."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.history import History
from tardis_machine.lake import events as bronze
from tardis_machine.lake import silver
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.refresh import Wanted, refresh
from tardis_machine.lake.tables import SILVER, Commit, Tables
from tardis_machine.messages import decode_lines
from tardis_machine.replay import replay_normalized_many
from tests.lake.conftest import records
from tests.lake.days import DAY_US, MINUTE_US, START_US, write_day
from tests.lake.days import trade as recorded_trade
from tests.lake.events import trade
from tests.lake.test_backfill import replay, run

BARS = GOLD["bars"]
MINUTES = [Wanted(BARS, "trade_bar_1m")]
DAY_MS = 86_400_000


def live(*values: bytes) -> list[bytes]:
    """Make events live ones."""
    found = []
    for value in values:
        event = pb.NormalizedEvent.FromString(value)
        event.origin = pb.ORIGIN_REALTIME
        event.event_id = f"f{event.event_id[1:]}"
        found.append(event.SerializeToString())
    return found


def write(tables: Tables, number: int, *values: bytes) -> None:
    """Write trades to Silver."""
    events = bronze.events(bronze.inspected(records(tables.spark, values)))
    rows = silver.rows(events, "trade").drop(silver.DEFECT)
    tables.append_once(rows, SILVER["trade"], Commit("a", number))


def bars(tables: Tables) -> dict[tuple[str, int], Any]:
    """Give bars by symbol and minute, counted from the first day's beginning."""
    minute = f.floor((f.unix_micros("start_ts") - START_US) / MINUTE_US)
    rows = tables.read(BARS.table).select("*", minute.alias("minute")).orderBy("start_ts")
    return {(row.symbol, row.minute): row for row in rows.collect()}


def files(tables: Tables) -> set[str]:
    return set(tables.read(BARS.table).inputFiles())


def test_late_rows_correct_their_day_and_nothing_else(spark: SparkSession, tables: Tables) -> None:
    [nothing] = refresh(tables, MINUTES)
    assert (nothing.days, nothing.rows) == (0, 0)
    write(tables, 0, trade(0, price="10"), trade(DAY_MS), trade(1, symbol="ETHUSD"))
    [first] = refresh(tables, MINUTES)
    assert (first.days, first.rows) == (2, 3)
    before = files(tables)
    write(tables, 1, trade(60_000, price="11"), trade(1_000, price="9"))
    [second] = refresh(tables, MINUTES)
    # Of the other symbol nothing is made anew.
    assert (second.days, second.rows) == (1, 2)
    assert any("day=2024-03-02" in path for path in before & files(tables))
    closes = {key: row.close for key, row in bars(tables).items()}
    assert closes == {
        ("XBTUSD", 0): 9,
        ("XBTUSD", 1): 11,
        ("XBTUSD", 1440): 61130.5,
        ("ETHUSD", 0): 61130.5,
    }
    # A day that Silver no longer has stays, and so does all else where nothing changed.
    tables.delete(SILVER["trade"], "day = DATE'2024-03-01'")
    history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(BARS.table)}")
    versions = history.count()
    assert [each.days for each in refresh(tables, MINUTES)] == [0]
    assert history.count() == versions
    assert len(bars(tables)) == 4


def test_the_last_bar_is_closed_when_the_day_is_over(spark: SparkSession, tables: Tables) -> None:
    write(tables, 0, trade(0), trade(60_000))
    noon = START_US + DAY_US // 2
    [first] = refresh(tables, MINUTES, now_us=noon)
    assert (first.days, first.rows) == (1, 1)
    assert [each.days for each in refresh(tables, MINUTES, now_us=noon + 1)] == [0]
    [second] = refresh(tables, MINUTES, now_us=noon + DAY_US)
    assert (second.days, second.rows) == (1, 2)
    assert [each.days for each in refresh(tables, MINUTES, now_us=noon + DAY_US)] == [0]


def test_one_origin_counts_for_a_day(spark: SparkSession, tables: Tables) -> None:
    # Live first; then a replay of one minute, which has less; then one that has as much.
    write(tables, 0, *live(trade(0, price="1"), trade(60_000, price="2")))
    refresh(tables, MINUTES)
    write(tables, 1, trade(0, price="3"))
    refresh(tables, MINUTES)
    assert [row.close for row in bars(tables).values()] == [1, 2]
    assert {row.origin for row in bars(tables).values()} == {"realtime"}
    write(tables, 2, trade(60_001, price="4"))
    refresh(tables, MINUTES)
    assert [row.close for row in bars(tables).values()] == [3, 4]
    assert {row.origin for row in bars(tables).values()} == {"replay"}


def test_a_replaced_day_is_taken_up_and_its_last_bar_is_closed(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    def recorded(name: str, price: float) -> dict[str, str]:
        minutes = {0: recorded_trade(0, price), 1439: recorded_trade(DAY_US - 2_000_000, price)}
        return {"cacheDir": str(write_day(tmp_path / name, minutes))}

    whole = replay("trade", "book_change", minutes=(0, 1440))
    run(tables, whole, source=recorded("wrong", 5))
    refresh(tables, MINUTES)
    run(tables, whole, source=recorded("right", 7), force=True)
    [second] = refresh(tables, MINUTES)
    assert (second.days, second.rows) == (1, 2)
    asked = replay("trade_bar_1m", "book_change", minutes=(0, 1440))
    with (
        History(cache_dir=tmp_path / "right") as history,
        replay_normalized_many([asked], history=history, closes_bars=True) as replayed,
    ):
        expected = decode_lines(b"".join(batch.data for batch in replayed.batches()))
    rows = tables.read(BARS.table).select("close", f.unix_micros("local_ts")).collect()
    assert sorted(tuple(row) for row in rows) == sorted(
        (each.close, each.local_timestamp)  # type: ignore[union-attr]
        for each in expected
    )
    assert len(rows) == 2


def test_without_the_feed_everything_is_made_anew(spark: SparkSession, tables: Tables) -> None:
    write(tables, 0, trade(0, price="1"))
    refresh(tables, MINUTES)
    name = tables.name(SILVER["trade"])
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    write(tables, 1, trade(1, price="2"))
    [again] = refresh(tables, MINUTES)
    assert (again.days, again.rows) == (1, 1)
    assert [row.close for row in bars(tables).values()] == [2]
    # And from here on it is followed again.
    write(tables, 2, trade(DAY_MS, price="3"))
    [later] = refresh(tables, MINUTES)
    assert later.days == 1
