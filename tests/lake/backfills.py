"""Backfills of the sample data."""

from typing import Any

from tardis_machine.lake import backfill, manifest
from tardis_machine.lake.running import Report
from tardis_machine.lake.tables import Tables
from tardis_machine.lake.units import LAYERS, plan
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.lake.days import MINUTE_US, START_US

SAMPLED = {"sampleData": "true"}
TYPES = ("trade", "trade_bar_10s")


def replay(
    *data_types: str,
    minutes: tuple[int, int] = (0, 2),
    exchange: str = "bitmex",
    symbols: tuple[str, ...] | None = None,
) -> ReplayNormalizedOptions:
    """Return a replay from the first of these minutes up to before the second."""
    return ReplayNormalizedOptions(
        exchange=exchange,
        from_=START_US + minutes[0] * MINUTE_US,
        to=START_US + minutes[1] * MINUTE_US,
        data_types=data_types or TYPES,
        symbols=symbols,
        with_disconnect_messages=True,
    )


def run(
    tables: Tables, *replays: ReplayNormalizedOptions, source: dict[str, str] = SAMPLED, **more: Any
) -> Report:
    """Run a backfill of those minutes of the replays that the tables do not have."""
    done = manifest.finished(tables)
    planned = plan(replays, done, layers=more.pop("layers", LAYERS), force=more.pop("force", False))
    report = backfill.run(tables, planned, source, attempts=1, **more)
    assert not report.failed, report.failed
    return report
