"""Hostile input for both kernels: whatever bytes come, they do the same, and neither breaks.

    python -m tests.kernel.fuzz [--seconds 600] [--seed 1]

Inputs are those of `corpus/`, damaged at random. One that makes the kernels differ is written
there, to be kept once the reason is mended: every file of the corpus is run by the tests.
"""

import argparse
import logging
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Final

from tardis_machine import exchanges
from tardis_machine.engine import Emitter
from tardis_machine.messages import PAYLOAD_CASES
from tardis_machine.replays.normalizer import Normalizer, ShapedNormalizer
from tests.kernel.described import DESCRIBED, messages, normalized
from tests.kernel.implementations import batch_content, chosen, emitters, encoders
from tests.kernel.layouts import LAYOUTS, ROW_LAYOUTS, TABLE
from tests.support.messages import CONTEXT

CORPUS: Final = Path(__file__).parent / "corpus"
TOKENS: Final = (
    *(bytes([byte]) for byte in b'"\\{}[],:\n 0-.e\xff\x00'),
    *(b"null", b"true", b"1e999", b"9" * 30, b'""', b"\\u0000", b"[" * 50, b"\xe2\x82\xac"),
)
TYPES: Final = (
    *("trade", "book_change", "book_ticker", "trade_bar_1s", "quote_1s"),
    *("book_snapshot_3_0ms", "book_snapshot_2_grouped5_0ms"),
)
LOCAL: Final = "2024-03-01T00:00:00.000001Z"


def run_ndjson(data: bytes, random: Random) -> None:
    """Normalized lines into Bronze."""
    include = random.choice((None, frozenset(random.sample(PAYLOAD_CASES, 4))))
    python, compiled = _encoders()
    expected = batch_content(python.encode_lines(data, 7, include))
    assert batch_content(compiled.encode_lines(data, 7, include)) == expected


def run_levels(data: bytes, random: Random) -> None:
    """Levels of a book, in each layout."""
    python, compiled = emitters("x", TYPES)
    for layout in LAYOUTS:
        _same(python, compiled, lambda e, by=layout: e.book_change("S", True, data, data, 5, by))
    for kind in ROW_LAYOUTS:
        _same(python, compiled, lambda e, by=kind: e.book_rows("S", False, data, 6, by))


def run_table(data: bytes, random: Random) -> None:
    """Messages of a keyed table, a line each."""
    python, compiled = emitters("x", TYPES)
    for message in data.split(b"\n"):
        _same(python, compiled, lambda e, message=message: e.book_table(message, TABLE))


def run_lines(data: bytes, random: Random) -> None:
    """An exchange's recorded lines; the first is its name, and the time they are of."""
    head, _, recorded = data.partition(b"\n")
    exchange, _, created = head.decode(errors="replace").partition(" ")
    if exchange not in exchanges.names():
        return
    start = int(created) if created.isdecimal() and len(created) < 18 else 0
    known = exchanges.get(exchange).types
    types = [each for each in ("trade", "book_change", "book_ticker") if each in known]
    types += random.choice(([], ["trade_bar_1s", "book_snapshot_3_grouped10_1s", "quote"]))
    lines = recorded.split(b"\n")
    with chosen("python"):
        expected = normalized(Normalizer, exchange, lines, types, start)
    with chosen("compiled"):
        assert normalized(ShapedNormalizer, exchange, lines, types, start) == expected


TARGETS: Final[dict[str, Callable[[bytes, Random], None]]] = {
    "ndjson": run_ndjson,
    "levels": run_levels,
    "table": run_table,
    "lines": run_lines,
}


@cache
def _encoders():
    return encoders(CONTEXT)


def _same(python: Emitter, compiled: Emitter, call: Callable[[Emitter], None]) -> None:
    outcomes = []
    for emitter in (python, compiled):
        emitter.begin(LOCAL)
        try:
            call(emitter)
        except (ValueError, TypeError, RecursionError):
            outcomes.append("refused")
        else:
            outcomes.append("done")
    taken, other = compiled.take(), python.take()
    assert (outcomes[1], taken.data, taken.count) == (outcomes[0], other.data, other.count)


def damaged(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Change a few places of an input, or put another's part into it."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(6):
            case 0:
                del changed[at : at + random.choice((1, 2, 10))]
            case 1:
                changed[at:at] = random.choice(TOKENS)
            case 2:
                changed[at : at + 1] = random.choice(TOKENS)
            case 3 if changed:
                changed[min(at, len(changed) - 1)] = random.randrange(256)
            case 4:
                changed[at:at] = changed[max(0, at - random.randrange(60)) : at]
            case _:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                changed[at:at] = other[start : start + random.randrange(80)]
    return bytes(changed[:20_000])


@cache
def corpus(target: str) -> list[bytes]:
    """What was kept, and messages of every exchange that describes some."""
    kept = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    return kept + list(_described()) if target == "lines" else kept


def _described() -> Iterator[bytes]:
    for name in DESCRIBED:
        for created, raw in messages(name):
            stamps = (f"2024-03-01T00:00:00.{number:07d}Z ".encode() for number in range(20))
            recorded = (stamp + message for stamp, message in zip(stamps, raw, strict=False))
            yield b"\n".join((f"{name} {created}".encode(), *recorded))


def attack(target: str, random: Random, until: Callable[[int], bool]) -> int:
    """Run damaged inputs; one that makes a difference is kept. Gives how many there were."""
    inputs = corpus(target)
    count = 0
    while not until(count):
        data = damaged(random.choice(inputs), inputs, random)
        seed = random.randrange(1 << 30)
        try:
            TARGETS[target](data, Random(seed))
        except BaseException:
            name = sha256(data).hexdigest()[:16]
            (CORPUS / target / name).write_bytes(data)
            print(f"{target}: {name} with seed {seed}")
            raise
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    random = Random(given.seed)
    counts = dict.fromkeys(TARGETS, 0)
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        for target in TARGETS:
            turn = min(time.monotonic() + 2, end)
            counts[target] += attack(target, random, lambda _, turn=turn: time.monotonic() >= turn)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{given.seconds:g} s clean, {memory} MB at most:", counts)


if __name__ == "__main__":
    main()
