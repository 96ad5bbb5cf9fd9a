"""The manifest: what backfills have finished, a line for each layer and data type."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import uuid4

from tardis_machine.lake.records import schema_of
from tardis_machine.lake.session import frame
from tardis_machine.lake.spans import day, literal, moment
from tardis_machine.lake.tables import MANIFEST, Commit, Tables
from tardis_machine.lake.units import DISCONNECT, LAYERS, Done, Unit

MALFORMED: Final = "malformed"
"""The data type under which recorded lines that cannot be normalized are counted."""


class Count(NamedTuple):
    """How many events there were, and how many more are in quarantine, or dead letters.

    `filtered` are those that a bus's allow-list leaves out.
    """

    events: int
    rejected: int = 0
    filtered: int = 0


Counts = Mapping[tuple[str, str], Count]
"""By layer and data type."""


def finished(tables: Tables, layers: Sequence[str] = LAYERS) -> list[Done]:
    """Read what earlier backfills have finished, in these layers."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not tables.exists(MANIFEST):
        return []
    written = tables.read(MANIFEST)
    if "layer" not in written.columns:
        # Of a version that cut days anywhere: what it says is there may not be.
        return []
    lines = written.where(written.layer.isin(*layers)).select(
        "exchange",
        f.unix_micros("start"),
        f.unix_micros("end"),
        "layer",
        "data_type",
        "symbols",
        "generation",
    )
    return [
        Done(
            exchange,
            start,
            end,
            layer,
            data_type,
            None if symbols is None else tuple(symbols),
            generation,
        )
        for exchange, start, end, layer, data_type, symbols, generation in lines.collect()
    ]


class FinishedDay(NamedTuple):
    """A day and data type of an exchange that the manifest lists as finished."""

    exchange: str
    day: int
    """Counted from 1970."""
    data_type: str


def with_events(tables: Tables, layer: str) -> list[FinishedDay]:
    """Read the finished days of a layer for which backfills counted events."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not tables.exists(MANIFEST):
        return []
    written = tables.read(MANIFEST)
    if "layer" not in written.columns:
        return []
    lines = written.where((written.layer == layer) & (written.events > 0))
    days = lines.select("exchange", f.unix_date("day"), "data_type").distinct().collect()
    return [FinishedDay(*row) for row in days]


def forget(tables: Tables, layer: str, days: Iterable[FinishedDay]) -> None:
    """Delete the lines of finished days of a layer, so that a backfill brings them in again."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for each in days:
        numbers.setdefault((each.exchange, each.data_type), set()).add(each.day)
    if not numbers:
        return
    which = " OR ".join(
        f"(exchange = {literal(exchange)} AND data_type = {literal(data_type)} "
        f"AND day IN ({', '.join(map(day, sorted(own)))}))"
        for (exchange, data_type), own in sorted(numbers.items())
    )
    tables.delete(MANIFEST, f"layer = {literal(layer)} AND ({which})")


def write_down(tables: Tables, unit: Unit, counts: Counts) -> None:
    """Append a finished unit's lines.

    Where two backfills do the same at once, both do, and say the same.
    """
    day = moment(unit.start)
    now = datetime.now(UTC)
    lines = [
        (
            unit.exchange,
            day.date(),
            day,
            moment(unit.end),
            layer,
            data_type,
            None if unit.symbols is None or data_type == DISCONNECT else list(unit.symbols),
            count.events,
            count.rejected,
            count.filtered,
            unit.id,
            unit.generation,
            now,
        )
        for (layer, data_type), count in counts.items()
    ]
    rows = frame(tables.spark, lines, schema_of(MANIFEST.columns))
    # Delta remembers ids for good: with the unit's own, a day that was dropped and brought in again
    # would pass for written down.
    commit = Commit(f"backfill/{unit.id}/{uuid4().hex}", unit.generation)
    tables.append_once(rows.coalesce(1), MANIFEST, commit)
