"""An event loop for a client that needs one, run by the bus's own thread while it is used."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopOwner:
    """Makes its loop when it is first needed, and again after it was closed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def used(self) -> bool:
        return self._loop is not None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until this is done; between such calls it stands still."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None
