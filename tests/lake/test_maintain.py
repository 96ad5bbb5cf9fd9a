"""Files joined as tables grow, never all of them again, and while others write."""

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from tardis_machine.lake import maintain
from tardis_machine.lake.batches import write_batch
from tardis_machine.lake.tables import EVENTS, SILVER, Commit, Tables
from tests.lake.conftest import records
from tests.lake.events import trade

DAY_MS = 86_400_000


def files(tables: Tables) -> set[str]:
    return set(tables.read(SILVER["trade"]).inputFiles())


def operations(tables: Tables) -> list[str]:
    history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(SILVER['trade'])}")
    return [row.operation for row in history.orderBy("version").collect()]


def test_only_days_that_changed_are_compacted(spark: SparkSession, tables: Tables) -> None:
    for number, at in enumerate((0, 1, DAY_MS, DAY_MS + 1)):
        write_batch(tables, records(spark, [trade(at)]), Commit("a", number), may_repeat=False)
    assert maintain.compact(tables, SILVER["trade"]) == 2
    joined = files(tables)
    assert len(joined) == 2
    write_batch(tables, records(spark, [trade(2)]), Commit("a", 4), may_repeat=False)
    assert maintain.compact(tables, SILVER["trade"]) == 1
    assert len(files(tables)) == 2
    [untouched] = [path for path in joined if "day=2024-03-02" in path]
    assert untouched in files(tables)
    assert maintain.compact(tables, SILVER["trade"]) == 0
    assert tables.read(SILVER["trade"]).count() == 5


def test_small_files_are_joined_as_a_table_grows(spark: SparkSession, tables: Tables) -> None:
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "4")
    try:
        for number in range(6):
            batch = records(spark, [trade(number)])
            write_batch(tables, batch, Commit("a", number), may_repeat=False)
    finally:
        spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
    assert "OPTIMIZE" in operations(tables)
    assert len(files(tables)) < 6
    assert tables.read(SILVER["trade"]).count() == 6
    assert tables.read(EVENTS).count() == 6


def test_compaction_and_a_stream_do_not_harm_each_other(
    spark: SparkSession, tables: Tables
) -> None:
    write_batch(tables, records(spark, [trade(0)]), Commit("a", 0), may_repeat=False)
    write_batch(tables, records(spark, [trade(1)]), Commit("a", 1), may_repeat=False)
    with ThreadPoolExecutor(2) as pool:
        own = Tables(spark, tables.root)
        streaming = pool.submit(
            lambda: [
                # Each overlaps with the one before.
                write_batch(own, records(spark, [trade(n), trade(n + 1)]), Commit("a", n + 1))
                for n in range(1, 5)
            ]
        )
        compacting = pool.submit(
            lambda: [maintain.compact(tables, SILVER["trade"]) for _ in range(3)]
        )
        written, compacted = streaming.result(), compacting.result()
    assert sum(each.inserted["trade"] for each in written) == 4
    assert sum(compacted) > 0
    rows = tables.read(SILVER["trade"])
    assert rows.count() == rows.select("event_id").distinct().count() == 6
