"""Days that go: from the layers that are named, and from the manifest with them."""

from datetime import date

from pyspark.sql import SparkSession

from tardis_machine.lake import manifest
from tardis_machine.lake.gold.refresh import refresh
from tardis_machine.lake.gold_config import DropDaysConfig
from tardis_machine.lake.manifest import Count
from tardis_machine.lake.retention import Dropped, drop_days
from tardis_machine.lake.tables import SILVER, Tables
from tardis_machine.lake.units import LAYERS, plan
from tests.lake.backfills import replay
from tests.lake.events import trade
from tests.lake.gold.minute_bars import BARS, DAY_MS, MINUTES, write


def days(tables: Tables) -> dict[str, int]:
    return {
        table.path: tables.read(table).select("day").distinct().count()
        for table in (SILVER["trade"], BARS.table)
    }


def test_days_go_from_the_layers_that_are_named(spark: SparkSession, tables: Tables) -> None:
    write(tables, 0, trade(0), trade(DAY_MS))
    refresh(tables, MINUTES)
    whole = replay("trade", minutes=(0, 1440))
    [unit] = plan([whole])
    manifest.write_down(tables, unit, {(layer, "trade"): Count(1) for layer in LAYERS})
    kept = date(2024, 3, 2)
    would = drop_days(tables, LAYERS, kept, dry_run=True)
    assert [(each.table, each.days) for each in would] == [("trades", 1)]
    assert drop_days(tables, ["silver"], kept, ["deribit"]) == []
    assert days(tables) == {SILVER["trade"].path: 2, BARS.table.path: 2}
    assert plan([whole], manifest.finished(tables)) == []

    [dropped] = drop_days(tables, ["silver"], kept)
    assert dropped == Dropped("trades", 1, date(2024, 3, 1), date(2024, 3, 1))
    assert days(tables) == {SILVER["trade"].path: 1, BARS.table.path: 2}
    # A backfill would bring in again what is missing, and only that.
    [again] = plan([whole], manifest.finished(tables))
    assert again.layers == ("silver",)
    assert [each.table for each in drop_days(tables, ["gold"], kept)] == ["bars"]
    assert days(tables) == {SILVER["trade"].path: 1, BARS.table.path: 1}


def test_days_that_were_dropped_are_written_down_again(tables: Tables) -> None:
    whole = replay("trade", minutes=(0, 1440))
    for force in (False, True, False, True):
        [unit] = plan([whole], manifest.finished(tables), force=force)
        manifest.write_down(tables, unit, {(layer, "trade"): Count(1) for layer in LAYERS})
        assert plan([whole], manifest.finished(tables)) == []
        drop_days(tables, LAYERS, date(2024, 3, 2))


def test_a_retention_counts_today_among_the_days_that_stay() -> None:
    config = DropDaysConfig(tables="lake", keep_days=3)
    assert config.first_kept(date(2024, 3, 10)) == date(2024, 3, 8)
    assert DropDaysConfig(tables="lake", before="2024-03-02").first_kept(date.max) == date(
        2024, 3, 2
    )
