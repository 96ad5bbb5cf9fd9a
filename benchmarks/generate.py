"""Make an hour of bitmex and binance-futures data, dense books, as cache files.

    python -m benchmarks.generate [--directory benchmarks/.data] [--messages 1200000] [--minutes 60]

The data depends on the arguments and the seed only; what is there already is used again.
"""

import argparse
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tardis_machine.history.cache import Cache
from tardis_machine.history.filters import Filter, cache_keys, normalize
from tests.support.feeds import binance_futures, bitmex
from tests.support.feeds.generator import minutes, write

START: Final = datetime(2024, 3, 1, tzinfo=UTC)
DIRECTORY: Final = Path(__file__).parent / ".data"

_SEED: Final = 1
_DEPTH: Final = 2000
"""Levels a side, as many as the busiest books of these exchanges show."""


class Workload(NamedTuple):
    """An exchange's share: the channels that trades and books need, and its symbols."""

    exchange: str
    channels: tuple[str, ...]
    symbols: tuple[str, ...]
    """As a client names them."""

    @property
    def filters(self) -> list[Filter]:
        """The filters that a replay of trade and book_change of these symbols uses."""
        symbols = self.symbols
        if self.exchange == "binance-futures":
            symbols = tuple(each.lower() for each in symbols)
        return normalize(Filter(channel, symbols) for channel in self.channels)


WORKLOADS: Final = (
    Workload("bitmex", ("orderBookL2", "trade"), bitmex.SYMBOLS),
    Workload(
        "binance-futures",
        ("depth", "depthSnapshot", "trade"),
        tuple(each.upper() for each in binance_futures.SYMBOLS),
    ),
)


def generate(
    workload: Workload, directory: Path, *, count: int = 60, messages: int = 1_200_000
) -> Path:
    """Write a workload into a cache of its own and return that; at once if it was made before."""
    cache_dir = directory / f"{workload.exchange}-{count}m-{messages}-seed{_SEED}"
    finished = cache_dir / "finished"
    if finished.exists():
        return cache_dir
    shutil.rmtree(cache_dir, ignore_errors=True)
    lines = minutes(
        workload.exchange,
        START,
        count,
        per_second=messages / (60 * count),
        seed=_SEED,
        channels=workload.channels,
        depth=_DEPTH,
    )
    paths = write(cache_dir, workload.exchange, START, lines, filters=workload.filters)
    _link_without_symbols(cache_dir, workload, paths)
    finished.touch()
    return cache_dir


def _link_without_symbols(directory: Path, workload: Workload, paths: list[Path]) -> None:
    """Let the files serve a replay that names no symbols, too."""
    key = cache_keys(normalize(Filter(channel) for channel in workload.channels))[0]
    first = int(START.timestamp()) // 60
    for minute, path in enumerate(paths, first):
        link = Cache(directory).path(workload.exchange, key, minute, 1, "zst")
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, link)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--messages", type=int, default=1_200_000)
    parser.add_argument("--minutes", type=int, default=60)
    arguments = parser.parse_args()
    for workload in WORKLOADS:
        began = time.perf_counter()
        cache_dir = generate(
            workload, arguments.directory, count=arguments.minutes, messages=arguments.messages
        )
        print(f"{cache_dir}: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
