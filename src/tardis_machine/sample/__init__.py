"""Sample data: a few minutes of three exchanges, generated, shipped in the cache's layout."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tardis_machine.sample.selection import LABELS, select

if TYPE_CHECKING:
    from tardis_machine.filters import Filter

EXCHANGES: Final = tuple(LABELS)
START: Final = datetime(2024, 3, 1, tzinfo=UTC)
MINUTES: Final = 5


def cache_dir() -> Path:
    """The cache directory that holds the sample data."""
    return Path(__file__).parent / "data"


def covers(exchange: str, start: int, end: int) -> bool:
    """Tell whether the sample data has these minutes (in microseconds) of this exchange."""
    first = int(START.timestamp()) * 1_000_000
    return exchange in LABELS and start >= first and end <= first + MINUTES * 60_000_000


def description() -> str:
    """What there is, for someone who asked for something else."""
    return (
        f"{', '.join(EXCHANGES)} from {START:%Y-%m-%dT%H:%M}Z "
        f"to {START + timedelta(minutes=MINUTES):%H:%M}Z"
    )


def selection(exchange: str, filters: "Sequence[Filter]") -> Callable[[bytes], bytes] | None:
    """A function that keeps the lines of a piece that filters ask for; None if they ask for all."""
    if not filters:
        return None
    wanted = {each.channel: each.symbols for each in filters}
    label = LABELS[exchange]
    return lambda piece: select(piece, label, wanted)
