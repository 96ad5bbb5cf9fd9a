"""Files joined as tables grow, never all of them again, and while others write."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tardis_machine.lake import maintain
from tardis_machine.lake import tables as layout
from tardis_machine.lake.batches import write_batch
from tardis_machine.lake.joining import JOIN_EVERY
from tardis_machine.lake.tables import EVENTS, SILVER, Commit, Table, Tables
from tests.lake.events import trade
from tests.lake.records import records

DAY_MS = 86_400_000


def files(tables: Tables, table: Table = SILVER["trade"]) -> set[str]:
    return set(tables.read(table).inputFiles())


def forget_what_was_written(spark: SparkSession) -> None:
    """Leave Delta knowing as little of the tables as in a process that has just begun."""
    delta = spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
    delta.stats.AutoCompactPartitionStats.instance(spark._jsparkSession).resetTestOnly()


def operations(tables: Tables, table: Table) -> list[str]:
    history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(table)}")
    return [row.operation for row in history.orderBy("version").collect()]


def test_only_days_that_changed_are_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain, "_FIRST_LOOK", 1)
    # Above the tables, this is no partition.
    tables = Tables(spark, str(tmp_path / "env=prod" / "day=1"))
    table = SILVER["trade"]
    for number, at in enumerate((0, 1, DAY_MS, DAY_MS + 1)):
        write_batch(tables, records(spark, [trade(at)]), Commit("a", number), may_repeat=False)
    assert maintain._last_compaction(tables, table) is None
    assert maintain.compact(tables, table) == 2
    compacted = len(operations(tables, table)) - 1
    joined = files(tables)
    assert len(joined) == 2
    for number in (2, 3):
        batch = records(spark, [trade(number)])
        write_batch(tables, batch, Commit("a", 2 + number), may_repeat=False)
    assert maintain._last_compaction(tables, table) == compacted
    assert maintain.compact(tables, table) == 1
    assert len(files(tables)) == 2
    [untouched] = [path for path in joined if "day=2024-03-02" in path]
    assert untouched in files(tables)
    assert maintain.compact(tables, table) == 0
    assert tables.read(table).count() == 6


def test_small_files_are_joined_as_a_table_grows(spark: SparkSession, tables: Tables) -> None:
    for number in range(JOIN_EVERY - 4, JOIN_EVERY + 2):
        batch = records(spark, [trade(number)])
        write_batch(tables, batch, Commit("a", number), may_repeat=False)
    for table in (EVENTS, SILVER["trade"]):
        assert operations(tables, table).count("OPTIMIZE") == 1
        assert len(files(tables, table)) == 3
        assert tables.read(table).count() == 6


def test_a_stream_that_was_started_again_does_not_join_files_with_every_batch(
    spark: SparkSession, tables: Tables
) -> None:
    for number in range(6):
        if number == 3:
            forget_what_was_written(spark)
        batch = records(spark, [trade(number)])
        write_batch(tables, batch, Commit("a", number), may_repeat=False)
    assert "OPTIMIZE" not in operations(tables, EVENTS)
    assert "OPTIMIZE" not in operations(tables, SILVER["trade"])


def test_only_the_latest_commits_are_asked_whether_a_batch_was_written(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        batch = records(spark, [trade(number)])
        write_batch(tables, batch, Commit("a", number), may_repeat=False)
    assert [tables.has(EVENTS, Commit("a", number)) for number in range(4)] == [True] * 3 + [False]
    monkeypatch.setattr(layout, "_LATEST_COMMITS", 2)
    assert [tables.has(EVENTS, Commit("a", number)) for number in range(3)] == [False, True, True]
    again = write_batch(tables, records(spark, [trade(0)]), Commit("a", 0))
    assert again.inserted == {"trade": 0}
    assert tables.read(EVENTS).count() == 3


def test_names_of_joined_files_are_kept_for_a_day(spark: SparkSession, tables: Tables) -> None:
    write_batch(tables, records(spark, [trade(0)]), Commit("a", 0), may_repeat=False)
    name = tables.name(EVENTS)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    now = int(time.time() * 1000)
    names = {f"{hours}-hours-ago": now - hours * 3_600_000 for hours in (1, 23, 25, 100)}
    removed = [
        {"remove": {"path": path, "deletionTimestamp": at, "dataChange": False}}
        for path, at in names.items()
    ]
    log = Path(tables.path(EVENTS), "_delta_log")
    log.joinpath(f"{3:020}.json").write_text("\n".join(map(json.dumps, removed)))
    write_batch(tables, records(spark, [trade(1)]), Commit("a", 1), may_repeat=False)
    assert tables.read(EVENTS).count() == 2
    *_, newest = sorted(log.glob("*.checkpoint.parquet"))
    kept = pq.read_table(newest, columns=["remove"]).column("remove").drop_null().to_pylist()
    assert {each["path"] for each in kept} == {"1-hours-ago", "23-hours-ago"}


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
