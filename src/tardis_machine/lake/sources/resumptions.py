"""When a recording's disconnects were: each between two lines, which are others for others."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from tardis_machine import exchanges
from tardis_machine.engine.datatypes import parse_all, sources
from tardis_machine.history import History, HistoryReader
from tardis_machine.history.recorded_lines import first_stamp, locals_of, minute_of, split
from tardis_machine.lake.spans import DAY_US
from tardis_machine.messages.times import us_of
from tardis_machine.replays.requests import ReplayNormalizedOptions

_DISCONNECT: Final = b"\n\n"
Stretch = tuple[int, int]
"""From a time to before another, in microseconds."""
_MINUTE_US: Final = 60_000_000


def resumptions(replay: ReplayNormalizedOptions, history: History) -> dict[int, Stretch]:
    """Read a replay's lines; tell by the line before each disconnect when that can have been.

    What nothing follows is the day's last, or the next part's as well.
    """
    exchange = exchanges.get(replay.exchange)
    fetched = sources(parse_all(replay.data_types))
    filters = exchange.filters(fetched, replay.symbols, replay.from_, replay.to)
    end = replay.to - (replay.to % DAY_US == 0)
    with history.read(exchange.name, filters, replay.from_, replay.to) as reader:
        return between(_placed(reader, replay.from_), end)


def _placed(reader: HistoryReader, start: int) -> Iterator[tuple[int, bytes]]:
    """Give pieces, each with the beginning of the minutes that its file serves."""
    before = start
    for piece in reader:
        reached = start + reader.done_minutes * _MINUTE_US
        stamp = first_stamp(piece)
        # The last piece of a file that goes on behind them comes when they are done already.
        is_done = bool(stamp) and minute_of(stamp) * _MINUTE_US < reached
        yield before if is_done else reached, piece
        before = reached


def between(pieces: Iterable[tuple[int, bytes]], end: int) -> dict[int, Stretch]:
    """Find when each disconnect was that something comes before, by the time of that.

    It was between two lines, and in a file whose minutes begin at a time: the last of several that
    nothing comes between.
    """
    found: dict[int, Stretch] = {}
    last, broken, begin = "", False, 0
    for place, piece in pieces:
        lines = split(piece)
        if lines and not broken and lines[0] and _DISCONNECT not in piece:
            lines = lines[-1:]
        for line, local in zip(lines, locals_of(lines), strict=True):
            if not line:
                broken, begin = True, place
            elif local:
                if broken:
                    _add(found, last, begin, local)
                last, broken = local, False
    if broken:
        _add(found, last, begin, end)
    return found


def _add(found: dict[int, Stretch], last: str, begin: int, until: str | int) -> None:
    if last:
        with suppress(ValueError):  # digits, but no date
            us = us_of(last)
            found[us] = max(us, begin), until if isinstance(until, int) else us_of(until)


def matching(seen: Sequence[Stretch], told: Sequence[Stretch]) -> set[int]:
    """Tell which of the disconnects that a replay saw, in their order, are among those told.

    All replays see the same ones, each between lines of its own: one that was told is the one that
    can have been at the same time for longest. Where few lines have several between two of them,
    these pass for one, which stands for one of those that others see.
    """
    begins, ends = [begin for begin, _ in seen], [_end(each) for each in seen]
    found: set[int] = set()
    for each in sorted(told):
        begin, end = each[0], _end(each)
        near = range(bisect_right(ends, begin), bisect_left(begins, end))
        both = [
            (min(ends[row], end) - max(begins[row], begin), -row)
            for row in near
            if row not in found
        ]
        if both:
            found.add(-max(both)[1])
    return found


def _end(stretch: Stretch) -> int:
    """Lines of the same time may be before and after a disconnect."""
    return max(stretch[1], stretch[0] + 1)
