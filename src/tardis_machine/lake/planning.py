"""What a backfill would do: its units, and from a few minutes of each what they might amount to."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tardis_machine.lake.sources.projections import Part, chunks
from tardis_machine.lake.sources.tardis import Where
from tardis_machine.lake.units import BRONZE, SILVER, Unit
from tardis_machine.replays.requests import ReplayNormalizedOptions

_MINUTE_US: Final = 60_000_000
_PROBES: Final = 3
"""Minutes that are replayed for each exchange."""


class Estimate(NamedTuple):
    """What units of one exchange amount to, as far as a few of their minutes tell."""

    exchange: str
    units: int
    minutes: int
    probed: int
    bytes: int | None
    """Of history, as it is fetched; None of sample data."""
    events: int
    seconds: float
    """Of one core, to replay and encode them as often as they are needed."""


def estimate(units: Sequence[Unit], source: Mapping[str, str]) -> Iterator[Estimate]:
    """Replay some minutes of what each exchange is to give, and count; nothing is written."""
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...] | None], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.exchange, unit.data_types, unit.symbols), []).append(unit)
    for (exchange, _, _), own in groups.items():
        minutes = sum(_minutes(unit) for unit in own)
        times = sum(_minutes(unit) * _replays(unit) for unit in own)
        probes = [_minute(own, minutes * (2 * n + 1) // (2 * _PROBES)) for n in range(_PROBES)]
        fetched = events = 0
        probed = list(dict.fromkeys(probes))
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            sample = source.get("sampleData") == "true"
            with Where(folder, source.get("endpoint"), sample).history(_PROBES) as history:
                for unit, start in probed:
                    part = Part(_options(unit, start), start)
                    events += sum(len(c.events) for c in chunks(part, unit.data_types, history))
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            fetched = sum(path.stat().st_size for path in files)
        seconds = time.process_time() - began
        share = 1 / len(probed)
        yield Estimate(
            exchange,
            len(own),
            minutes,
            len(probed),
            None if sample else round(fetched * share * minutes),
            round(events * share * minutes),
            seconds * share * times,
        )


def _minutes(unit: Unit) -> int:
    return (unit.end - unit.start) // _MINUTE_US


def _replays(unit: Unit) -> int:
    """Count how often a unit is replayed: once for Bronze, each Silver table, and a bus."""
    counts = {BRONZE: 1, SILVER: len(unit.cases)}
    return sum(counts.get(layer, 1) for layer in unit.layers)


def _minute(units: Sequence[Unit], number: int) -> tuple[Unit, int]:
    """Find the minute of that number, counted over all units."""
    for unit in units:
        if number < _minutes(unit):
            return unit, unit.start + number * _MINUTE_US
        number -= _minutes(unit)
    raise IndexError(number)


def _options(unit: Unit, start: int) -> ReplayNormalizedOptions:
    return ReplayNormalizedOptions(
        exchange=unit.exchange,
        symbols=unit.symbols,
        from_=start,
        to=start + _MINUTE_US,
        data_types=unit.data_types,
        with_disconnect_messages=True,
    )
