"""What a replay costs in Python as messages or tables, beside the same replay as bytes.

    python -m benchmarks.tables [--minutes 10] [--messages 200000]

Trades and book changes of generated minutes, from the cache; CPU time, the best of several turns,
each beside a turn of the bytes: the ratio is what counts, on a busy machine too.
"""

import argparse
import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.generate import DIRECTORY, START, WORKLOADS, Workload, generate
from tardis_machine import replay_normalized
from tardis_machine.replays import NormalizedReplay

TURNS = 3
ASKED = ["trade", "book_change"]

Way = Callable[[NormalizedReplay[Any]], object]


def as_bytes(replay: NormalizedReplay[Any]) -> int:
    return sum(batch.count for batch in replay.batches())


def as_messages(replay: NormalizedReplay[Any]) -> int:
    return sum(1 for _ in replay)


def as_messages_on_a_loop(replay: NormalizedReplay[Any]) -> int:
    async def read() -> int:
        count = 0
        async for _ in replay:
            count += 1
        return count

    return asyncio.run(read())


def as_table(data_type: str, numbers: Any, replay: NormalizedReplay[Any]) -> int:
    return sum(batch.num_rows for batch in replay.to_arrow_batches(data_type, numbers=numbers))


WAYS: dict[str, Way] = {
    "messages, `for`": as_messages,
    "messages, `async for`": as_messages_on_a_loop,
    **{
        f"`{data_type}`, Arrow, {numbers}": partial(as_table, data_type, numbers)
        for data_type in ASKED
        for numbers in ("float", "decimal", "text")
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    arguments = parser.parse_args()
    print(f"| as | {' | '.join(each.exchange for each in WORKLOADS)} |")
    print(f"|---|{'--:|' * len(WORKLOADS)}")
    caches = [
        generate(each, arguments.directory, count=arguments.minutes, messages=arguments.messages)
        for each in WORKLOADS
    ]
    for name, way in WAYS.items():
        ratios = [
            ratio(workload, cache, arguments.minutes, way)
            for workload, cache in zip(WORKLOADS, caches, strict=True)
        ]
        print(f"| {name} | {' | '.join(f'{each:.1f}' for each in ratios)} |", flush=True)


def ratio(workload: Workload, cache: Path, minutes: int, way: Way) -> float:
    """How much longer this way takes than the bytes alone."""

    def timed(one: Way) -> float:
        replay: NormalizedReplay[Any] = replay_normalized(
            workload.exchange,
            from_=START,
            to=START.replace(minute=minutes),
            symbols=workload.symbols,
            data_types=ASKED,
            cache_dir=cache,
        )
        began = process_time()
        one(replay)
        return process_time() - began

    turns = [(timed(way), timed(as_bytes)) for _ in range(TURNS)]
    return min(each for each, _ in turns) / min(yardstick for _, yardstick in turns)


if __name__ == "__main__":
    main()
