"""Quarantine tried again, after an upgrade or a repair: what is sound goes where it belongs."""

from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake import events as bronze
from tardis_machine.lake import quarantine, silver
from tardis_machine.lake.batches import write_silver
from tardis_machine.lake.groups import grouped
from tardis_machine.lake.records import KEPT
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FROM_HISTORY: Final = (quarantine.NORMALIZE, quarantine.ENCODE)
_PLACE: Final = ("bus", "destination", "partition", "offset", "event_id")


class Released(NamedTuple):
    """What releasing did."""

    released: int
    left: int
    redo: list[tuple[str, date]]
    """Days of exchanges whose lines only a forced backfill can bring in."""


def release(tables: Tables) -> Released:
    """Bring what is sound by now into Bronze and Silver, and take it out of quarantine."""
    held = quarantine.held(tables)
    if not held:
        return Released(0, 0, [])
    redo = {
        (each.exchange, each.day)
        for each in held
        if each.stage in _FROM_HISTORY and each.exchange and each.day
    }
    everything = tables.read(QUARANTINE)
    before = everything.count()
    read = everything.where(everything.stage == quarantine.BRONZE)
    known = everything.where(everything.stage == quarantine.SILVER)
    _release_records(tables, read.select(*KEPT))
    _release_events(tables, known.select(*KEPT))
    left = tables.read(QUARANTINE).count()
    return Released(before - left, left, sorted(redo))


def _release_records(tables: Tables, records: "DataFrame") -> None:
    """Append what can be read by now to Bronze, bring it into Silver, and forget it here."""
    inspected = bronze.inspected(records).persist()
    try:
        events = bronze.events(inspected)
        groups = grouped(events)
        if groups:
            tables.insert_new(lambda: events, EVENTS, _PLACE)
            write_silver(tables, events, groups)
            tables.delete_matching(events.select(quarantine.place().alias("id")), QUARANTINE, "id")
    finally:
        inspected.unpersist()


def _release_events(tables: Tables, records: "DataFrame") -> None:
    """Bring what Silver can hold by now into it, and forget it here."""
    inspected = bronze.inspected(records).persist()
    try:
        events = bronze.events(inspected)
        groups = grouped(events)
        write_silver(tables, events, groups)
        for case in {group.case for group in groups if group.case in SILVER}:
            rows = silver.rows(events, case)
            sound = rows.where(rows.defect.isNull())
            tables.delete_matching(
                sound.select(quarantine.event_place().alias("id")), QUARANTINE, "id"
            )
    finally:
        inspected.unpersist()
