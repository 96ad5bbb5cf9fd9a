"""One origin for each day of an exchange: live rows and a backfill's must not be added up."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tardis_machine.lake.gold.parts import days_of
from tardis_machine.lake.tables import Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REPLAY: Final = "replay"

Day = tuple[str, int]


def chosen(tables: Tables, table: Table, days: Iterable[Day]) -> dict[Day, str]:
    """Choose the origin of each of these days; those without rows have none.

    It is the one that has more minutes of symbols; a replay, which misses nothing that was
    recorded, where both have as many.
    """
    found = present(tables.read(table).where(days_of(days)))
    mixed = [key for key, origins in found.items() if len(origins) > 1]
    minutes = _minutes(tables.read(table).where(days_of(mixed))) if mixed else {}

    def best(key: Day, origins: set[str]) -> str:
        ranked = [(minutes.get((*key, each), 0), each == _REPLAY, each) for each in origins]
        return max(ranked)[-1]

    return {key: best(key, origins) for key, origins in found.items()}


def present(rows: "DataFrame") -> dict[Day, set[str]]:
    """Tell which origins there are of each day."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    found: dict[Day, set[str]] = {}
    days = rows.select("exchange", f.unix_date("day"), "origin").distinct()
    for exchange, day, origin in days.collect():
        found.setdefault((exchange, day), set()).add(origin)
    return found


def _minutes(rows: "DataFrame") -> dict[tuple[str, int, str], int]:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    minute = f.floor(f.unix_micros("local_ts") / 60_000_000)
    counted = rows.groupBy("exchange", f.unix_date("day"), "origin").agg(
        f.count_distinct("symbol", minute)
    )
    return {(exchange, day, origin): count for exchange, day, origin, count in counted.collect()}
