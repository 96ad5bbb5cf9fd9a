"""Tables in a catalog, described; the questions of the SQL page; other readers."""

import re
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tardis_machine.lake import catalog
from tardis_machine.lake.batches import write_batch
from tardis_machine.lake.catalog import TABLES, register
from tardis_machine.lake.comments import comments
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.tables import SILVER, Commit, Tables
from tests.lake.events import trade
from tests.lake.records import records

PAGE = Path(__file__).parents[3] / "docs" / "sql.md"
QUESTIONS = re.findall(
    r"^## (\d+)\. .*?^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def registered(sampled: Tables) -> Tables:
    register(sampled, "md")
    return sampled


def test_there_are_ten_questions() -> None:
    assert [int(number) for number, _ in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize(("number", "question"), QUESTIONS, ids=[each[0] for each in QUESTIONS])
def test_a_question_has_an_answer(registered: Tables, number: str, question: str) -> None:
    rows = registered.spark.sql(question).collect()
    assert rows, question
    assert all(any(value is not None for value in row) for row in rows)


def test_what_comes_to_nothing_fails_no_question_about_all_symbols(registered: Tables) -> None:
    spark = registered.spark
    nothing = {"volume": f.lit(0.0), "buy_volume": f.lit(0.0), "sell_volume": f.lit(0.0)}
    bars = spark.table("md.bars").withColumns({**nothing, "close": f.lit(0.0)})
    bars.createOrReplaceTempView("idle")  # trades whose side nobody told have no volume of either
    traded, volatile = (
        spark.sql(dict(QUESTIONS)[number].replace("md.bars", "idle")).collect()
        for number in ("2", "3")
    )
    assert {(row.vwap, row.share_of_buys) for row in traded} == {(None, None)}
    assert volatile == []


def test_every_column_says_what_it_is(registered: Tables) -> None:
    for name, table in TABLES.items():
        assert all(comments(table.columns, table.comments)), name
    for name in ("trades", "bars", "quality", "events"):
        fields = registered.spark.table(f"md.{name}").schema.fields
        said = [field.metadata.get("comment") for field in fields]
        assert said == comments(TABLES[name].columns, TABLES[name].comments), name


def test_registering_again_changes_nothing_and_another_table_is_refused(
    registered: Tables, tables: Tables
) -> None:
    names = register(registered, "md")
    assert {"md.trades", "md.bars", "md.top_of_book", "md.quality", "md.backfills"} <= set(names)
    assert not catalog.is_lasting(registered)
    batch = records(tables.spark, [trade(0)])
    write_batch(tables, batch, Commit("a", 0), may_repeat=False)
    with pytest.raises(LakeError, match=r"`md`.`\w+` is another table, at .*sampled"):
        register(tables, "md")


def test_a_table_of_an_earlier_version_gets_what_it_lacks(
    spark: SparkSession, tables: Tables
) -> None:
    name = tables.name(SILVER["trade"])
    spark.sql(f"CREATE TABLE {name} (event_id STRING, exchange STRING, day DATE) USING delta")
    register(tables, "earlier")
    said = [field.metadata.get("comment") for field in spark.table("earlier.trades").schema.fields]
    assert all(said)
    [detail] = spark.sql("DESCRIBE DETAIL earlier.trades").collect()
    assert detail.properties["delta.enableChangeDataFeed"] == "true"


def test_duckdb_polars_and_delta_rs_read_the_same(sampled: Tables) -> None:
    trades, bars = (sampled.path(each) for each in (SILVER["trade"], GOLD["bars"].table))
    expected = sampled.spark.sql(
        f"SELECT symbol, count(*), CAST(sum(amount) AS DOUBLE) FROM delta.`{trades}` "
        "WHERE exchange = 'bitmex' GROUP BY symbol ORDER BY symbol"
    ).collect()
    wanted = [tuple(row) for row in expected]
    assert wanted

    read = DeltaTable(trades).to_pyarrow_table(filters=[("exchange", "=", "bitmex")])
    assert read.num_rows == sum(row[1] for row in wanted)
    lazy = pl.scan_delta(trades).filter(pl.col("exchange") == "bitmex")
    by_polars = (
        lazy.group_by("symbol")
        .agg(pl.len(), pl.col("amount").sum().cast(pl.Float64).alias("sum"))
        .sort("symbol")
        .collect()
    )
    assert by_polars.rows() == wanted
    files = DeltaTable(trades).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("trades", files)
        by_duckdb = connection.sql(
            "SELECT symbol, count(*), CAST(sum(amount) AS DOUBLE) FROM trades "
            "WHERE exchange = 'bitmex' GROUP BY symbol ORDER BY symbol"
        ).fetchall()
    assert by_duckdb == wanted
    counted = sampled.read(GOLD["bars"].table).count()
    assert pl.scan_delta(bars).select(pl.len()).collect().item() == counted
    assert DeltaTable(bars).to_pyarrow_dataset().count_rows() == counted
