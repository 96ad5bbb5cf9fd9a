"""One line to a table, whole or in batches, and what happens where that cannot be."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tardis_machine import replay_normalized
from tardis_machine.engine.columns import ChoiceError, ColumnError, schema
from tardis_machine.extras import MissingExtraError
from tardis_machine.history.filters import Filter
from tardis_machine.messages import Trade
from tardis_machine.replays import NormalizedReplay, ReplayEndedError, TableTypeError
from tardis_machine.replays.normalizer import NormalizeError
from tests.library.asked import SPAN, WHOLE
from tests.support.bitmex import stamp, trade
from tests.support.feeds.generator import write


def trades(**more: Any) -> NormalizedReplay[Trade]:
    return replay_normalized("bitmex", data_types=["trade"], **{**SPAN, **more})


@pytest.fixture(scope="module")
def messages() -> list[Trade]:
    return list(trades())


def test_a_replay_becomes_a_table(messages: list[Trade]) -> None:
    table = trades().to_arrow()
    assert table.schema == schema("trade")
    assert table["price"].to_pylist() == [trade.price for trade in messages]
    assert table["id"].to_pylist() == [trade.id for trade in messages]


def test_a_replay_becomes_a_pandas_frame(messages: list[Trade]) -> None:
    frame = trades().to_pandas()
    assert list(frame["amount"]) == [trade.amount for trade in messages]
    assert isinstance(frame["timestamp"].dtype, pd.DatetimeTZDtype)
    assert [each.to_pydatetime() for each in frame["local_timestamp"]] == [
        trade.local_timestamp.datetime for trade in messages
    ]
    frame.loc[0, "price"] = 1.0  # which is nobody else's memory


def test_a_replay_becomes_a_polars_frame(messages: list[Trade]) -> None:
    frame = trades().to_polars(numbers="decimal", columns=["price", "local_timestamp"])
    assert frame.schema == {
        "price": pl.Decimal(38, 18),
        "local_timestamp": pl.Datetime("us", "UTC"),
    }
    assert [float(price) for price in frame["price"]] == [trade.price for trade in messages]


def test_one_column_is_no_list_of_letters() -> None:
    assert trades().to_arrow(columns="price") == trades().to_arrow(columns=["price"])


def test_others_take_a_replay_as_it_is() -> None:
    expected = trades().to_arrow()
    assert pa.table(trades()) == expected
    assert pl.DataFrame(trades()).to_arrow().num_rows == expected.num_rows
    looked_at = trades()
    assert pa.RecordBatchReader.from_stream(looked_at).schema == expected.schema
    assert pa.table(looked_at) == expected


def test_a_table_of_one_among_several_types() -> None:
    def asked() -> NormalizedReplay[Any]:
        return replay_normalized("bitmex", data_types=["trade", "quote"], **SPAN)

    with pytest.raises(TableTypeError, match=r'this replay has trade, quote, .*to_arrow."trade"'):
        asked().to_arrow()
    with pytest.raises(TableTypeError, match="'trades' is not among them"):
        asked().to_pandas("trades")
    assert asked().to_arrow("trade") == trades().to_arrow()
    assert asked().to_polars("quote").height > 10


def test_batches_are_read_as_the_replay_runs() -> None:
    running = replay_normalized("bitmex", data_types=["book_change"], **WHOLE)
    batches = running.to_arrow_batches()
    assert running.progress == 0
    assert sum(batch.num_rows for batch in batches) > 1000
    assert running.progress == 1


def test_a_table_reads_the_replay_and_an_error_before_that_does_not() -> None:
    replay = trades()
    with pytest.raises(ColumnError, match="trade has no column 'prices'; it has symbol"):
        replay.to_arrow(columns=["prices"])
    with pytest.raises(ChoiceError, match="numbers='exact'"):
        replay.to_pandas(numbers="exact")  # type: ignore[arg-type]
    assert replay.to_arrow().num_rows > 50
    with pytest.raises(ReplayEndedError, match="was read to its end"):
        replay.to_pandas()
    begun = trades()
    next(begun)
    with pytest.raises(ReplayEndedError, match="is being read"):
        begun.to_arrow()


def test_an_error_of_the_replay_is_that_of_the_table(tmp_path: Path) -> None:
    bad = f"{stamp(2)}0Z ".encode() + b'{"table":"trade","action":"insert","data":[7]}\n'
    start = datetime(2024, 3, 1, tzinfo=UTC)
    write(tmp_path, "bitmex", start, iter([trade(1) + bad]), filters=[Filter("trade")])
    stored = {"sample": False, "cache_dir": tmp_path}
    with pytest.raises(NormalizeError, match="bitmex"):
        trades(strict=True, **stored).to_arrow()
    batches = trades(strict=True, **stored).to_arrow_batches()
    with pytest.raises(NormalizeError, match="bitmex"):
        batches.read_all()
    assert trades(**stored).to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("method", "missing", "extra"),
    [
        ("to_arrow", "pyarrow", "arrow"),
        ("to_pandas", "pandas", "pandas"),
        ("to_pandas", "pyarrow", "pandas"),
        ("to_polars", "polars", "polars"),
        ("to_polars", "pyarrow", "polars"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(
    method: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    replay = trades()
    with pytest.raises(MissingExtraError, match=rf"{missing} .*tardis-machine\[{extra}\]"):
        getattr(replay, method)()
    assert next(replay)
