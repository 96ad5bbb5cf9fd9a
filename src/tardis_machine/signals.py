"""The signals that tell a process to stop."""

import signal
import sys


def stop_signals() -> tuple[signal.Signals, ...]:
    """Name them; a terminal's hangup is one of them unless it is ignored, as nohup has it."""
    found = (signal.SIGTERM, signal.SIGINT)
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return found
    return (*found, signal.SIGHUP)
