import re
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest

from tardis_machine.engine import columns as arrow
from tardis_machine.engine.datatypes import DataTypeError
from tardis_machine.extras import MissingExtraError
from tardis_machine.messages import Message, MessageError, decode_lines
from tardis_machine.messages.numbers import of_float
from tardis_machine.replays import replay_normalized
from tests.support.payload_lines import LINES

TIME = pa.timestamp("us", tz="UTC")
LEVELS = pa.list_(pa.struct([("price", pa.float64()), ("amount", pa.float64())]))

TYPES = {
    "bitmex": ["trade", "book_change", "liquidation", "book_ticker", "trade_bar_10s"],
    "deribit": ["option_summary", "derivative_ticker", "quote", "book_snapshot_3_1s", "disconnect"],
    "binance-futures": ["derivative_ticker", "trade_bar_5ticks", "book_snapshot_2_grouped10_0ms"],
}


NUMBERS: dict[arrow.Numbers, Callable[[float], Any]] = {
    "float": float,
    "decimal": lambda value: Decimal(of_float(value)),
    "text": of_float,
}


@cache
def replayed(exchange: str) -> tuple[bytes, ...]:
    """What there is of an exchange, of all its types."""
    with replay_normalized(
        exchange=exchange,
        from_="2024-03-01",
        to="2024-03-01T00:05:00Z",
        data_types=[each for each in TYPES[exchange] if each != "disconnect"],
        with_disconnect_messages=True,
        sample=True,
    ) as replay:
        return tuple(batch.data for batch in replay.batches())


def table(data: Iterable[bytes], data_type: str, **choice: Any) -> pa.Table:
    return arrow.reader(data, arrow.Layout(data_type, **choice)).read_all()


def rows(
    messages: list[Message], data_type: str, number: Callable[[float], Any] = float
) -> list[dict[str, Any]]:
    """The slow and plain way: field by field."""

    def plain(value: Any, hint: Any) -> Any:
        if isinstance(value, list):
            return [
                each
                if isinstance(each, str)
                else {"price": plain(each.price, ""), "amount": plain(each.amount, "")}
                for each in value
            ]
        if isinstance(value, float):
            return number(value)
        if "Time" in str(hint) and value is not None:
            seconds, microseconds = divmod(int(value), 1_000_000)
            return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
        return value

    return [
        {
            name: plain(getattr(message, name), type(message).__annotations__[name])
            for name in message.__struct_fields__
        }
        for message in messages
        if data_type in (message.__struct_config__.tag, getattr(message, "name", None))
    ]


@pytest.mark.parametrize(
    ("exchange", "data_type"), [(name, each) for name, types in TYPES.items() for each in types]
)
def test_a_column_per_field_and_a_row_per_message(exchange: str, data_type: str) -> None:
    data = replayed(exchange)
    messages = decode_lines(b"".join(data))
    for numbers, number in NUMBERS.items():
        got = table(data, data_type, numbers=numbers)
        assert got.schema == arrow.schema(data_type, numbers=numbers)
        expected = rows(messages, data_type, number)
        assert expected
        assert got.to_pylist() == expected


def test_schemas_are_what_data_frames_expect() -> None:
    assert arrow.schema("trade") == pa.schema(
        [
            ("symbol", pa.string()),
            ("exchange", pa.string()),
            ("id", pa.string()),
            ("price", pa.float64()),
            ("amount", pa.float64()),
            ("side", pa.string()),
            ("timestamp", TIME),
            ("local_timestamp", TIME),
        ]
    )
    snapshot = arrow.schema("book_snapshot_5_0ms")
    assert snapshot == arrow.schema("quote")
    assert snapshot.field("bids").type == LEVELS
    assert snapshot.field("depth").type == pa.int64()
    assert arrow.schema("book_change").field("is_snapshot").type == pa.bool_()
    assert arrow.schema("option_summary").field("best_bid_iv").type == pa.float64()


@pytest.mark.parametrize("struct", get_args(Message))
def test_every_message_has_a_schema(struct: type[msgspec.Struct]) -> None:
    names = arrow.schema(str(struct.__struct_config__.tag)).names
    assert names == list(struct.__struct_fields__)


def test_columns_may_be_chosen() -> None:
    got = table(replayed("bitmex"), "trade", columns=["price", "local_timestamp"])
    assert got.schema == pa.schema([("price", pa.float64()), ("local_timestamp", TIME)])
    assert got.num_rows > 100
    with pytest.raises(arrow.ColumnError, match=r"trade has no column 'prize'; it has symbol, "):
        arrow.schema("trade", columns=["prize"])
    with pytest.raises(arrow.ChoiceError, match="expected at least one"):
        arrow.schema("trade", columns=[])


def test_a_type_that_does_not_exist() -> None:
    with pytest.raises(DataTypeError, match="invalid data type: trades"):
        arrow.schema("trades")


def test_a_replay_without_the_type_gives_an_empty_table() -> None:
    got = table(replayed("bitmex"), "option_summary")
    assert got.num_rows == 0
    assert got.schema == arrow.schema("option_summary")


def line(identifier: str, price: str) -> bytes:
    return (
        f'{{"type":"trade","symbol":"A","exchange":"e","id":{identifier},"price":{price},'
        '"amount":1,"side":"buy","timestamp":"2024-03-01T00:00:00.001Z",'
        '"localTimestamp":"2024-03-01T00:00:00.001002Z"}\n'
    ).encode()


def test_numbers_of_any_form_and_numeric_ids() -> None:
    data = line('"a"', "1e+21") + line("17", "1e-7") + line("1.5", "0.30000000000000004")
    got = table([data], "trade")
    assert got["id"].to_pylist() == ["a", "17", "1.5"]
    assert got["price"].to_pylist() == [1e21, 1e-7, 0.30000000000000004]
    assert got["local_timestamp"].cast(pa.int64()).to_pylist() == [1709251200001002] * 3
    assert got.schema == arrow.schema("trade")


def test_exact_numbers_are_exact_or_refused() -> None:
    exact = ["0.000000000000000001", "12345678901234567890", "-0.30000000000000004"]
    data = b"".join(line('"a"', each) for each in exact)
    assert table([data], "trade", numbers="decimal")["price"].to_pylist() == [*map(Decimal, exact)]
    any_number = [*exact, "3.5e+20", "350000000000000000000", "1e+22", "1.5e-18"]
    data = b"".join(line("7", each) for each in any_number)
    got = table([data], "trade", numbers="text")
    assert got["price"].to_pylist() == any_number
    assert set(got["id"].to_pylist()) == {"7"}
    for each in any_number[len(exact) :]:
        with pytest.raises(arrow.NumberError, match=re.escape(each)):
            table([line('"a"', each)], "trade", numbers="decimal")
    with pytest.raises(ValueError, match="numbers='exact': expected float, decimal, text"):
        arrow.schema("trade", numbers="exact")  # type: ignore[arg-type]


def test_counts_stay_counts_and_text_stays_text() -> None:
    bar = LINES["tradeBar"].replace(b'"symbol":"', b'"symbol":"a\\":5,') + b"\n"
    for numbers in NUMBERS:
        got = table([bar], "trade_bar_10s", numbers=numbers).to_pylist()[0]
        assert got["symbol"].startswith('a":5,')
        assert isinstance(got["trades"], int)


@pytest.mark.parametrize(
    ("exchange", "data_type", "depth"),
    [("deribit", "quote", 1), ("binance-futures", "book_snapshot_2_grouped10_0ms", 2)],
)
def test_levels_may_have_columns_of_their_own(exchange: str, data_type: str, depth: int) -> None:
    data = replayed(exchange)
    nested, wide = (table(data, data_type, levels=each) for each in ("nested", "wide"))
    names = [
        f"{side}[{level}].{part}"
        for side in ("bids", "asks")
        for level in range(depth)
        for part in ("price", "amount")
    ]
    assert [name for name in wide.column_names if name not in nested.column_names] == names
    for name in names:
        expected = [row[name[:4]][int(name[5])][name[8:]] for row in nested.to_pylist()]
        assert wide[name].to_pylist() == expected
    chosen = table(data, data_type, levels="wide", columns=["asks[0].price", "symbol"])
    assert chosen == wide.select(["asks[0].price", "symbol"])
    with pytest.raises(arrow.LevelsError, match="book_change"):
        arrow.schema("book_change", levels="wide")
    with pytest.raises(ValueError, match="levels='flat': expected nested, wide"):
        arrow.schema("quote", levels="flat")  # type: ignore[arg-type]


def test_levels_that_a_book_does_not_have_are_null() -> None:
    snapshot = (
        b'{"type":"book_snapshot","symbol":"A","exchange":"e","name":"book_snapshot_2_0ms",'
        b'"depth":2,"interval":0,"bids":[{"price":1,"amount":2},{}],"asks":[{},{}],'
        b'"timestamp":"2024-03-01T00:00:00.000Z","localTimestamp":"2024-03-01T00:00:00.000000Z"}\n'
    )
    got = table([snapshot * 2], "book_snapshot_2_0ms", levels="wide")
    assert got["bids[0].amount"].to_pylist() == [2, 2]
    assert got["bids[1].price"].to_pylist() == got["asks[0].amount"].to_pylist() == [None, None]


def test_a_bar_without_volume_has_no_average() -> None:
    bar = LINES["tradeBar"]
    data = b"%b\n%b\n" % (bar, bar.replace(b'"vwap":1.25', b'"vwap":null'))
    assert table([data], "trade_bar_10s")["vwap"].to_pylist() == [1.25, None]


def test_what_is_no_message_is_an_error() -> None:
    with pytest.raises(MessageError, match="line 2"):
        table([line('"a"', "1") + line('"b"', '"one"')], "trade")


def test_long_replays_come_in_batches_of_bounded_size() -> None:
    batch = line('"a"', "1") * 1000
    sizes = [each.num_rows for each in arrow.reader([batch] * 100, arrow.Layout("trade"))]
    assert sum(sizes) == 100_000
    assert len(sizes) > 3
    assert max(sizes) < 30_000


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"tardis-machine\[arrow\]"):
        arrow.schema("trade")


def test_importing_the_package_does_not_import_pyarrow(tmp_path: Path) -> None:
    import subprocess

    code = "import sys, tardis_machine.engine.columns; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
