"""Several server processes that share both ports.

The listening sockets are made once and inherited, not bound again by each process
(SO_REUSEPORT): an idle process takes the next connection, whereas the kernel's hashing would
also give it to one that is busy; and a second server on the same ports is still refused.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from tardis_machine.config import ConfigError
from tardis_machine.signals import stop_signals

log = logging.getLogger(__name__)

_QUICK_DEATH_S: Final = 5.0
_RESTART_DELAY_S: Final = 1.0
_RESTART_WINDOW_S: Final = 600.0
_MISCONFIGURED: Final = 78
"""The exit code by which a process tells that another one would fare no better."""
_PR_SET_PDEATHSIG: Final = 1
_MAX_PATH: Final = 60


class Worker(NamedTuple):
    """One process of a cluster. Started again, it keeps its number."""

    directory: Path
    """Where the workers find each other."""
    number: int
    restarts: int = 0


Serve = Callable[[Worker], int]
"""Serves as this worker until told to stop; returns the exit code."""


def run_cluster(serve: Serve, *, processes: int, max_restarts: int) -> int:
    """Run `serve` in several processes until told to stop; start anew those that die.

    Not for ever: a process that cannot be configured ends them all, and so do too many deaths
    within ten minutes.
    """
    # The path of a socket may have a hundred bytes; this has forty of its own.
    is_long = len(os.fsencode(tempfile.gettempdir())) > _MAX_PATH
    place = "/tmp" if is_long else None  # noqa: S108 - a directory of its own in it
    with tempfile.TemporaryDirectory(prefix="tardis-machine-", dir=place) as directory:
        return _Cluster(serve, Path(directory), max_restarts).run(processes)


class _Cluster:
    def __init__(self, serve: Serve, directory: Path, max_restarts: int) -> None:
        self._serve = serve
        self._directory = directory
        self._max_restarts = max_restarts
        self._workers: dict[int, tuple[Worker, float]] = {}
        self._told = threading.Event()
        self._deaths: deque[float] = deque()
        self._telling = stop_signals()

    def run(self, processes: int) -> int:
        for number in self._telling:
            signal.signal(number, self._stop)
        for worker_number in range(processes):
            self._start(Worker(self._directory, worker_number))
        worst, failed = 0, False
        while self._workers:
            pid, status = os.wait()
            worker, started = self._workers.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if self._told.is_set():
                if -code not in self._telling:  # it had not begun to listen to them
                    worst = max(worst, abs(code))
                continue
            if code == _MISCONFIGURED or not self._may_restart():
                failed = True
                self._stop(signal.SIGTERM, None)
                continue
            extra = {"worker": worker.number, "pid": pid, "exit_code": code}
            log.error("server process died", extra=extra)
            if time.monotonic() - started < _QUICK_DEATH_S:
                self._told.wait(_RESTART_DELAY_S)
            self._start(worker._replace(restarts=worker.restarts + 1))
        return 1 if failed else worst

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > _RESTART_WINDOW_S:
            self._deaths.popleft()
        if len(self._deaths) <= self._max_restarts:
            return True
        log.error(
            "server processes keep dying: all are ended",
            extra={"deaths": len(self._deaths), "within_s": _RESTART_WINDOW_S},
        )
        return False

    def _stop(self, number: int, _: object) -> None:
        self._told.set()
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):  # dead, and waited for a moment ago
                os.kill(pid, number)

    def _start(self, worker: Worker) -> None:
        parent = os.getpid()
        # A signal waits meanwhile: this process would not know the new one yet, and the new one
        # would take it as this process does.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._telling)
        try:
            if self._told.is_set():
                return
            pid = os.fork()
            if pid == 0:
                _serve_and_exit(self._serve, worker, parent, self._telling)
            self._workers[pid] = worker, time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._telling)


def _serve_and_exit(
    serve: Serve, worker: Worker, parent: int, telling: Iterable[signal.Signals]
) -> NoReturn:
    _end_with(parent)
    for number in telling:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, telling)
    code = 1
    try:
        code = serve(worker)
    except ConfigError as error:
        log.error("server cannot be configured", extra={"error": str(error)})  # noqa: TRY400
        code = _MISCONFIGURED
    except Exception:
        log.exception("server process failed")
    finally:
        sys.stdout.flush()
        logging.shutdown()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Be told to stop when the parent dies, however it does: nobody else would tell."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)
