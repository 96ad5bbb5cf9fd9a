"""When a recording went on after its disconnects: each was between two lines."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from tardis_machine import exchanges
from tardis_machine.emit.datatypes import parse_all, sources
from tardis_machine.history import History
from tardis_machine.lines import locals_of, split
from tardis_machine.options import ReplayNormalizedOptions
from tardis_machine.times import us_of

_DISCONNECT: Final = b"\n\n"


def resumptions(replay: ReplayNormalizedOptions, history: History) -> dict[int, int]:
    """Read a replay's lines; give the local time after each disconnect by that before it."""
    exchange = exchanges.get(replay.exchange)
    fetched = sources(parse_all(replay.data_types))
    filters = exchange.filters(fetched, replay.symbols, replay.from_, replay.to)
    with history.read(exchange.name, filters, replay.from_, replay.to) as pieces:
        return between(pieces)


def between(pieces: Iterable[bytes]) -> dict[int, int]:
    """Find the local times around each disconnect that something comes before and after."""
    found: dict[int, int] = {}
    last, broken = "", False
    for piece in pieces:
        lines = split(piece)
        if lines and not broken and lines[0] and _DISCONNECT not in piece:
            lines = lines[-1:]
        for line, local in zip(lines, locals_of(lines), strict=True):
            if not line:
                broken = True
            elif local:
                if broken and last:
                    with suppress(ValueError):  # digits, but no date
                        found[us_of(last)] = us_of(local)
                last, broken = local, False
    return found
