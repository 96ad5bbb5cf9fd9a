"""What each exchange's mapper costs, per byte of raw message, beside bitmex's.

    python -m benchmarks.mappers [EXCHANGE …]

Feeds the messages of the tests' own fixtures (those that a mapper of the newest era handles, trades
and books, again and again) to mapper and emitter, and takes the best of several turns, each beside
a turn of bitmex: the ratio is what counts, on a busy machine too.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import process_time

from tardis_machine import exchanges
from tardis_machine.emit import create, parse_all
from tardis_machine.exchanges import BookGapError
from tests.exchanges import fixtures

TYPES = ("trade", "book_change")
YARDSTICK = "bitmex"
TURNS = 5
TURN_S = 0.1
LOCAL = "2024-03-01T00:00:00.000001Z"


class Feed:
    """One exchange's messages and the mapper that takes them."""

    def __init__(self, exchange: str) -> None:
        runs = [run for run in fixtures.runs(exchange) if run.data_type in TYPES]
        newest = [run for run in runs if run.created is None] or runs
        self._lines = [bytes(s.raw) for run in newest for s in run.steps if s.handled]
        self._size = sum(map(len, self._lines))
        self._emitter = create(exchange, parse_all(TYPES))
        made = fixtures.created(newest[0])
        self._handle: Callable[[bytes], bool] = exchanges.get(exchange).mapper(
            TYPES, made, self._emitter
        )

    def turn(self) -> float:
        """Give the nanoseconds per byte of one turn."""
        handle, lines, emitter = self._handle, self._lines, self._emitter
        rounds = 0
        emitter.begin(LOCAL)
        began = process_time()
        while (took := process_time() - began) < TURN_S:
            for _ in range(50):
                for line in lines:
                    # A book that checks its ids does not like to hear things twice.
                    with suppress(BookGapError):
                        handle(line)
                emitter.take()
            rounds += 50
        return took * 1e9 / (rounds * self._size)


def main(names: Sequence[str]) -> None:
    yardstick = Feed(YARDSTICK)
    print(f"{'exchange':26} {'ns/byte':>8} {'bitmexes':>8}")
    for name in names or sorted(exchanges.names()):
        feed = Feed(name)
        turns = [(feed.turn(), yardstick.turn()) for _ in range(TURNS)]
        own, other = (min(costs) for costs in zip(*turns, strict=True))
        print(f"{name:26} {own:8.1f} {own / other:8.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
