"""What each exchange's mapper costs, per byte of raw message, beside bitmex's; both kernels.

    python -m benchmarks.mappers [EXCHANGE …]

Feeds the messages of the tests' own fixtures (trades and books of the newest era, again and again)
to mapper and emitter, and takes the best of several turns, each beside a turn of bitmex in Python:
the ratio is what counts, on a busy machine too. The compiled kernel takes messages of a described
shape by itself; the last column says how many of them.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from time import process_time
from typing import Any

from tardis_machine import exchanges
from tardis_machine.engine import create, parse_all
from tardis_machine.engine.choice import kernel
from tardis_machine.exchanges import BookGapError
from tests.exchanges import fixtures
from tests.kernel.implementations import chosen, require_both
from tests.vectors.mappers import Run

TYPES = ("trade", "book_change")
YARDSTICK = "bitmex"
TURNS = 5
TURN_S = 0.05
LOCAL = "2024-03-01T00:00:00.000001Z"


class Stream:
    """One run of messages, and the mapper that takes them."""

    def __init__(self, exchange: str, run: Run) -> None:
        self._emitter: Any = create(exchange, parse_all([run.data_type]))
        self._handle = exchanges.get(exchange).mapper(
            [run.data_type], fixtures.created(run), self._emitter
        )
        # Some are of interest only once: they say what the numbers of others stand for.
        self._lines = [bytes(step.raw) for step in run.steps]
        self._index = self._indexed()
        self.feed()
        self._lines = [bytes(step.raw) for step in run.steps if step.handled]
        self._index = self._indexed()
        self.size = sum(map(len, self._lines))

    def _indexed(self) -> Any:
        module = kernel().module
        if module is None:
            return None
        stamp = f"{LOCAL[:-1]}0Z ".encode()
        return module.Lines(b"".join(stamp + line + b"\n" for line in self._lines), "")

    def feed(self) -> int:
        """Take all messages; tells how many the mapper had to take."""
        handle, lines, emitter, index = self._handle, self._lines, self._emitter, self._index
        emitter.begin(LOCAL)
        mapped = at = 0
        while at < len(lines):
            if index is not None:
                at, _ = emitter.run(index, at, len(lines))
                if at == len(lines):
                    break
            # A book that checks its ids does not like to hear things twice.
            with suppress(BookGapError):
                handle(lines[at])
            mapped += 1
            at += 1
        emitter.take()
        return mapped

    def __len__(self) -> int:
        return len(self._lines)


class Feed:
    """An exchange's messages in the newest era, one stream of each run."""

    def __init__(self, exchange: str, kernel_name: str) -> None:
        runs = [run for run in fixtures.runs(exchange) if run.data_type in TYPES]
        newest = [run for run in runs if run.created is None] or runs
        with chosen(kernel_name):
            self._streams = [Stream(exchange, run) for run in newest]
        self._size = sum(stream.size for stream in self._streams)

    def turn(self) -> float:
        """Give the nanoseconds per byte of one turn."""
        rounds = 0
        began = process_time()
        while (took := process_time() - began) < TURN_S:
            for stream in self._streams:
                for _ in range(20):
                    stream.feed()
            rounds += 20
        return took * 1e9 / (rounds * self._size)

    def shaped(self) -> float:
        """Tell the part of the messages that no mapper sees."""
        mapped = sum(stream.feed() for stream in self._streams)
        return 1 - mapped / sum(map(len, self._streams))


def main(names: Sequence[str]) -> None:
    require_both()
    yardstick = Feed(YARDSTICK, "python")
    print("| exchange | Python, ns/byte | bitmexes | compiled, ns/byte | bitmexes | by shape |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in names or sorted(exchanges.names()):
        python, compiled = Feed(name, "python"), Feed(name, "compiled")
        turns = [(python.turn(), compiled.turn(), yardstick.turn()) for _ in range(TURNS)]
        own, fast, other = (min(costs) for costs in zip(*turns, strict=True))
        print(
            f"| {name} | {own:.1f} | {own / other:.2f} | {fast:.1f} | {fast / other:.2f} "
            f"| {compiled.shaped():.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
