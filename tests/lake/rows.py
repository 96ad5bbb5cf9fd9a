"""Rows of tables, in a form that can be compared."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def numbered(rows: DataFrame) -> DataFrame:
    """Return rows with timestamps as microseconds: datetimes would have the machine's time zone."""
    return rows.select(
        *(
            f.unix_micros(name).alias(name) if kind == "timestamp" else f.col(name)
            for name, kind in rows.dtypes
        )
    )
