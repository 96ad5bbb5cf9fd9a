"""Readers return each line once and in order after any failures, with any cache."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tardis_machine.history import History
from tardis_machine.history.cache import MINUTE
from tests.history.slices import FILTERS, START, expected, write
from tests.support.servers.tardis_api import Fault, TardisApi

LAST = 40


def damage(random: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    kind = random.choice(["truncate", "flip", "empty", "foreign"])
    if kind == "truncate":
        del content[random.randrange(len(content)) :]
    elif kind == "flip":
        # Of a frame's header, so that it shows without a checksum, too.
        content[random.randrange(4)] ^= 1 + random.randrange(255)
    elif kind == "empty":
        content.clear()
    else:
        content[:] = os.urandom(50)
    path.write_bytes(content)


def fault(random: Random) -> Fault:
    return random.choice(
        [
            Fault(500, "oops"),
            Fault(429, "slow down"),
            Fault(truncate=1 + random.randrange(60)),
            Fault(corrupt=True),
            Fault(cut_after=random.randrange(100)),
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_each_line_once_and_in_order(seed: int, tardis_api: TardisApi, tmp_path: Path) -> None:
    random = Random(seed)
    tardis_api.suggested_minutes = random.choice([1, 3, 8, 60])
    tardis_api.max_minutes = random.choice([1, 2, 60])
    tardis_api.encoding = random.choice(["zstd", "gzip"])
    for _ in range(random.randrange(12)):
        start = random.randrange(LAST)
        path = write(tmp_path, start, random.choice([1, 1, 2, 7, 30]))
        if random.random() < 0.4:
            damage(random, path)
    for minute in random.choices(range(LAST), k=random.randrange(40)):
        tardis_api.fail_at(START + minute, fault(random))
    bound = random.choice([None, 1000, 20_000])
    ranges = []
    for _ in range(4):
        start = random.randrange(LAST - 1)
        ranges.append((start, start + 1 + random.randrange(LAST - start)))
    with (
        History(
            endpoint=tardis_api.endpoint,
            cache_dir=tmp_path,
            cache_max_bytes=bound,
            sleep=lambda _: None,
            max_tries=100,
        ) as history,
        ThreadPoolExecutor(4) as pool,
    ):

        def read(start: int, end: int) -> bytes:
            with history.read(
                "ftx", FILTERS, (START + start) * MINUTE, (START + end) * MINUTE
            ) as reader:
                return b"".join(reader)

        jobs = [(each, pool.submit(read, *each)) for each in ranges]
        for each, job in jobs:
            assert job.result() == expected(*each)
