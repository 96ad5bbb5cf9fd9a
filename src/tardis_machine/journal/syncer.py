"""What was written, forced to disk from time to time."""

import contextlib
import logging
import os
import threading
from pathlib import Path

from tardis_machine.journal import durable

_log = logging.getLogger(__name__)


class Syncer:
    """A thread that syncs what was written since the last time, and closes retired segments."""

    def __init__(self, path: Path, interval_s: float) -> None:
        self._path = path
        self._interval_s = interval_s
        self._current: int | None = None
        self._retired: list[int] = []
        self._begun = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-fsync", daemon=True)
        self._thread.start()

    def dirty(self, fd: int) -> None:
        """Have a segment synced that was written to."""
        self._current = fd

    def retire(self, fd: int) -> None:
        """Have one synced and closed; another was begun."""
        with self._lock:
            self._retired.append(fd)
            self._begun = True
            self._current = None

    def begin(self) -> None:
        """Have the name of a new segment synced: it counts as much."""
        self._begun = True

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._sync()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sync()

    def _sync(self) -> None:
        with self._lock:
            retired, self._retired = self._retired, []
            current, self._current = self._current, None
            begun, self._begun = self._begun, False
            # A duplicate: the writer may retire and this thread close the original meanwhile.
            current = None if current is None else os.dup(current)
        for fd in (*retired, *(() if current is None else (current,))):
            try:
                os.fdatasync(fd)
            except OSError as error:
                _log.exception("journal could not be synced", extra={"error": error.strerror})
            finally:
                with contextlib.suppress(OSError):
                    os.close(fd)
        if begun:
            try:
                durable.sync_directory(self._path)
            except OSError as error:
                _log.exception("journal could not be synced", extra={"error": error.strerror})
