"""A disk that takes nothing for a while."""

import os
import threading

import pytest


class HangingDisk:
    """Lets no entry of the journal through until it is freed; `call` is where it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str = "writev") -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        real = getattr(os, call)

        def hanging(*args: object) -> object:
            self.reached.set()
            assert self.free.wait(60)
            return real(*args)

        monkeypatch.setattr(os, call, hanging)
