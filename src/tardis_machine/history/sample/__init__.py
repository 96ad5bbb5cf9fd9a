"""Synthetic sample data: generated minutes of three exchanges, in the cache's layout."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from tardis_machine.history import History, Select
from tardis_machine.history.filters import Filter
from tardis_machine.history.recorded_lines import select


class _Manifest(msgspec.Struct, frozen=True):
    """The sample's range and, by exchange, a pattern that finds channel and symbol in a message."""

    start: datetime
    minutes: int
    exchanges: dict[str, str]


_FOLDER: Final = Path(__file__).parent
_MANIFEST: Final = msgspec.json.decode((_FOLDER / "manifest.json").read_bytes(), type=_Manifest)

START: Final = _MANIFEST.start
MINUTES: Final = _MANIFEST.minutes
EXCHANGES: Final = tuple(_MANIFEST.exchanges)


class Sample:
    """The `Source` of a history that serves sample data only."""

    directory: Path = _FOLDER / "data"

    def available(self, exchange: str, start: int, end: int) -> tuple[int, int] | None:
        """Return the part of a range (microseconds) with data of an exchange; None if none."""
        first = int(START.timestamp()) * 1_000_000
        begins, ends = max(start, first), min(end, first + MINUTES * 60_000_000)
        return (begins, ends) if exchange in EXCHANGES and begins < ends else None

    def description(self) -> str:
        """Return exchanges and minutes as a text for headers, errors and logs."""
        return (
            f"synthetic sample data of {', '.join(EXCHANGES)} from {START:%Y-%m-%dT%H:%M}Z "
            f"to {START + timedelta(minutes=MINUTES):%H:%M}Z"
        )

    def selection(self, exchange: str, filters: Sequence[Filter]) -> Select | None:
        """Return a function that keeps the lines of a block that filters ask for; None if all."""
        if not filters:
            return None
        wanted = {item.channel: item.symbols for item in filters}
        search = re.compile(_MANIFEST.exchanges[exchange].encode()).search

        def is_wanted(message: bytes) -> bool:
            match = search(message)
            if match is None:
                return False
            channel, symbol = ((match[name] or b"").decode() for name in ("channel", "symbol"))
            if channel not in wanted:
                return False
            symbols = wanted[channel]
            return not symbols or symbol in symbols

        return lambda block: select(block, is_wanted)


SAMPLE: Final = Sample()


def sample_history() -> History:
    """Return a history that holds the synthetic sample data and works offline."""
    return History(source=SAMPLE)
