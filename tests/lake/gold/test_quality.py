"""Quality: what is said of a minute is what Silver and Bronze have."""

from pyspark.sql import functions as f

from tardis_machine.lake.batches import write_batch
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.refresh import Wanted, refresh
from tardis_machine.lake.tables import SILVER, Commit, Tables
from tests.lake.events import trade
from tests.lake.records import records

QUALITY = GOLD["quality"]
MINUTE_MS = 60_000


def test_every_row_of_silver_is_counted(sampled: Tables) -> None:
    quality = sampled.read(QUALITY.table)
    counted = {
        (row.exchange, row.data_type): row.total
        for row in quality.groupBy("exchange", "data_type")
        .agg(f.sum("rows").alias("total"))
        .collect()
    }
    for case, data_type in (("trade", "trade"), ("bookChange", "book_change")):
        for row in sampled.read(SILVER[case]).groupBy("exchange").count().collect():
            assert counted[row.exchange, data_type] == row["count"]
    [sums] = quality.agg(
        f.sum("duplicates_dropped").alias("dropped"),
        f.count_if(f.col("latency_p50_ms") > f.col("latency_p99_ms")).alias("unordered"),
        f.count_if(f.col("latency_p99_ms") > f.col("latency_max_ms")).alias("beyond"),
    ).collect()
    assert (sums.dropped, sums.unordered, sums.beyond) == (0, 0, 0)
    # The sample of deribit has a disconnect, which concerns all of its symbols.
    broken = quality.where("disconnects > 0").select("exchange").distinct().collect()
    assert [row.exchange for row in broken] == ["deribit"]


def test_what_is_wrong_with_a_minute_is_told(tables: Tables) -> None:
    spark = tables.spark
    minute = [
        trade(0),
        trade(20_000),
        trade(1_000, late_us=25_000_000),  # 26 s after the beginning, of its first second
        trade(MINUTE_MS),
    ]
    write_batch(tables, records(spark, minute), Commit("a", 0), may_repeat=False)
    refresh(tables, [Wanted(QUALITY)])
    # Sent again: Silver stays as it is, Bronze does not.
    again = records(spark, [trade(0), trade(20_000)], offset=10)
    write_batch(tables, again, Commit("a", 1), may_repeat=False)
    [outcome] = refresh(tables, [Wanted(QUALITY)])
    assert outcome.days == 1
    first, second = tables.read(QUALITY.table).orderBy("start_ts").collect()
    assert (first.rows, first.out_of_order, first.late) == (3, 1, 1)
    assert (first.largest_gap_s, first.latency_max_ms, first.latency_p50_ms) == (20, 25_000, 0)
    assert (first.duplicates_dropped, first.disconnects) == (2, 0)
    assert (second.rows, second.largest_gap_s, second.duplicates_dropped) == (1, 34, 0)
    assert (second.data_type, second.origin) == ("trade", "replay")
