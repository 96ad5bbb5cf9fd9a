"""Gold: book snapshots, rebuilt from Silver's book changes with the server's own order book."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tardis_machine.engine import Emitter
from tardis_machine.lake.gold.emitted import BROKEN, emitted, micros, texts
from tardis_machine.lake.gold.table import KEY, GoldTable, Job, gold
from tardis_machine.lake.tables import SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES: Final = SILVER["bookChange"]
_LEVELS: Final = "ARRAY<STRUCT<price: DOUBLE, amount: DOUBLE>>"
_COLUMNS: Final[dict[str, str]] = {
    **KEY,
    "event_ts": "TIMESTAMP",
    "local_ts": "TIMESTAMP",
    "depth": "BIGINT",
    "interval_ms": "DOUBLE",
    "grouping": "DOUBLE",
    "bids": _LEVELS,
    "asks": _LEVELS,
    "origin": "STRING",
}


def rows(job: Job) -> "DataFrame":
    """Give the snapshots of some days: one for each interval in which the levels changed."""
    changes = job.rows(_CHANGES).select(
        *("exchange", "day", "symbol", "local_ts", "position", "event_ts"),
        *("is_snapshot", "bids", "asks"),
    )
    return emitted(job, "book_change", changes, _changes, _columns, _COLUMNS)


def _changes(batch: pa.RecordBatch) -> Callable[[Emitter, int], None]:
    symbols = batch.column("symbol").to_pylist()
    snapshots = batch.column("is_snapshot").to_pylist()
    times = micros(batch.column("event_ts"))
    bids, asks = _Levels(batch.column("bids")), _Levels(batch.column("asks"))

    def change(emitter: Emitter, row: int) -> None:
        emitter.book_change(
            symbols[row], snapshots[row], bids.of(row), asks.of(row), times[row] or None
        )

    return change


class _Levels:
    """One side's levels of a batch, as pairs of text."""

    def __init__(self, lists: pa.ListArray) -> None:
        items = lists.flatten()
        prices, amounts = texts(items.field("price")), texts(items.field("amount"))
        self._pairs = list(zip(prices, amounts, strict=True))
        # Of the whole batch, as Spark sends it: offsets begin at 0.
        self._offsets = lists.offsets.to_pylist()

    def of(self, row: int) -> list[tuple[str, str]]:
        return self._pairs[self._offsets[row] : self._offsets[row + 1]]


def _columns(snapshots: pa.RecordBatch) -> dict[str, pa.Array]:
    return {
        **{name: snapshots.column(name) for name in ("depth", "grouping", "bids", "asks")},
        "event_ts": snapshots.column("timestamp"),
        "local_ts": snapshots.column("local_timestamp"),
        "interval_ms": snapshots.column("interval"),
    }


BOOKS: Final = GoldTable(
    gold(
        "books",
        _COLUMNS,
        {
            "event_ts": "end of the interval, or the time of the first snapshot, UTC",
            "local_ts": "arrival of the message that ended the interval, UTC, microseconds",
            "grouping": "width of a price group, in the quote currency; null for single levels",
            "bids": "the first levels to buy, best first; both null where there is none",
            "asks": "the first levels to sell, best first; both null where there is none",
        },
    ),
    (_CHANGES,),
    rows,
    beside=BROKEN,
)
