"""A session of the user: the lake works beside it, and changes nothing of it."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tardis_machine.lake import backfill, catalog, maintain, manifest, quarantine, streaming
from tardis_machine.lake import events as bronze
from tardis_machine.lake import silver as silver_rows
from tardis_machine.lake.batches import write_batch, write_silver
from tardis_machine.lake.gold import GOLD, report
from tardis_machine.lake.gold.refresh import Wanted, refresh
from tardis_machine.lake.groups import grouped
from tardis_machine.lake.rebuild import rebuild
from tardis_machine.lake.release import release
from tardis_machine.lake.retention import drop_days
from tardis_machine.lake.session import TABLE_SETTINGS, is_own, prepared, session
from tardis_machine.lake.show import frame, text, views
from tardis_machine.lake.sources import tardis
from tardis_machine.lake.tables import EVENTS, MANIFEST, QUARANTINE, SILVER, Commit, Table, Tables
from tardis_machine.lake.units import plan
from tardis_machine.lake.verify import units, verify
from tests.lake.backfills import SAMPLED, replay
from tests.lake.events import START_US, trade
from tests.lake.records import records
from tests.lake.spark_settings import ZONE

ZONE_OF_USER = "Asia/Kolkata"
"""Where a day begins before that of UTC; the machine's zone, `ZONE`, is behind it."""
CHOSEN = {
    "spark.sql.session.timeZone": ZONE_OF_USER,
    "spark.sql.parquet.compression.codec": "gzip",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    "spark.sql.adaptive.optimizer.excludedRules": "some.Rule",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.files.maxRecordsPerFile": "7",
}
DAY_MS = 86_400_000
BARS = Wanted(GOLD["bars"], "trade_bar_1m")
QUALITY = Wanted(GOLD["quality"])


@pytest.fixture
def users(spark: SparkSession) -> Iterator[SparkSession]:
    """Make a session as a user would have it: Spark's own defaults, and what the user chose."""
    theirs = spark.newSession()
    for key in (*TABLE_SETTINGS, "spark.tardis-machine.own"):
        theirs.conf.unset(key)
    for key, value in CHOSEN.items():
        theirs.conf.set(key, value)
    assert not is_own(theirs)
    before, active = settings_of(theirs), SparkSession.getActiveSession()
    yield theirs
    assert settings_of(theirs) == before
    # The user's own calls make it the active one; those of the lake leave that as it is.
    assert SparkSession.getActiveSession() in (active, theirs)
    spark.createDataFrame([], "a INT")


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return all settings but those that Delta Lake sets on any session that it meets."""
    of_delta = ("spark.sql.parquet.fieldId.", "spark.databricks.delta.lastCommitVersion")
    return {key: value for key, value in spark.conf.getAll.items() if not key.startswith(of_delta)}


def rows_of(tables: Tables, table: Table) -> list[tuple[object, ...]]:
    """Return a table's rows, times as numbers, without what a run decides for itself."""
    kinds = {"timestamp": f.unix_micros, "date": f.unix_date, "binary": f.md5}
    columns = [
        kinds.get(kind, f.col)(name).alias(name)
        for name, kind in tables.read(table).dtypes
        if name not in ("ingest_ts", "timestamp", "finished", "producer_id", "meta", "value")
    ]
    return sorted(map(tuple, tables.read(table).select(*columns).collect()), key=repr)


def fill(tables: Tables) -> None:
    """Do what changes tables, from the first batch to the last rebuild."""
    wanted = [replay("trade", "trade_bar_10s", minutes=(0, 2))]
    report = backfill.run(tables, plan(wanted), SAMPLED, attempts=1)
    assert not report.failed
    live = [trade(number, trade_id=f"t{number}", live=True) for number in (1, 2, DAY_MS - 1)]
    bad = [trade(DAY_MS, price="0." + "1" * 19), b"garbage"]
    # A batch of which Silver can hold nothing, which is counted all the same.
    for number, values in enumerate(([*live, live[1], *bad], [trade(4, amount="0." + "1" * 19)])):
        rows = records(tables.given, values, offset=10 * number)
        write_batch(tables, rows, Commit("stream/a", number))
    write_batch(tables, records(tables.given, [trade(7)]), Commit("b", 0), bronze_only=True)
    events = tables.given.read.format("delta").load(tables.path(EVENTS)).where("bus = 'test'")
    assert write_silver(tables, events, grouped(events)) == ({"trade": 1}, 0)
    tables.delete(SILVER["trade"], "position = 7")
    streaming.wait(streaming.start_silver(tables, f"{tables.root}/_checkpoints/silver"))
    rebuild(tables)
    assert release(tables).released == 0
    refresh(tables, [BARS, QUALITY])
    maintain.compact(tables, SILVER["trade"])
    maintain.vacuum(tables, SILVER["trade"])
    assert drop_days(tables, ["bronze"], datetime(2020, 1, 1, tzinfo=UTC).date()) == []


FILLED = (
    *(EVENTS, QUARANTINE, MANIFEST, SILVER["trade"], SILVER["tradeBar"]),
    *(BARS.gold.table, QUALITY.gold.table),
)


def test_tables_are_the_same_whatever_the_session_of_the_user(
    spark: SparkSession, users: SparkSession, tmp_path: Path
) -> None:
    ours, theirs = Tables(spark, str(tmp_path / "ours")), Tables(users, str(tmp_path / "theirs"))
    for tables in (ours, theirs):
        fill(tables)
    for table in FILLED:
        expected = rows_of(ours, table)
        assert expected
        assert rows_of(theirs, table) == expected, table.path
    days = {row.day for row in theirs.read(SILVER["trade"]).select("day").distinct().collect()}
    assert {f"{day}" for day in days} == {"2024-03-01"}
    assert "zstd" in theirs.read(SILVER["trade"]).inputFiles()[0]

    # What only looks gives the same, too, in UTC.
    looks: list[Callable[[Tables], object]] = [
        quarantine.held,
        lambda tables: verify(tables, units(manifest.finished(tables)), SAMPLED),
        lambda tables: text(frame(tables, "trades").select("day", "local_ts").sort("local_ts"), 9),
        lambda tables: report.summary(tables, report.Span(), 5),
        lambda tables: tables.read(SILVER["trade"]).where("local_ts < '2024-03-01 00:01'").count(),
        lambda tables: maintain.size(tables, "trades").rows,
    ]
    for look in looks:
        assert look(theirs) == look(ours)
    assert catalog.register(theirs, "users") != []
    users.sql("DROP DATABASE users CASCADE")


def test_views_are_of_the_session_of_the_user_in_its_zone(
    users: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(users, str(tmp_path / "tables"))
    write_batch(tables, records(users, [trade(0)]), Commit("a", 0))
    assert "trades" in views(tables)
    [row] = users.sql("SELECT CAST(local_ts AS STRING), CAST(day AS STRING) FROM trades").collect()
    assert tuple(row) == ("2024-03-01 05:30:00", "2024-03-01")
    users.catalog.dropTempView("trades")


def test_a_session_of_the_lake_has_the_users_settings_views_and_sources(
    users: SparkSession,
) -> None:
    users.range(3).createOrReplaceTempView("three")
    users.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        tardis.register(users)
        own = prepared(users)
        assert own.table("three").count() == 3
        assert own.conf.get("spark.sql.shuffle.partitions") == "5"
        assert own.conf.get("spark.sql.session.timeZone") == "UTC"
        assert own.sparkContext is users.sparkContext
        assert prepared(own) is own
    finally:
        users.catalog.dropTempView("three")
        users.conf.set("spark.sql.shuffle.partitions", "2")


def history(spark: SparkSession, **options: str) -> DataFrame:
    asked = {
        "exchange": "bitmex",
        "from": "2024-03-01",
        "to": "2024-03-01T00:02",
        "dataTypes": "trade",
        "sampleData": "true",
        **options,
    }
    return spark.read.format("tardis").options(**asked).load()


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_history_is_the_same_in_the_session_of_the_user(
    spark: SparkSession, users: SparkSession, pushed: str
) -> None:
    key = "spark.sql.python.filterPushdown.enabled"
    users.conf.set(key, pushed)
    try:
        tardis.register(users)
        found = []
        for each in (spark, users):
            rows = history(each, columns="event_id,day,symbol,local_ts").where(
                f"local_ts >= timestamp_micros({START_US + 60_000_000}L) AND symbol = 'XBTUSD'"
            )
            numbers = f.unix_micros("local_ts"), f.unix_date("day")
            found.append(sorted(map(tuple, rows.select("event_id", *numbers).collect())))
        assert found[0] == found[1] != []
    finally:
        users.conf.unset(key)


def test_rows_are_the_same_in_the_session_of_the_user(
    spark: SparkSession, users: SparkSession
) -> None:
    def made(each: SparkSession) -> list[tuple[object, ...]]:
        events = bronze.events(bronze.inspected(records(each, [trade(0), trade(DAY_MS)])))
        rows = silver_rows.rows(events, "trade")
        numbers = f.unix_micros("local_ts"), f.unix_date("day"), f.col("price")
        return sorted(map(tuple, rows.select("event_id", *numbers).collect()))

    assert made(users) == made(spark)
    assert os.environ["TZ"] == ZONE


def test_a_stream_of_the_users_session_is_run_beside_it(
    users: SparkSession, tmp_path: Path
) -> None:
    source = str(tmp_path / "source")
    records(users, [trade(0), trade(1, price="0." + "1" * 19)]).write.format("delta").save(source)
    tables = Tables(users, str(tmp_path / "tables"))
    rows = users.readStream.format("delta").load(source)
    streaming.wait(streaming.start(tables, rows, str(tmp_path / "checkpoint"), once=True))
    assert tables.read(SILVER["trade"]).count() == 1
    assert tables.read(QUARANTINE).count() == 1
    assert "zstd" in tables.read(SILVER["trade"]).inputFiles()[0]


def test_what_fails_leaves_the_session_as_it_was(
    users: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(users, str(tmp_path / "tables"))
    wanted = [replay("trade", minutes=(0, 1))]
    failing = backfill.run(tables, plan(wanted), {"cacheDir": "/dev/null"}, attempts=1)
    assert failing.failed
    write_batch(tables, records(users, [trade(0)]), Commit("a", 0))

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Tables, "replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        rebuild(tables)


def test_a_session_by_another_thread_is_a_session(spark: SparkSession) -> None:
    found: list[SparkSession] = []
    thread = Thread(target=lambda: found.append(session()))
    thread.start()
    thread.join(60)
    assert found == [spark]
