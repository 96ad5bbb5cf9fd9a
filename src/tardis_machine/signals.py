"""The signals that stop a process."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop this process: SIGHUP only if it is not ignored (`nohup`)."""
    always = (signal.SIGTERM, signal.SIGINT)
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return always
    return (*always, signal.SIGHUP)


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets; restore the former handlers at the end.

    Only the main thread may set signal handlers, so only it may use this.
    """
    stop = threading.Event()

    def set_stop(*_: Any) -> None:
        stop.set()

    stopping = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, set_stop) for number in stopping}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
