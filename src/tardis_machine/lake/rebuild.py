"""Silver made anew: Bronze has every byte that Silver came from."""

import logging

from tardis_machine.lake.pipeline import build_silver
from tardis_machine.lake.tables import EVENTS, SILVER, Tables

log = logging.getLogger(__name__)


def rebuild(tables: Tables) -> None:
    """Empty Silver, then fill it from Bronze, a day of an exchange at a time."""
    events = tables.read(EVENTS)
    for table in SILVER.values():
        if tables.exists(table):
            tables.spark.sql(f"DELETE FROM {tables.name(table)}").collect()  # noqa: S608
    days = events.select("exchange", "day").distinct().orderBy("day", "exchange").collect()
    for number, (exchange, day) in enumerate(days, 1):
        own = events.where((events.exchange == exchange) & (events.day == day))
        landed = build_silver(tables, own)
        log.info(
            "day rebuilt",
            extra={
                "exchange": exchange,
                "day": day,
                "events": landed.events,
                "new_rows": sum(landed.inserted.values()),
                "done": f"{number}/{len(days)}",
            },
        )
