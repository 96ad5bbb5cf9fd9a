"""Which minutes of a range a wider file can serve: a disconnect at a border has no time."""

from collections.abc import Iterable
from typing import NamedTuple

from tardis_machine.history.blocks import read_blocks
from tardis_machine.history.cache import CachedSlice
from tardis_machine.history.errors import CorruptSliceError
from tardis_machine.history.recorded_lines import STAMP, last_stamp, minute_of, split, stamp_of


class _Gap(NamedTuple):
    """The lines on both sides of a border; their stamps are empty where the file has none."""

    before: bytes
    after: bytes
    has_disconnect: bool


def served_minutes(
    cached: CachedSlice, minutes: tuple[int, int], whole: tuple[int, int]
) -> tuple[int, int]:
    """Return which of some minutes a file tells all of, in a replay of the whole range.

    A disconnect is known to be inside the range by the lines before and after it. Where one of
    them is not in the range, the minutes on this side of the border are left out.
    """
    start, end = minutes
    try:
        if cached.start < whole[0]:
            gap = _gap(read_blocks(cached.path), stamp_of(start))
            if gap.has_disconnect and gap.before < stamp_of(whole[0]):
                start = min(end, minute_of(gap.after) + 1) if gap.after else end
        if cached.end > whole[1]:
            gap = _gap(read_blocks(cached.path), stamp_of(end))
            if gap.has_disconnect and (not gap.after or gap.after >= stamp_of(whole[1])):
                end = max(start, minute_of(gap.before)) if gap.before else start
    except (OSError, CorruptSliceError, ValueError):
        return minutes  # the reader of these minutes reports what is wrong with the file
    return start, end


def _gap(file: Iterable[bytes], border: bytes) -> _Gap:
    before, has_disconnect = b"", False
    for block in file:
        last = last_stamp(block)
        if last and last < border:
            before, has_disconnect = last, block.endswith(b"\n\n")
            continue
        for line in split(block):
            stamp = line[:STAMP]
            if not stamp:
                has_disconnect = True
            elif stamp < border:
                before, has_disconnect = stamp, False
            else:
                return _Gap(before, stamp, has_disconnect)
    return _Gap(before, b"", has_disconnect)
