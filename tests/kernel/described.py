"""Exchanges with channels of a described shape, which the kernel maps itself; their messages."""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import cast

from tardis_machine import exchanges
from tardis_machine.engine import Emitter, create, parse_all
from tardis_machine.engine.shapes import AnyShape, Memory
from tardis_machine.history.recorded_lines import MESSAGE
from tardis_machine.replays.normalizer import Normalizer
from tests.exchanges import fixtures
from tests.kernel.implementations import chosen
from tests.support import shapes
from tests.support.feeds import generator
from tests.support.normalizers import ReadyBlocks

START = datetime(2024, 3, 1, tzinfo=UTC)
NEWEST = 1_793_000_000_000_000
LOCAL = "2024-03-01T00:00:00.000001Z"
DATA_TYPES = ("trade", "book_change", "book_ticker")


def normalized(
    kind: type[Normalizer], name: str, lines: list[bytes], types: list[str], start: int
) -> tuple[list[object], int, int]:
    """Return what a normalizer makes of lines: bytes, borders, and how many it could not read."""
    made = kind(
        exchanges.get(name),
        ReadyBlocks([b"".join(line + b"\n" for line in lines)]),
        data_types=parse_all(types),
        symbols=None,
        start=start,
        sent=frozenset(DATA_TYPES),
        sends_disconnects=True,
        strict=False,
    )
    made._pace = 1000
    found: list[object] = []
    while made.reached is not None:
        if made.needs_block:
            made.read()
        else:
            made.run()
            taken = made.take()
            found += [taken.data.splitlines(), list(taken.stamps), list(taken.counts)]
    return found, made.malformed, made.ignored_changes


@cache
def messages(name: str) -> list[tuple[int, list[bytes]]]:
    """Return an exchange's raw messages of the described types, recorded and generated ones."""
    found = [
        (fixtures.created(run) or NEWEST, [bytes(step.raw) for step in run.steps])
        for run in fixtures.runs(name)
        if run.data_type in DATA_TYPES
    ]
    if name in generator.FEEDS:
        (lines,) = generator.minutes(name, START, 1, per_second=5, seed=1, depth=4)
        found.append((NEWEST, [line[MESSAGE:] for line in lines.splitlines()]))
    return found


class Listening:
    """An emitter that remembers the shapes which a mapper describes to it."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self.told: dict[bytes, AnyShape] = {}

    def describe(self, head: bytes, shape: AnyShape, memory: Memory | None = None) -> None:
        self.told[head] = shape
        self._emitter.describe(head, shape, memory)

    def __getattr__(self, name: str) -> object:
        return getattr(self._emitter, name)


@cache
def taken_by_shape(name: str) -> Counter[int]:
    """Count the messages of an exchange that the kernel takes, each seen once before, by shape."""
    taken: Counter[int] = Counter()
    for created, raw in messages(name):
        types = [each for each in DATA_TYPES if each in exchanges.get(name).types]
        with chosen("compiled"):
            listening = Listening(create(name, parse_all(types)))
        emitter = cast("Emitter", listening)
        mapper = exchanges.get(name).mapper(types, created, emitter)
        for message in raw * 2:
            with suppress(ValueError):
                shapes.handle(emitter, mapper, message, LOCAL)
                if shapes.take(emitter, message, LOCAL):
                    head = max((head for head in listening.told if head in message), key=len)
                    taken[id(listening.told[head])] += 1
    return taken


DESCRIBED = [name for name in exchanges.names() if taken_by_shape(name)]
