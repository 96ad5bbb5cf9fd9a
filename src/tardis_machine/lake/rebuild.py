"""Silver made anew: Bronze has every byte that Silver came from."""

import logging

from tardis_machine.lake.batches import write_silver
from tardis_machine.lake.groups import grouped
from tardis_machine.lake.tables import EVENTS, SILVER, Tables

log = logging.getLogger(__name__)


def rebuild(tables: Tables) -> None:
    """Empty Silver, then fill it from Bronze, a day of an exchange at a time."""
    events = tables.read(EVENTS)
    for table in SILVER.values():
        if tables.exists(table):
            tables.delete(table, "true")
    days = events.select("exchange", "day").distinct().orderBy("day", "exchange").collect()
    for number, (exchange, day) in enumerate(days, 1):
        own = events.where((events.exchange == exchange) & (events.day == day))
        groups = grouped(own)
        inserted, _ = write_silver(tables, own, groups)
        log.info(
            "day rebuilt",
            extra={
                "exchange": exchange,
                "day": day,
                "events": sum(group.events for group in groups),
                "new_rows": sum(inserted.values()),
                "done": f"{number}/{len(days)}",
            },
        )
