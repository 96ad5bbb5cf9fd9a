"""Two connections of the same subscriptions for a while, so that one can follow the other.

Each brings the same frames in the same order, one of them a little ahead of the other: what only
one has brought is known at any time, and to change over is to go on from there. That frames are
the same, to the byte, is no promise of any exchange: it is seen, or nothing is changed.
"""

import math
from collections.abc import Iterator
from typing import Final

from tardis_machine.errors import TardisMachineError

SETTLE_S = 5.0
"""So long after its first frame all of a connection's subscriptions are on."""
SKEW_S = 2.0
"""So far one may be ahead of the other."""
_MAX_FRAMES: Final = 20_000


class OverlapError(TardisMachineError):
    """Two connections that do not bring the same."""


class Overlap:
    """What one of two connections has brought and the other has not yet, with its time."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._met = 0
        self._overflow = False
        self._ahead: dict[bytes, list[float]] = {}
        self._pending: dict[bytes, list[float]] = {}

    def old(self, frame: bytes, now: float) -> None:
        """Note a frame of the connection that is to go."""
        self._note(frame, now, self._ahead, self._pending)

    def new(self, frame: bytes, now: float) -> None:
        """Note a frame of the one that is to stay."""
        if self._began is None:
            self._began = now
        self._note(frame, now, self._pending, self._ahead)

    def is_ready(self, now: float) -> bool:
        """Tell whether to change over; raises if the two differ."""
        if self._overflow:
            raise OverlapError(f"more than {_MAX_FRAMES} frames on one connection only")
        self._forget(min(self._settled, now - SKEW_S))
        if self._began is None or now < self._settled + SKEW_S:
            return False
        for frame, times in (*self._ahead.items(), *self._pending.items()):
            if any(self._settled <= each < now - SKEW_S for each in times):
                raise OverlapError(f"only one connection has {frame[:200]!r}")
        return self._met > 0

    def upcoming(self, now: float) -> Iterator[bytes]:
        """Give the frames that the old connection would have brought next, in order."""
        for frame, times in self._pending.items():
            yield from (frame for each in times if each >= now - SKEW_S)

    def expected(self, now: float) -> dict[bytes, int]:
        """Count the frames that the new connection will bring once more."""
        recent = {
            frame: sum(each >= now - SKEW_S for each in times)
            for frame, times in self._ahead.items()
        }
        return {frame: count for frame, count in recent.items() if count}

    @property
    def _settled(self) -> float:
        return math.inf if self._began is None else self._began + SETTLE_S

    def _forget(self, until: float) -> None:
        """Drop what came when not all subscriptions were on, and the other will never bring."""
        for side in (self._ahead, self._pending):
            for frame in [frame for frame, times in side.items() if times[-1] < until]:
                del side[frame]

    def _note(
        self,
        frame: bytes,
        now: float,
        own: dict[bytes, list[float]],
        other: dict[bytes, list[float]],
    ) -> None:
        times = other.get(frame)
        if times is None:
            if len(own) < _MAX_FRAMES:
                own.setdefault(frame, []).append(now)
            else:
                self._overflow = True
            return
        times.pop(0)
        if not times:
            del other[frame]
        self._met += now >= self._settled
