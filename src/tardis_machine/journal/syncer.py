"""What was written, forced to disk from time to time, and whether that works."""

import contextlib
import logging
import os
import threading
from pathlib import Path

from tardis_machine.bounded import shortened
from tardis_machine.journal import durable
from tardis_machine.log import Throttle

_log = logging.getLogger(__name__)


class SyncState:
    """Whether syncs succeed: after one has failed, not until a segment begun later is synced.

    The kernel reports a failed sync once, and may have given up the pages: a later success of the
    same file proves nothing. May be used by any thread.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.last_error = ""
        self._failed = False
        self._newest = -1
        self._failed_at = -1
        self._lock = threading.Lock()
        self._said = Throttle()

    @property
    def reason(self) -> str:
        """Why the last sync failed; empty while what was synced can be relied on."""
        return self.last_error if self._failed else ""

    @property
    def wants_segment(self) -> bool:
        """Whether nothing more should be written to the newest segment."""
        return self._failed and self._newest <= self._failed_at

    def begin(self, segment: int) -> None:
        """Note that a segment was begun; called by the thread that writes."""
        with self._lock:
            self._newest = segment

    def fail(self, error: OSError | str) -> None:
        """Note a failed sync of any file of the log."""
        reason = shortened(error if isinstance(error, str) else error.strerror or str(error))
        with self._lock:
            self.failures += 1
            self.last_error, self._failed = reason, True
            self._failed_at = self._newest
        if self._said.allow() is not None:
            extra = {"error": reason, "failures": self.failures}
            _log.error("journal cannot be synced, power loss may cost messages", extra=extra)

    def succeed(self, segment: int) -> None:
        """Note that a segment and its name were synced."""
        with self._lock:
            recovered = self._failed and segment > self._failed_at
            if recovered:
                self._failed = False
        if recovered:
            _log.info("journal is synced again", extra={"failures": self.failures})


class Syncer:
    """A thread that syncs what was written since the last time, and closes retired segments."""

    def __init__(self, path: Path, interval_s: float, state: SyncState) -> None:
        self._path = path
        self._interval_s = interval_s
        self._state = state
        self._current: tuple[int, int] | None = None
        self._retired: list[tuple[int, int]] = []
        self._begun = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal-fsync", daemon=True)
        self._thread.start()

    def dirty(self, fd: int, segment: int) -> None:
        """Have a segment synced that was written to."""
        self._current = fd, segment

    def retire(self, fd: int, segment: int) -> None:
        """Have one synced and closed; another was begun."""
        with self._lock:
            self._retired.append((fd, segment))
            self._begun = True
            self._current = None

    def begin(self) -> None:
        """Have the name of a new segment synced: it counts as much."""
        self._begun = True

    def stop(self) -> None:
        """End the thread and sync what is left; takes as long as the disk does."""
        self._stop.set()
        self._thread.join()
        self._sync()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._sync()
            except Exception as error:  # noqa: BLE001 - without this thread nothing is synced
                self._state.fail(f"{type(error).__name__}: {error}")

    def _sync(self) -> None:
        with self._lock:
            files, self._retired = self._retired, []
            begun, self._begun = self._begun, False
            current = self._current
            failed: OSError | None = None
            if current is not None:
                try:
                    # A duplicate: the writer may retire and this thread close it meanwhile.
                    files.append((os.dup(current[0]), current[1]))
                    self._current = None
                except OSError as error:  # no descriptor is free
                    failed = error
        synced = []
        for fd, segment in files:
            try:
                os.fdatasync(fd)
                synced.append(segment)
            except OSError as error:
                failed = error
            finally:
                with contextlib.suppress(OSError):
                    os.close(fd)
        if begun:
            try:
                durable.sync_directory(self._path)
            except OSError as error:
                failed = error
        if failed is not None:
            self._state.fail(failed)
            return
        for segment in synced:
            self._state.succeed(segment)
