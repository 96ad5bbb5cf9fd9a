"""Lines as the Tardis API gives them, made up from a seed; and the bundled data, made again."""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import zstandard

from tardis_machine.history.cache import Cache
from tardis_machine.history.filters import Filter, cache_keys, normalize
from tardis_machine.history.sample import MINUTES, SAMPLE, START
from tests.support.feeds.binance_futures import BinanceFuturesFeed
from tests.support.feeds.bitmex import BitmexFeed
from tests.support.feeds.deribit import DeribitFeed

FEEDS: Final[dict[str, type[BitmexFeed | BinanceFuturesFeed | DeribitFeed]]] = {
    "bitmex": BitmexFeed,
    "deribit": DeribitFeed,
    "binance-futures": BinanceFuturesFeed,
}

_SECOND: Final = 10_000_000
"""In ticks of a tenth of a microsecond, the resolution of the stamps."""
_LATENCY: Final = 31 * _SECOND // 1000
_SEED: Final = 20240301
_SHIPPED_RATE: Final = 20.0
_SHIPPED_DISCONNECTS: Final = {"deribit": (171.3,)}


def minutes(
    exchange: str,
    start: datetime,
    count: int,
    *,
    per_second: float,
    seed: int,
    channels: Collection[str] | None = None,
    depth: int = 60,
    disconnects: Sequence[float] = (),
) -> Iterator[bytes]:
    """Yield `count` minutes of lines; a connection is lost at each of `disconnects` (seconds)."""
    random = Random(f"{exchange} {seed}")
    feed = FEEDS[exchange](random, channels, depth)
    epoch = int(start.timestamp()) * _SECOND
    lost = [epoch + round(each * _SECOND) for each in sorted(disconnects)]
    now, second = epoch, epoch
    waiting = feed.opening(_ms(now))
    mean_gap = _SECOND / per_second
    for minute in range(epoch, epoch + count * 60 * _SECOND, 60 * _SECOND):
        prefix = f"{datetime.fromtimestamp(minute // _SECOND, UTC):%Y-%m-%dT%H:%M}:"
        lines: list[str] = []
        end = minute + 60 * _SECOND
        while True:
            for number, message in enumerate(waiting):
                seconds, fraction = divmod(now - minute, _SECOND)
                lines.append(f"{prefix}{seconds:02}.{fraction:07}Z {message}\n")
                now += 1 + number % 3 + int(random.expovariate(1 / mean_gap))
                if now >= end:
                    waiting = waiting[number + 1 :]
                    break
            else:
                waiting = []
            if now >= end:
                break
            if lost and now >= lost[0]:
                lost.pop(0)
                lines.append("\n")
                now = min(now + _SECOND // 2, end - 1)
                waiting = feed.opening(_ms(now))
            elif now >= second:
                waiting = feed.second(_ms(now))
                second = (now // _SECOND + 1) * _SECOND
            else:
                waiting = feed.event(_ms(now))
        yield "".join(lines).encode()


def write(
    directory: Path,
    exchange: str,
    start: datetime,
    lines: Iterator[bytes],
    *,
    filters: Sequence[Filter] = (),
    level: int = 3,
) -> list[Path]:
    """Write minutes into a cache, as if they had been fetched with these filters."""
    cache = Cache(directory)
    key = cache_keys(normalize(filters))[0]
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    first = int(start.timestamp()) // 60
    paths = []
    for minute, data in enumerate(lines, first):
        path = cache.path(exchange, key, minute, 1, "zst")
        cache.store(path, [compressor.compress(data)])
        cache.unpin(path)
        paths.append(path)
    return paths


def write_shipped(directory: Path) -> list[Path]:
    """Write the bundled sample data."""
    return [
        path
        for exchange in FEEDS
        for path in write(
            directory,
            exchange,
            START,
            minutes(
                exchange,
                START,
                MINUTES,
                per_second=_SHIPPED_RATE,
                seed=_SEED,
                disconnects=_SHIPPED_DISCONNECTS.get(exchange, ()),
            ),
            level=19,
        )
    ]


def _ms(now: int) -> int:
    return (now - _LATENCY) * 1000 // _SECOND


if __name__ == "__main__":
    write_shipped(SAMPLE.directory)
