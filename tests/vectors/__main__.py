"""Runs vector files through the code: python -m tests.vectors FILE…

A directory stands for the files in it: those of exchanges that have no mappers yet are named and
left out, while naming such a file itself fails.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tardis_machine import exchanges
from tests.vectors import compute, dialects, mappers, replay
from tests.vectors.compute import Outcome

_LIVE = frozenset((dialects.SUBSCRIPTIONS, dialects.REALTIME))


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    passed = total = 0
    failed = False
    unsupported: list[str] = []
    for argument in map(Path, arguments):
        for path in _files(argument):
            exchange = None if path.name in _LIVE else mappers.exchange_of(path)
            if exchange is not None and exchange not in exchanges.names():
                unsupported.append(str(path) if path == argument else exchange)
                failed |= path == argument
                continue
            for outcome in _run(path, exchange):
                passed += outcome.passed
                total += outcome.total
                print(f"{path.parent.name}/{path.name} {outcome.label}: ", end="")
                print(f"{outcome.passed} of {outcome.total}")
                if outcome.difference is not None:
                    print(f"  first difference: {outcome.difference}")
    if unsupported:
        print(f"no mappers yet: {', '.join(dict.fromkeys(unsupported))}")
    print(f"passed {passed} of {total}")
    return int(failed or passed != total)


def _files(argument: Path) -> Iterable[Path]:
    if not argument.is_dir():
        return [argument]
    return sorted(path for path in argument.rglob("*.json"))


def _run(path: Path, exchange: str | None) -> Iterator[Outcome]:
    if path.name in _LIVE:
        return dialects.run(path)
    if exchange is not None:
        return mappers.run(path, exchange)
    return replay.run(path) if replay.is_replay_file(path) else compute.run(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
