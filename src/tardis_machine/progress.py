"""How far long work is: one line of a terminal, and nothing where logs are collected."""

import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TextIO

_EVERY_S: Final = 0.5
_PATIENCE_S: Final = 2.0
"""What is done sooner needs no line."""
_CLEAR: Final = "\r\033[K"


class _Work(NamedTuple):
    """One piece of work under way."""

    name: str
    began: float
    share: float
    messages: int


class Progress:
    """The line: how many pieces of work there are, and how far the one that began first is."""

    def __init__(
        self, stream: TextIO | None = None, write: Callable[[str], object] | None = None
    ) -> None:
        """`write` takes the place of the stream's own, which waits for its reader."""
        target = sys.stderr if stream is None else stream
        self._write = target.write if write is None else write
        self.on = target.isatty()
        self._work: dict[object, _Work] = {}
        self._shown_at = 0.0
        self._showing = False

    def begin(self, key: object, name: str) -> None:
        """Begin a piece of work."""
        if self.on:
            self._work[key] = _Work(name, time.monotonic(), 0.0, 0)

    def advance(self, key: object, share: float, count: int) -> None:
        """Tell which share of the work is done, and how much came of it so far."""
        now = time.monotonic()
        work = self._work.get(key)
        if work is None:
            return
        self._work[key] = work._replace(share=share, messages=count)
        if now - self._shown_at >= _EVERY_S and now - work.began >= _PATIENCE_S:
            self._shown_at = now
            self._show(now)

    def end(self, key: object) -> None:
        """End a piece of work, however it ended."""
        self._work.pop(key, None)
        if self._showing and not self._work:
            self._showing = False
            self._write(_CLEAR)

    def _show(self, now: float) -> None:
        first = next(iter(self._work.values()))
        others = len(self._work) - 1
        self._showing = True
        # Back to the line's start, so that a log line takes its place.
        shown = text(first.name, first.share, first.messages, now - first.began)
        more = f" (and {others} more)" if others else ""
        self._write(f"{_CLEAR}{shown}{more}\r")


def text(name: str, share: float, count: int, seconds: float) -> str:
    """Say how far something is that has taken so long: share done, rate, time left."""
    rate = count / max(seconds, 1e-3)
    left = f", {duration(seconds / share - seconds)} left" if share > 0 else ""
    return f"{name}: {share:.0%}, {count:,} messages, {rate:,.0f}/s{left}"


def duration(seconds: float) -> str:
    """Write seconds as people say them."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
