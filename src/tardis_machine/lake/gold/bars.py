"""Gold: trade bars of any size, those that the server computes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tardis_machine.engine import Emitter
from tardis_machine.lake.gold.emitted import BROKEN, emitted, micros, texts
from tardis_machine.lake.gold.table import KEY, GoldTable, Job, gold
from tardis_machine.lake.tables import SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRADES: Final = SILVER["trade"]
_BAR: Final[dict[str, str]] = {
    "open": "DOUBLE",
    "high": "DOUBLE",
    "low": "DOUBLE",
    "close": "DOUBLE",
    "volume": "DOUBLE",
    "buy_volume": "DOUBLE",
    "sell_volume": "DOUBLE",
}
_COLUMNS: Final[dict[str, str]] = {
    **KEY,
    "start_ts": "TIMESTAMP",
    "event_ts": "TIMESTAMP",
    "local_ts": "TIMESTAMP",
    "open_ts": "TIMESTAMP",
    "close_ts": "TIMESTAMP",
    "kind": "STRING",
    "interval": "DOUBLE",
    **_BAR,
    "trade_count": "BIGINT",
    "vwap": "DOUBLE",
    "origin": "STRING",
}


def rows(job: Job) -> "DataFrame":
    """Give the bars of some days; the last of a day is closed when the day is over."""
    trades = job.rows(_TRADES).select(
        "exchange", "day", "symbol", "local_ts", "position", "event_ts", "price", "amount", "side"
    )
    return emitted(job, "trade", trades, _trades, _columns, _COLUMNS)


def _trades(batch: pa.RecordBatch) -> Callable[[Emitter, int], None]:
    symbols, sides = (batch.column(name).to_pylist() for name in ("symbol", "side"))
    prices, amounts = (texts(batch.column(name)) for name in ("price", "amount"))
    times = micros(batch.column("event_ts"))

    def trade(emitter: Emitter, row: int) -> None:
        emitter.trade(symbols[row], None, prices[row], amounts[row], sides[row], times[row] or None)

    return trade


def _columns(bars: pa.RecordBatch) -> dict[str, pa.Array]:
    end, first = bars.column("timestamp"), bars.column("open_timestamp")
    by_time = pc.equal(bars.column("kind"), "time")
    width = pc.multiply(bars.column("interval"), 1000.0).cast(pa.int64(), safe=False)
    start = pc.subtract(end, width.cast(pa.duration("us")))
    return {
        **{name: bars.column(name) for name in (*_BAR, "kind", "interval", "vwap")},
        "start_ts": pc.if_else(by_time, start, first),
        "event_ts": end,
        "local_ts": bars.column("local_timestamp"),
        "open_ts": first,
        "close_ts": bars.column("close_timestamp"),
        "trade_count": bars.column("trades"),
    }


BARS: Final = GoldTable(
    gold(
        "bars",
        _COLUMNS,
        {
            "start_ts": "beginning of a time bar, the first trade of others, UTC",
            "event_ts": "end of a time bar, the last trade of others, UTC",
            "local_ts": "arrival of the trade that ended the bar, or the end of the day, UTC",
        },
    ),
    (_TRADES,),
    rows,
    beside=BROKEN,
    closes_days=True,
)
