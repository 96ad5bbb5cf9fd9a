import pytest

from tardis_machine.engine import datatypes
from tardis_machine.engine.datatypes import BookSnapshots, DataType, DataTypeError, TradeBars, parse


@pytest.mark.parametrize(
    ("name", "data_type"),
    [
        ("trade", DataType("trade")),
        ("trade_bar_10ticks", TradeBars("trade_bar_10ticks", "tick", 10)),
        ("trade_bar_500ms", TradeBars("trade_bar_500ms", "time", 500)),
        ("trade_bar_1.5s", TradeBars("trade_bar_1.5s", "time", 1500)),
        ("trade_bar_5m", TradeBars("trade_bar_5m", "time", 300_000)),
        ("trade_bar_0.5vol", TradeBars("trade_bar_0.5vol", "volume", 0.5)),
        ("book_snapshot_50_0ms", BookSnapshots("book_snapshot_50_0ms", 50, 0)),
        ("book_snapshot_5_2s", BookSnapshots("book_snapshot_5_2s", 5, 2000)),
        (
            "book_snapshot_3_grouped0.5_100ms",
            BookSnapshots("book_snapshot_3_grouped0.5_100ms", 3, 100, 0.5),
        ),
        ("quote", BookSnapshots("quote", 1, 0)),
        ("quote_10s", BookSnapshots("quote_10s", 1, 10_000)),
    ],
)
def test_reads_names(name: str, data_type: DataType) -> None:
    assert parse(name) == data_type


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trades", "invalid data type: trades"),
        ("trade_bar_10x", "invalid data type: trade_bar_10x"),
        ("trade_bar_tens", "invalid interval: ten, data type: trade_bar_tens"),
        ("trade_bar_0s", "invalid interval: 0"),
        ("trade_bar_-1s", "invalid interval: -1"),
        ("book_snapshot_x_1s", "invalid depth: x"),
        ("book_snapshot_0_1s", "invalid depth: 0"),
        ("book_snapshot_100001_1s", "invalid depth: 100001.*expected 1 to 100000"),
        (f"book_snapshot_{'9' * 5000}_1s", "invalid depth: 9"),
        (f"trade_bar_{'9' * 5000}s", "invalid interval: 9"),
        (f"quote_{'9' * 308}m", "invalid interval: 9"),
        ("book_snapshot_5_s", "invalid interval: "),
        ("book_snapshot_5_groupedx_1s", "invalid interval: x"),
        ("book_snapshot_5_1h", "invalid data type"),
        ("book_snapshot_5", "invalid data type"),
        ("book_snapshot_5_6_7_1s", "invalid data type"),
        ("quote_1h", "invalid data type"),
        ("quotes", "invalid data type"),
    ],
)
def test_refuses_others(name: str, message: str) -> None:
    with pytest.raises(DataTypeError, match=message) as caught:
        parse(name)
    assert caught.value.data_type == name


def test_knows_what_computed_types_are_made_of() -> None:
    asked = datatypes.parse_all(["quote", "trade_bar_1s", "liquidation"])
    assert datatypes.sources(asked) == ("trade", "book_change", "liquidation")
    assert datatypes.sent(asked) == {"liquidation"}
