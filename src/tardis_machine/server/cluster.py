"""Several server processes that share both ports.

The listening sockets are made once and inherited, not bound again by each process
(SO_REUSEPORT): an idle process takes the next connection, whereas the kernel's hashing would
also give it to one that is busy; and a second server on the same ports is still refused.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NoReturn

log = logging.getLogger(__name__)

_QUICK_DEATH_S: Final = 5.0
_RESTART_DELAY_S: Final = 1.0
_PR_SET_PDEATHSIG: Final = 1


def run_cluster(serve: Callable[[], int], *, processes: int) -> int:
    """Run `serve` in several processes until told to stop; start anew those that die."""
    workers: dict[int, float] = {}
    told = threading.Event()

    def stop(number: int, _: object) -> None:
        told.set()
        for pid in workers:
            os.kill(pid, number)

    def start() -> None:
        pid = _worker(serve)
        workers[pid] = time.monotonic()
        if told.is_set():  # while it was being made
            os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for _ in range(processes):
        start()
    worst = 0
    while workers:
        pid, status = os.wait()
        started = workers.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if told.is_set():
            worst = max(worst, abs(code))
            continue
        log.error("server process died", extra={"pid": pid, "exit_code": code})
        if time.monotonic() - started < _QUICK_DEATH_S:
            told.wait(_RESTART_DELAY_S)
        start()
    return worst


def _worker(serve: Callable[[], int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    return pid or _serve_and_exit(serve, parent)


def _serve_and_exit(serve: Callable[[], int], parent: int) -> NoReturn:
    _end_with(parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    code = 1
    try:
        code = serve()
    except Exception:
        log.exception("server process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Be told to stop when the parent dies, however it does: nobody else would tell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)
