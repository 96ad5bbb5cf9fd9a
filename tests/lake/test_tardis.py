"""History as a source of Spark."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, InputPartition, LessThan

from tardis_machine.cli.lake import _source_options
from tardis_machine.config import ConfigError
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.lake.sources.projections import Events
from tardis_machine.lake.sources.tardis import (
    TardisDataSource,
    TardisReader,
    Where,
    bucketed,
    cases_of,
    confined,
    slices,
)
from tardis_machine.lake.tables import Tables
from tardis_machine.messages import BookChange, Trade
from tardis_machine.replays import replay_normalized
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.support.ports import free_ports

DAY = 86_400_000_000
START = 1_709_251_200_000_000
FROM, TO = "2024-03-01T00:00Z", "2024-03-01T00:02Z"


def replay(
    *data_types: str, days: float = 2, symbols: tuple[str, ...] | None = None
) -> ReplayNormalizedOptions:
    return ReplayNormalizedOptions(
        exchange="bitmex",
        from_=START,
        to=START + int(days * DAY),
        data_types=data_types,
        symbols=symbols,
    )


def test_days_are_tasks_and_hours_of_trades() -> None:
    stateful = list(slices(replay("trade", "book_change", days=1.5)))
    assert [(kept, part.from_, part.to) for kept, part in stateful] == [
        (START, START, START + DAY),
        (START + DAY, START + DAY, START + DAY + DAY // 2),
    ]
    assert len(list(slices(replay("trade", days=1.5)))) == 36
    assert len(list(slices(replay("trade_bar_1m", days=1)))) == 1


def test_fetches_are_bound_for_the_job_not_for_each_task() -> None:
    reader = TardisReader([replay("trade", days=2)], Where(), Events())
    assert [part.fetches for part in reader.partitions()] == [1] * 48
    reader = TardisReader([replay("trade")], Where(), Events(), concurrent_tasks=4)
    assert {part.fetches for part in reader.partitions()} == {15}


def test_what_has_state_is_replayed_from_the_beginning_of_its_day() -> None:
    noon = START + DAY // 2 + 1
    cut = confined(replay("book_change"), noon, noon + DAY)
    assert cut is not None
    assert [(kept, part.from_, part.to) for kept, part in slices(cut)] == [
        (noon - 1, START, START + DAY),
        (START + DAY, START + DAY, noon - 1 + DAY + 60_000_000),
    ]
    cut = confined(replay("trade"), noon, None)
    assert cut is not None
    [(kept, part), *_] = slices(cut)
    assert (kept, part.from_) == (noon - 1, noon - 1)
    assert confined(replay("trade"), START + 2 * DAY, None) is None


def test_symbols_are_spread_over_buckets() -> None:
    asked = replay("trade", symbols=("A", "B", "C"))
    assert [each.symbols for each in bucketed(asked, 2)] == [("A", "C"), ("B",)]
    assert [each.symbols for each in bucketed(asked, 9)] == [("A",), ("B",), ("C",)]
    assert bucketed(replay("trade"), 9) == [replay("trade")]


def test_empty_symbols_option_reads_all_symbols() -> None:
    asked = {"exchange": "bitmex", "from": FROM, "to": TO, "dataTypes": "trade", "symbols": " , "}
    parts = TardisDataSource(asked).reader(None).partitions()
    assert [each.part.replay.symbols for each in parts] == [None]


def test_range_of_no_length_has_no_parts_and_reads_nothing() -> None:
    asked = {"exchange": "bitmex", "from": FROM, "to": FROM, "dataTypes": "trade"}
    source = TardisDataSource(asked).reader(None)
    assert source.partitions() == []
    # Spark makes one by itself then.
    assert list(source.read(InputPartition(None))) == []


def test_filters_ask_history_for_less() -> None:
    reader = TardisReader([replay("trade", symbols=("A", "B"))], Where(), Events())
    filters = [
        In(("symbol",), ("B", "C")),
        GreaterThanOrEqual(("local_ts",), datetime(2024, 3, 1, 12, tzinfo=UTC)),
        LessThan(("local_ts",), datetime(2024, 3, 1, 14, tzinfo=UTC)),
    ]
    assert list(reader.pushFilters(filters)) == filters
    parts = [each.part.replay for each in reader.partitions()]
    assert {part.symbols for part in parts} == {("B",)}
    assert parts[0].from_ == START + DAY // 2
    assert len(parts) == 3
    assert list(reader.pushFilters([EqualTo(("exchange",), "deribit")]))
    assert reader.partitions() == []


def test_each_type_knows_its_payload_case() -> None:
    types = ("trade", "quote", "book_snapshot_5_1s", "book_snapshot_5_grouped10_1s", "trade_bar_1m")
    assert cases_of([replay(*types)]) == [
        "trade",
        "quote",
        "bookSnapshot",
        "groupedBookSnapshot",
        "tradeBar",
    ]


def test_the_key_comes_from_the_executors_environment(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("hidden\n")
    where = Where(cache_dir=str(tmp_path))
    with where.history(3, {"TM_API_KEY_FILE": str(key)}) as history:
        assert "hidden" in vars(history._client).values() or "hidden" in repr(vars(history._client))
    assert "hidden" not in repr(where)


def test_executor_without_named_cache_uses_that_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Where().history(3, {}) as history:
        assert history.cache.directory == tmp_path / "tardis-machine" / "slices"


def test_cache_that_everyone_may_write_to_is_refused_before_local_tasks_begin(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o777)
    history = HistoryConfig(cache_dir=tmp_path)
    local, cluster = (
        cast("Tables", SimpleNamespace(spark=SimpleNamespace(conf={"spark.master": master})))
        for master in ("local[2]", "spark://head:7077")
    )
    with pytest.raises(ConfigError, match=r"^--cache-dir .*everyone may write to it"):
        _source_options(history, local)
    assert _source_options(history, cluster)["cacheDir"] == str(tmp_path)


def reader(spark: SparkSession, **options: str) -> DataFrameReader:
    asked = {"exchange": "bitmex", "from": FROM, "to": TO} | options
    return spark.read.format("tardis").options(**asked)


def test_rows_are_those_of_the_library(spark: SparkSession) -> None:
    expected = list(
        replay_normalized(
            exchange="bitmex", from_=FROM, to=TO, data_types=["trade", "book_change"], sample=True
        )
    )
    source = reader(spark, dataTypes="trade,book_change", sampleData="true")
    rows = source.load().orderBy("position").collect()
    assert len(rows) == len(expected) > 100
    for row, message in zip(rows, expected, strict=True):
        assert isinstance(message, Trade | BookChange)
        assert row.symbol == message.symbol
        if isinstance(message, Trade):
            assert (row.payload_case, row.trade_id, row.side) == ("trade", message.id, message.side)
            assert (float(row.price), float(row.amount)) == (message.price, message.amount)
        else:
            assert row.payload_case == "bookChange"
            assert [(float(bid.price), float(bid.amount)) for bid in row.bids] == [
                (bid.price, bid.amount) for bid in message.bids
            ]

    pruned = source.option("columns", "symbol,price,payload_case").load()
    assert pruned.columns == ["symbol", "price", "payload_case"]
    wanted = pruned.where((f.col("symbol") == "XBTUSD") & (f.col("payload_case") == "trade"))
    trades = [m for m in expected if isinstance(m, Trade) and m.symbol == "XBTUSD"]
    assert wanted.count() == len(trades) > 0


def test_a_task_waits_for_an_api_as_long_as_it_is_told(spark: SparkSession, tmp_path: Path) -> None:
    [port] = free_ports(1)
    source = reader(
        spark,
        dataTypes="trade",
        cacheDir=str(tmp_path),
        endpoint=f"http://127.0.0.1:{port}",
        apiWaitS="0",
    )
    with pytest.raises(PySparkException, match=r"cannot be reached: .* given up after one try"):
        source.load().collect()


def test_what_is_missing_in_the_options_is_named(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="needs the option dataTypes"):
        reader(spark).load()
