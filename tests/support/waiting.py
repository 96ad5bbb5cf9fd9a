"""Waiting for a condition, asked again and again."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

_PATIENCE_S: Final = 90
_PAUSE_S: Final = 0.01


def wait_until(
    condition: Callable[[], bool], what: str = "", *, patience_s: float = _PATIENCE_S
) -> None:
    """Wait for another thread or process; fail, naming the condition, long after it should hold."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(_PAUSE_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another task, thread or process; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 - nothing to wait on: the state is not the test's
        await asyncio.sleep(_PAUSE_S)
