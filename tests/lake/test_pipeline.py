"""Batches of records into the tables, and again."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from threading import Barrier

from pyspark.sql import SparkSession

from tardis_machine.lake import bronze, silver
from tardis_machine.lake.pipeline import Commit, build_silver, land, summarized
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Span, Tables
from tests.lake.conftest import records
from tests.lake.events import book_change, trade


def test_a_batch_lands_once_however_often_it_comes(spark: SparkSession, tables: Tables) -> None:
    values = [
        *(trade(number, trade_id=f"t{number}") for number in range(10)),
        trade(3, trade_id="t3"),  # published again
        trade(4, trade_id="t4", late_us=70_000),  # the same trade from another server
        trade(10),  # without an id
        b"garbage",
        trade(11, price="1e-19"),
        book_change(20, [("61130.5", "3"), ("61130", "0")], snapshot=True),
    ]
    batch = records(spark, values)
    first = land(tables, batch, Commit("stream/a", 0))
    assert (first.events, first.rejected) == (15, 2)
    assert first.inserted == {"trade": 11, "bookChange": 1}

    # The same batch again, as after a crash: nothing changes.
    again = land(tables, batch, Commit("stream/a", 0))
    assert again.inserted == {"trade": 0, "bookChange": 0}
    assert tables.read(EVENTS).count() == 15
    # Another checkpoint on the same tables: Bronze has what it read, the rest has it once.
    land(tables, batch, Commit("stream/b", 0))
    assert tables.read(EVENTS).count() == 30
    assert tables.read(SILVER["trade"]).count() == 11
    held = {row.id: row for row in tables.read(QUARANTINE).collect()}
    assert {row.stage for row in held.values()} == {"bronze", "silver"}
    assert bytes(held["test:events:0:13"].value) == b"garbage"

    [change] = tables.read(SILVER["bookChange"]).collect()
    assert [(level.price, level.amount) for level in change.bids] == [
        (Decimal("61130.5"), Decimal(3)),
        (Decimal(61130), Decimal(0)),
    ]
    levels = silver.book_levels(tables.read(SILVER["bookChange"])).collect()
    assert [(row.side, row.level, row.price) for row in levels] == [
        ("bid", 0, Decimal("61130.5")),
        ("bid", 1, Decimal(61130)),
    ]


def test_silver_can_be_made_from_bronze_later(spark: SparkSession, tables: Tables) -> None:
    values = [trade(number) for number in range(5)] + [trade(9, amount="0." + "1" * 19)]
    landed = land(tables, records(spark, values), Commit("stream/a", 0), bronze_only=True)
    assert landed.inserted == {}
    assert not tables.exists(SILVER["trade"])
    assert build_silver(tables, tables.read(EVENTS)).inserted == {"trade": 5}
    assert build_silver(tables, tables.read(EVENTS)).inserted == {"trade": 0}
    assert [row.stage for row in tables.read(QUARANTINE).collect()] == ["silver"]


def test_two_writers_at_once_insert_each_event_once(spark: SparkSession, tables: Tables) -> None:
    batches = [records(spark, [trade(n) for n in range(start, start + 40)]) for start in (0, 20)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(land, Tables(spark, tables.root), batch, Commit(f"writer/{number}", 0))
            for number, batch in enumerate(batches)
        ]
        inserted = sum(job.result().inserted["trade"] for job in jobs)
    assert inserted == 60
    assert tables.read(SILVER["trade"]).count() == 60
    assert tables.read(EVENTS).count() == 80


def test_writers_that_make_the_same_tables_at_once_all_go_on(
    spark: SparkSession, tables: Tables
) -> None:
    writers = 5
    together = Barrier(writers)

    def make(_: int) -> None:
        # Each knows nothing of the others, as processes do.
        own = Tables(spark, tables.root)
        for table in SILVER.values():
            together.wait(timeout=60)
            own.create(table)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(make, range(writers)))
    assert all(tables.exists(table) for table in SILVER.values())


def test_tables_of_an_older_version_gain_columns(spark: SparkSession, tables: Tables) -> None:
    older = EVENTS._replace(schema=EVENTS.schema.replace("`producer_id` STRING, ", ""))
    assert older != EVENTS
    tables.create(older)
    trades = SILVER["trade"]
    tables.create(trades._replace(schema=trades.schema.replace("producer_id STRING, ", "")))
    land(tables, records(spark, [trade(1)]), Commit("stream/a", 0))
    # And those of a newer version keep columns that this one does not know.
    for table in (EVENTS, trades):
        spark.sql(f"ALTER TABLE {tables.name(table)} ADD COLUMN (from_the_future STRING)")
    land(tables, records(spark, [trade(2)]), Commit("stream/a", 1))
    for table in (EVENTS, trades):
        rows = tables.read(table)
        assert {"producer_id", "from_the_future"} <= set(rows.columns)
        assert rows.count() == 2


def test_a_merge_reads_only_files_of_its_exchange_day_and_time(
    spark: SparkSession, tables: Tables
) -> None:
    hour = 3_600_000
    for number in (0, 2 * hour, 30 * hour):
        land(tables, records(spark, [trade(number)]), Commit("stream/a", number))
    land(tables, records(spark, [trade(0, exchange="deribit")]), Commit("stream/a", 1))
    batch = bronze.inspected(records(spark, [trade(2 * hour)]))
    [group] = summarized(batch)
    span = Span(("bitmex",), group.first, group.last)
    trades = tables.read(SILVER["trade"]).alias("t")
    assert len(trades.inputFiles()) == 4
    scan = trades.where(span.condition("t"))
    assert scan.count() == 1
    plan = scan._jdf.queryExecution().executedPlan().toString()
    assert "PartitionFilters: [isnotnull(exchange" in plan
    wider = trades.where(span.widened(timedelta(hours=2)).condition("t"))
    assert wider.count() == 2
