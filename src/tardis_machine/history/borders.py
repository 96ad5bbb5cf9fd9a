"""The minutes of a replay that a slice wider than the replay's range can serve.

A disconnect is an empty line without a time. At a border of the range, the lines before and after
it tell whether it belongs to the range.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tardis_machine.history.blocks import read_blocks
from tardis_machine.history.cache import CachedSlice
from tardis_machine.history.errors import CorruptSliceError
from tardis_machine.history.recorded_lines import STAMP, last_stamp, minute_of, split, stamp_of


class _Gap(NamedTuple):
    """The stamps of the lines on both sides of a border; empty where the file has no line."""

    before: bytes
    after: bytes
    has_disconnect: bool


def served_minutes(
    cached: CachedSlice, minutes: tuple[int, int], whole: tuple[int, int]
) -> tuple[int, int]:
    """Return the part of `minutes` that a file can serve in a replay of the range `whole`.

    Both are (first minute, end). The part is shorter if the file has a disconnect at a border of
    `minutes` and the line on its other side is outside the range: the caller then has to fetch the
    minutes at that border by themselves.
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
        return minutes  # the reader of these minutes raises the error
    return start, end


def _gap(file: Iterable[bytes], border: bytes) -> _Gap:
    """Return the stamps around a border, and whether a disconnect is between them."""
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
