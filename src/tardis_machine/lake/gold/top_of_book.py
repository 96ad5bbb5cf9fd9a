"""Gold: best bid and ask, spread and depth at intervals, from the rebuilt books."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.gold.books import BOOKS
from tardis_machine.lake.gold.table import KEY, GoldTable, Job, gold
from tardis_machine.lake.spans import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS: Final[dict[str, str]] = {
    **KEY,
    "event_ts": "TIMESTAMP",
    "local_ts": "TIMESTAMP",
    "bid_price": "DOUBLE",
    "bid_amount": "DOUBLE",
    "ask_price": "DOUBLE",
    "ask_amount": "DOUBLE",
    "mid_price": "DOUBLE",
    "spread": "DOUBLE",
    "spread_bps": "DOUBLE",
    "bid_depth": "DOUBLE",
    "ask_depth": "DOUBLE",
    "imbalance": "DOUBLE",
    "levels": "BIGINT",
    "origin": "STRING",
}


def rows(job: Job) -> "DataFrame":
    """Give the top of each snapshot of some days."""
    books = job.rows(BOOKS.table).where(f"name = {literal(job.variant)}")
    return books.selectExpr(
        *(*KEY, "event_ts", "local_ts", "origin"),
        "bids[0].price AS bid_price",
        "bids[0].amount AS bid_amount",
        "asks[0].price AS ask_price",
        "asks[0].amount AS ask_amount",
        f"{_amount('bids')} AS bid_depth",
        f"{_amount('asks')} AS ask_depth",
        "depth AS levels",
    ).selectExpr(
        "*",
        "(bid_price + ask_price) / 2 AS mid_price",
        "ask_price - bid_price AS spread",
        "(ask_price - bid_price) / nullif((bid_price + ask_price) / 2, 0) * 10000 AS spread_bps",
        "(bid_depth - ask_depth) / nullif(bid_depth + ask_depth, 0) AS imbalance",
    )


def _amount(side: str) -> str:
    return f"aggregate({side}, 0D, (sum, level) -> sum + coalesce(level.amount, 0D))"


TOP_OF_BOOK: Final = GoldTable(
    gold(
        "top_of_book",
        _COLUMNS,
        {
            "name": "the data type of the snapshots, such as book_snapshot_10_1s",
            "event_ts": "end of the interval, or the time of the first snapshot, UTC",
            "local_ts": "arrival of the message that ended the interval, UTC, microseconds",
            "mid_price": "between best bid and ask, in the quote currency",
            "spread": "best ask less best bid, in the quote currency",
            "spread_bps": "the same in basis points of the price between them",
            "bid_depth": "amount of the first levels to buy, in the exchange's unit",
            "ask_depth": "amount of the first levels to sell, in the exchange's unit",
            "imbalance": "from -1, all of the depth to sell, to 1, all of it to buy",
            "levels": "how many levels on each side count for the depth",
        },
    ),
    (BOOKS.table,),
    rows,
)
