"""A readable sample of a table."""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tardis_machine.lake import silver
from tardis_machine.lake.catalog import TABLES
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.session import moved
from tardis_machine.lake.tables import SILVER, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BOOK_LEVELS: Final = "book_levels"
"""The view of `book_changes` with a row for each level."""
_WIDEST: Final = 48
# SQL's own classes of errors: in what was written, or in what it computes with.
_CONDITION_STATES: Final = ("42", "22", "21", "0A", "P0")
_WRAPPING: Final = re.compile(r"^\[[A-Z0-9_.]+\] *|[ .]*SQLSTATE: .*$")


def names() -> list[str]:
    """Name all tables and views."""
    return [*TABLES, BOOK_LEVELS]


def frame(tables: Tables, name: str) -> "DataFrame":
    """Give a table or view by its name."""
    if name == BOOK_LEVELS:
        return silver.book_levels(tables.read(SILVER["bookChange"]))
    if name not in TABLES:
        raise LakeError(f"{name}: expected one of {', '.join(names())}")
    return tables.read(TABLES[name])


def views(tables: Tables) -> list[str]:
    """Make a temporary view of every table that is there, in the session that was handed in."""
    made = [name for name, table in TABLES.items() if tables.exists(table)]
    if "book_changes" in made:
        made.append(BOOK_LEVELS)
    for name in made:
        moved(frame(tables, name), tables.given).createOrReplaceTempView(name)
    return made


def matching(rows: "DataFrame", condition: str, limit: int) -> str:
    """Write some rows that a condition in SQL meets; raises LakeError if it is none on them."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

    try:
        return text(rows.where(condition), limit)
    except PySparkException as error:
        if not (error.getSqlState() or "").startswith(_CONDITION_STATES):
            raise
        reason = _WRAPPING.sub("", str(error).strip().splitlines()[0])
        columns = ", ".join(rows.columns)
        raise LakeError(f"{reason}. Expected a condition on the columns {columns}") from None


def text(rows: "DataFrame", limit: int) -> str:
    """Write some rows as an aligned table, without what is not readable."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    columns = [name for name, kind in rows.dtypes if kind != "binary"]
    # Written by Spark, in the session's zone: a datetime would arrive in that of this machine.
    readable = [
        f.col(name).cast("string").alias(name) if kind == "timestamp" else f.col(f"`{name}`")
        for name, kind in rows.dtypes
        if name in columns
    ]
    found = rows.select(*readable).limit(limit).collect()
    lines = [columns, *([_cell(value) for value in row] for row in found)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    written = _written(value)
    return written if len(written) <= _WIDEST else written[: _WIDEST - 1] + "…"


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, list):
        shown = ", ".join(map(_written, value[:3]))
        return f"[{shown}, … {len(value)}]" if len(value) > 3 else f"[{shown}]"
    if isinstance(value, tuple):
        return "@".join(_written(part) for part in reversed(value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_written(part)}" for key, part in value.items())
    return str(value)
