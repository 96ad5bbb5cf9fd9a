"""Gold: funding, basis and open interest at intervals, from derivative tickers."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.gold.series import COMMENTS, SERIES, last, summed_up
from tardis_machine.lake.gold.table import GoldTable, Job, gold
from tardis_machine.lake.tables import SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TICKERS: Final = SILVER["derivativeTicker"]
_NUMBERS: Final = (
    "last_price",
    "mark_price",
    "index_price",
    "funding_rate",
    "predicted_funding_rate",
    "open_interest",
)
_COLUMNS: Final[dict[str, str]] = {
    **SERIES,
    **dict.fromkeys(_NUMBERS, "DOUBLE"),
    "funding_ts": "TIMESTAMP",
    "basis": "DOUBLE",
    "basis_bps": "DOUBLE",
    "open_interest_change": "DOUBLE",
    "tickers": "BIGINT",
    "origin": "STRING",
}


def rows(job: Job) -> "DataFrame":
    """Give the last ticker of each interval: a ticker has all that is known of its symbol."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    known = summed_up(
        job,
        job.rows(_TICKERS),
        last(*_NUMBERS, "funding_ts"),
        f.min_by("open_interest", f.struct("local_ts", "position")).alias("first_interest"),
        f.count("*").alias("tickers"),
    )
    return known.select(
        *SERIES,
        "tickers",
        "origin",
        "last.funding_ts",
        *(f.col(f"last.{name}").cast("double").alias(name) for name in _NUMBERS),
        (f.col("last.mark_price") - f.col("last.index_price")).cast("double").alias("basis"),
        f.expr(
            "(CAST(last.mark_price AS DOUBLE) / nullif(CAST(last.index_price AS DOUBLE), 0) - 1)"
            " * 10000"
        ).alias("basis_bps"),
        (f.col("last.open_interest") - f.col("first_interest"))
        .cast("double")
        .alias("open_interest_change"),
    )


DERIVATIVES: Final = GoldTable(
    gold(
        "derivatives",
        _COLUMNS,
        {
            **COMMENTS,
            "basis": "mark less index, in the quote currency",
            "basis_bps": "the same in basis points of the index",
            "open_interest_change": "from the interval's first ticker to its last",
            "tickers": "how many tickers the interval had",
        },
    ),
    (_TICKERS,),
    rows,
)
