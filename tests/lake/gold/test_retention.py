"""Days that go: from the layers that are named, and from the manifest with them."""

from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

from tardis_machine.lake import manifest
from tardis_machine.lake.gold.refresh import refresh
from tardis_machine.lake.gold_config import DropDaysConfig
from tardis_machine.lake.retention import drop_days
from tardis_machine.lake.tables import EVENTS, SILVER, Tables
from tests.lake.days import trade as recorded_trade
from tests.lake.days import write_day
from tests.lake.events import trade
from tests.lake.gold.test_refresh import BARS, DAY_MS, MINUTES, write
from tests.lake.test_backfill import replay, run


def days(tables: Tables) -> dict[str, int]:
    return {
        table.path: tables.read(table).select("day").distinct().count()
        for table in (EVENTS, SILVER["trade"], BARS.table)
    }


def test_days_go_from_the_layers_that_are_named(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    cache = {"cacheDir": str(write_day(tmp_path / "cache", {0: recorded_trade(0)}))}
    whole = replay("trade", "book_change", minutes=(0, 1440))
    run(tables, whole, source=cache)
    write(tables, 0, trade(DAY_MS))
    refresh(tables, MINUTES)
    kept = date(2024, 3, 2)
    would = drop_days(tables, ["bronze", "silver"], kept, dry_run=True)
    assert {each.table: each.days for each in would} == {"events": 1, "trades": 1}
    assert days(tables) == {EVENTS.path: 1, SILVER["trade"].path: 2, BARS.table.path: 2}
    assert drop_days(tables, ["silver"], kept, ["deribit"]) == []

    dropped = drop_days(tables, ["silver"], kept)
    assert [(each.table, each.first, each.last) for each in dropped] == [
        ("trades", date(2024, 3, 1), date(2024, 3, 1))
    ]
    assert days(tables) == {EVENTS.path: 1, SILVER["trade"].path: 1, BARS.table.path: 2}
    assert {line.layer for line in manifest.finished(tables)} == {"bronze"}
    # Gold keeps what it has; a backfill brings in again what is missing.
    assert [each.days for each in refresh(tables, MINUTES)] == [0]
    assert len(run(tables, whole, source=cache).finished) == 1
    assert days(tables)[SILVER["trade"].path] == 2
    drop_days(tables, ["gold"], kept)
    assert days(tables)[BARS.table.path] == 1


def test_a_retention_counts_today_among_the_days_that_stay() -> None:
    config = DropDaysConfig(tables="lake", keep_days=3)
    assert config.first_kept(date(2024, 3, 10)) == date(2024, 3, 8)
    assert DropDaysConfig(tables="lake", before="2024-03-02").first_kept(date.max) == date(
        2024, 3, 2
    )
