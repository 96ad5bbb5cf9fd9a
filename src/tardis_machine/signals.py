"""The signals that stop a process."""

import signal
import sys


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop this process: SIGHUP only if it is not ignored (`nohup`)."""
    always = (signal.SIGTERM, signal.SIGINT)
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return always
    return (*always, signal.SIGHUP)
