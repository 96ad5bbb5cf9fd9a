"""Slices of history in a cache directory, with lines that name their minute."""

from collections.abc import Callable
from pathlib import Path

import zstandard

from tardis_machine.history import Filter
from tardis_machine.history.cache import MINUTE, Cache
from tardis_machine.history.filters import cache_keys
from tests.support.servers.tardis_api import numbered_lines

START = 1709251200 * 1_000_000 // MINUTE
"""2024-03-01T00:00Z, in minutes."""
FILTERS = [Filter("trades", ("BTC/USD",))]
KEY = cache_keys(FILTERS)[0]


def expected(start: int, end: int) -> bytes:
    """Return the lines of these minutes, counted from the start."""
    return b"".join(numbered_lines("ftx", START + each) for each in range(start, end))


def write(
    directory: Path,
    start: int,
    minutes: int = 1,
    key: str = KEY,
    lines: Callable[[str, int], bytes] = numbered_lines,
) -> Path:
    """Write a slice of minutes into the cache, as another client does; return its path."""
    path = Cache(directory).path("ftx", key, START + start, minutes, "zst")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(lines("ftx", START + each) for each in range(start, start + minutes))
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    return path
