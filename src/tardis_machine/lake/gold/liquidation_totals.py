"""Gold: liquidations added up at intervals."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.gold.series import COMMENTS, SERIES, summed_up
from tardis_machine.lake.gold.table import GoldTable, Job, gold
from tardis_machine.lake.tables import SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LIQUIDATIONS: Final = SILVER["liquidation"]
_COLUMNS: Final[dict[str, str]] = {
    **SERIES,
    "buys": "BIGINT",
    "sells": "BIGINT",
    "unknown": "BIGINT",
    "buy_amount": "DOUBLE",
    "sell_amount": "DOUBLE",
    "amount": "DOUBLE",
    "largest_amount": "DOUBLE",
    "low": "DOUBLE",
    "high": "DOUBLE",
    "origin": "STRING",
}


def rows(job: Job) -> "DataFrame":
    """Give the totals of intervals that have any."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    def amount(side: str) -> str:
        return f"CAST(coalesce(sum(amount) FILTER (WHERE side = '{side}'), 0) AS DOUBLE)"

    return summed_up(
        job,
        job.rows(_LIQUIDATIONS),
        *(
            f.count_if(f.col("side") == side).alias(name)
            for name, side in (("buys", "buy"), ("sells", "sell"), ("unknown", "unknown"))
        ),
        f.expr(amount("buy")).alias("buy_amount"),
        f.expr(amount("sell")).alias("sell_amount"),
        f.sum("amount").cast("double").alias("amount"),
        f.max("amount").cast("double").alias("largest_amount"),
        f.min("price").cast("double").alias("low"),
        f.max("price").cast("double").alias("high"),
    )


LIQUIDATION_TOTALS: Final = GoldTable(
    gold(
        "liquidation_totals",
        _COLUMNS,
        {
            **COMMENTS,
            "buys": "liquidations that bought: of short positions",
            "sells": "liquidations that sold: of long positions",
            "unknown": "liquidations whose side the exchange did not tell",
            "buy_amount": "amount of those that bought, in the exchange's unit",
            "sell_amount": "amount of those that sold, in the exchange's unit",
            "amount": "amount of all, in the exchange's unit",
            "largest_amount": "amount of the largest, in the exchange's unit",
        },
    ),
    (_LIQUIDATIONS,),
    rows,
)
