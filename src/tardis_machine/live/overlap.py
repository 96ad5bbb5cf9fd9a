"""Replacement of one connection by another with the same subscriptions, without loss or repetition.

Both connections are open for a while and compared frame by frame. The stream switches once both
have sent the same frames. Since no exchange promises equal bytes, a difference cancels the switch.
"""

import math
from collections.abc import Iterator
from typing import Final

from tardis_machine.errors import TardisMachineError

SUBSCRIBE_S = 5.0
"""Time after a connection's first frame at which all its subscriptions are active, in seconds."""
SKEW_S = 2.0
"""Longest lag of one connection behind the other, in seconds."""
_MAX_FRAMES: Final = 20_000


class OverlapError(TardisMachineError):
    """Two connections that do not send the same frames; the old one stays."""


class Overlap:
    """Frames that only one of two connections has sent so far, with their times of arrival."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._matched = 0
        self._overflow = False
        self._ahead: dict[bytes, list[float]] = {}
        self._pending: dict[bytes, list[float]] = {}

    def add_old(self, frame: bytes, now: float) -> None:
        """Add a frame of the connection that is going to be replaced."""
        self._add(frame, now, self._ahead, self._pending)

    def add_new(self, frame: bytes, now: float) -> None:
        """Add a frame of the connection that replaces the old one."""
        if self._began is None:
            self._began = now
        self._add(frame, now, self._pending, self._ahead)

    def is_ready(self, now: float) -> bool:
        """Return whether the new connection can replace the old one now.

        Raises OverlapError if the two differ.
        """
        if self._overflow:
            raise OverlapError(f"more than {_MAX_FRAMES} frames on one connection only")
        self._drop_before(min(self._subscribed_at, now - SKEW_S))
        if self._began is None or now < self._subscribed_at + SKEW_S:
            return False
        for frame, times in (*self._ahead.items(), *self._pending.items()):
            if any(self._subscribed_at <= at < now - SKEW_S for at in times):
                raise OverlapError(f"only one connection has {frame[:200]!r}")
        return self._matched > 0

    def upcoming(self, now: float) -> Iterator[bytes]:
        """Yield the frames that the new connection sent and the old one has not, in order."""
        for frame, times in self._pending.items():
            yield from (frame for at in times if at >= now - SKEW_S)

    def expected(self, now: float) -> dict[bytes, int]:
        """Return the frames that the new connection will repeat, with how often."""
        recent = {
            frame: sum(at >= now - SKEW_S for at in times) for frame, times in self._ahead.items()
        }
        return {frame: count for frame, count in recent.items() if count}

    @property
    def _subscribed_at(self) -> float:
        return math.inf if self._began is None else self._began + SUBSCRIBE_S

    def _drop_before(self, until: float) -> None:
        """Drop frames that came before the other connection's subscriptions were active."""
        for side in (self._ahead, self._pending):
            for frame in [frame for frame, times in side.items() if times[-1] < until]:
                del side[frame]

    def _add(
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
        self._matched += now >= self._subscribed_at
