"""Gold: the options surface at intervals, a row for each option that had a summary."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.gold.series import COMMENTS, SERIES, last, summed_up
from tardis_machine.lake.gold.table import GoldTable, Job, gold
from tardis_machine.lake.tables import SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUMMARIES: Final = SILVER["optionSummary"]
_TEXTS: Final = ("underlying_index", "option_type")
_NUMBERS: Final = (
    "strike_price",
    "underlying_price",
    "mark_price",
    "best_bid_price",
    "best_ask_price",
    "mark_iv",
    "best_bid_iv",
    "best_ask_iv",
    "delta",
    "gamma",
    "vega",
    "theta",
    "rho",
    "open_interest",
)
_COLUMNS: Final[dict[str, str]] = {
    **SERIES,
    **dict.fromkeys(_TEXTS, "STRING"),
    "expiration_ts": "TIMESTAMP",
    "days_to_expiry": "DOUBLE",
    "moneyness": "DOUBLE",
    "log_moneyness": "DOUBLE",
    **dict.fromkeys(_NUMBERS, "DOUBLE"),
    "summaries": "BIGINT",
    "origin": "STRING",
}


def rows(job: Job) -> "DataFrame":
    """Give the last summary of each option and interval, and where it stands on the surface."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    known = summed_up(
        job,
        job.rows(_SUMMARIES),
        last(*_TEXTS, *_NUMBERS, "expiration_ts"),
        f.count("*").alias("summaries"),
    )
    flat = known.select(
        *SERIES,
        "summaries",
        "origin",
        "last.expiration_ts",
        *(f.col(f"last.{name}") for name in _TEXTS),
        *(f.col(f"last.{name}").cast("double").alias(name) for name in _NUMBERS),
    )
    left_us = f.unix_micros("expiration_ts") - f.unix_micros("local_ts")
    return flat.select(
        "*",
        (left_us / 86_400_000_000).alias("days_to_expiry"),
        f.expr("strike_price / nullif(underlying_price, 0)").alias("moneyness"),
        f.expr("ln(strike_price / nullif(underlying_price, 0))").alias("log_moneyness"),
    )


OPTION_SURFACE: Final = GoldTable(
    gold(
        "option_surface",
        _COLUMNS,
        {
            **COMMENTS,
            "days_to_expiry": "days from the last message to the expiration",
            "moneyness": "strike over the underlying's price",
            "log_moneyness": "natural logarithm of the moneyness",
            "summaries": "how many summaries the interval had",
        },
    ),
    (_SUMMARIES,),
    rows,
)
