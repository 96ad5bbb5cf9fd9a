"""The page for Python says which columns tables have."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tardis_machine.engine.columns import schema

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (`symbol` .*|`exchange` .*) \|$", PAGE, re.MULTILINE))
KINDS = {
    "text": pa.string(),
    "number": pa.float64(),
    "count": pa.int64(),
    "flag": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "levels": pa.list_(pa.struct([("price", pa.float64()), ("amount", pa.float64())])),
    "texts": pa.list_(pa.string()),
}


@pytest.mark.parametrize(
    "message",
    [
        *("trade", "book_change", "derivative_ticker", "book_ticker", "liquidation"),
        *("option_summary", "book_snapshot", "trade_bar", "disconnect"),
    ],
)
def test_columns_are_as_the_page_says(message: str) -> None:
    told = [tuple(each.split(" ")) for each in ROWS[message].split(", ")]
    assert pa.schema([(name.strip("`"), KINDS[kind]) for name, kind in told]) == schema(message)
