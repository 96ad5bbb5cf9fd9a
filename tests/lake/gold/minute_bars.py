"""Trades in Silver, and the minute bars that Gold makes of them."""

from pyspark.sql import DataFrame

from tardis_machine.lake import events as bronze
from tardis_machine.lake import silver
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.refresh import Wanted
from tardis_machine.lake.tables import SILVER, Commit, Tables
from tests.lake.records import records

BARS = GOLD["bars"]
MINUTES = [Wanted(BARS, "trade_bar_1m")]
DAY_MS = 86_400_000


def rows(tables: Tables, *values: bytes) -> DataFrame:
    """Return trades as rows of Silver."""
    events = bronze.events(bronze.inspected(records(tables.spark, values)))
    return silver.rows(events, "trade").drop(silver.DEFECT)


def write(tables: Tables, number: int, *values: bytes) -> None:
    """Append trades to Silver."""
    tables.append_once(rows(tables, *values), SILVER["trade"], Commit("a", number))
