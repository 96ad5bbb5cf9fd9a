"""A clock that tests move."""

import threading

from tardis_machine.replays.pacing import Clock


class ManualClock(Clock):
    """A clock that moves when a caller waits or when a test moves it."""

    def __init__(self) -> None:
        self.ns = 1_000
        self.waits: list[float] = []

    def now(self) -> int:
        return self.ns

    def wait(self, seconds: float, stopped: threading.Event) -> None:
        assert not stopped.is_set()
        self.waits.append(seconds)
        self.ns += round(seconds * 1e9)
