"""Gold kept up: only what changed is made anew, late rows correct it, one origin counts."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake.gold.refresh import refresh
from tardis_machine.lake.tables import SILVER, Tables
from tests.lake.days import DAY_US, MINUTE_US, START_US
from tests.lake.events import trade
from tests.lake.gold.minute_bars import BARS, DAY_MS, MINUTES, rows, write


def live(*values: bytes) -> list[bytes]:
    """Make events live ones."""
    found = []
    for value in values:
        event = pb.NormalizedEvent.FromString(value)
        event.origin = pb.ORIGIN_REALTIME
        event.event_id = f"f{event.event_id[1:]}"
        found.append(event.SerializeToString())
    return found


def bars(tables: Tables) -> dict[tuple[str, int], Any]:
    """Give bars by symbol and minute, counted from the first day's beginning."""
    minute = f.floor((f.unix_micros("start_ts") - START_US) / MINUTE_US)
    rows = tables.read(BARS.table).select("*", minute.alias("minute")).orderBy("start_ts")
    return {(row.symbol, row.minute): row for row in rows.collect()}


def files(tables: Tables) -> set[str]:
    return set(tables.read(BARS.table).inputFiles())


def test_late_rows_correct_their_day_and_nothing_else(spark: SparkSession, tables: Tables) -> None:
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
    # A day that is replaced, as --force does, is taken up.
    forced = rows(tables, trade(0, price="7", event_id="a" * 32))
    day = "day = DATE'2024-03-01'"
    tables.replace(lambda: forced, SILVER["trade"], f"{day} AND symbol = 'XBTUSD'")
    refresh(tables, MINUTES)
    closes = {key: row.close for key, row in bars(tables).items()}
    assert closes.pop(("XBTUSD", 0)) == 7
    assert closes.keys() == {("XBTUSD", 1440), ("ETHUSD", 0)}
    # A day that Silver no longer has stays, and so does all else where nothing changed.
    tables.delete(SILVER["trade"], day)
    history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(BARS.table)}")
    versions = history.count()
    assert [each.days for each in refresh(tables, MINUTES)] == [0]
    assert history.count() == versions
    assert len(bars(tables)) == 3


def test_the_last_bar_is_closed_when_the_day_is_over(spark: SparkSession, tables: Tables) -> None:
    assert [each.rows for each in refresh(tables, MINUTES)] == [0]  # there is nothing yet
    write(tables, 0, trade(0), trade(60_000))
    noon = START_US + DAY_US // 2
    [first] = refresh(tables, MINUTES, now_us=noon)
    assert (first.days, first.rows) == (1, 1)
    [second] = refresh(tables, MINUTES, now_us=noon + DAY_US)
    assert (second.days, second.rows) == (1, 2)
    last = tables.read(BARS.table).agg(f.max(f.unix_micros("local_ts"))).collect()
    assert last[0][0] == START_US + DAY_US - 1  # where a replay of the day ends its bars
    # Where the feed does not reach back, everything is made anew.
    name = tables.name(SILVER["trade"])
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    write(tables, 1, trade(60_001, price="2"))
    [again] = refresh(tables, MINUTES, now_us=noon + DAY_US)
    assert (again.days, again.rows) == (1, 2)
    assert bars(tables)["XBTUSD", 1].close == 2


def test_one_origin_counts_for_a_day(spark: SparkSession, tables: Tables) -> None:
    # A replay of one minute has less than what came live of two; then it has as much.
    write(tables, 0, *live(trade(0, price="1"), trade(60_000, price="2")), trade(0, price="3"))
    refresh(tables, MINUTES)
    assert [(row.close, row.origin) for row in bars(tables).values()] == [
        (1, "realtime"),
        (2, "realtime"),
    ]
    write(tables, 1, trade(60_001, price="4"))
    refresh(tables, MINUTES)
    assert [(row.close, row.origin) for row in bars(tables).values()] == [
        (3, "replay"),
        (4, "replay"),
    ]
