"""The publisher's process: told what to do over standard input, telling how it is over a pipe.

The first line of input is the configuration, so that no secret is on a command line. `drain`
follows when the server stops. The end of input means that the server is gone: then the process
delivers what is left, and exits, or makes way for the publisher of the next server. A signal to
stop is for the server, as long as there is one: whoever stops a service stops all its processes
at once, and what is journalled is still to be delivered.
"""

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from tardis_machine import log as logs
from tardis_machine.config import from_dict
from tardis_machine.journal import Directory, LockedError, Log
from tardis_machine.journal.ring import Mover
from tardis_machine.publish.accounts import Snapshot
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.publisher import Publisher, tune

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_TELL_S: Final = 0.5
_GRACE_S: Final = 1.0
_NICENESS: Final = 5
"""Where processors are short, a response goes before what is published of it."""
SILENT_S: Final = 10.0
"""How long nobody hears of a publisher before it counts as stuck."""


class Settings(msgspec.Struct):
    """What the server tells its publisher before anything else."""

    buses: dict[str, dict[str, Any]]
    publish: dict[str, Any]
    journal: str
    log: str
    fsync_s: float | None = None
    log_format: str = "human"
    debug: bool = False


class Drain(msgspec.Struct):
    """Deliver what is there within so many seconds, report, exit.

    `ended`: the server has ended its log. It cannot where the disk hangs.
    """

    drain_s: float
    ended: bool = True


class _Input:
    """Commands as they come in, read by a thread."""

    def __init__(self) -> None:
        self.gone = False
        self._commands: queue.Queue[Drain] = queue.Queue()
        threading.Thread(target=self._read, name="input", daemon=True).start()

    def next(self, timeout_s: float) -> Drain | None:
        try:
            return self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._commands.put(msgspec.json.decode(line, type=Drain))
        self.gone = True


class Process:
    """One life of the publisher."""

    def __init__(self, settings: Settings, reports: int, mover: Mover | None = None) -> None:
        self._directory = Directory(Path(settings.journal))
        self._own_log = self._directory.path / settings.log
        self._reports = reports
        os.set_blocking(reports, False)
        self._unsaid = b""
        self._input = _Input()
        self._deadline: float | None = None
        self._signalled = False
        self._unended = False
        self._told_at = 0.0
        self._status_trouble = logs.Throttle()
        buses = {
            name: from_dict(BUSES[name].config_type, given)
            for name, given in settings.buses.items()
        }
        self._buses = tuple(buses)
        self._config = from_dict(PublishConfig, settings.publish)
        self._syncing = None if mover is None else mover.syncing
        written = (lambda: 0) if mover is None else mover.written
        self._publisher = Publisher(buses, self._directory, self._config, self._tell, written)

    def run(self) -> int:
        """Publish until drained, told to stop, or not needed any more."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server gets it too, and tells us
        signal.signal(signal.SIGTERM, self._on_term)
        done = False
        if self._take_lock():
            self._publisher.start()
            while self._goes_on():
                self._listen()
                self._publisher.tick()
                self._tell_sometimes()
            if self._deadline is not None:
                done = self._publisher.drain(self._deadline) and not self._unended
            self._publisher.stop(max(self._deadline or 0.0, time.monotonic() + _GRACE_S))
            closing = self._own_log.name if self._unended else ""
            snapshot = self._publisher.snapshot(final=True, closing=closing)
        else:
            done = not self._own_log.exists()
            snapshot = self._others_snapshot()
            snapshot.final = True
        if done:  # what is left is of servers that have just ended, or whose publisher is at work
            snapshot.leave_to_others(self._buses)
        self._write(snapshot)
        self._directory.unlock()
        return 1 if snapshot.left else 0

    def _take_lock(self) -> bool:
        """Wait for another publisher of this journal to end; False if it did all the work."""
        said = False
        while True:
            try:
                self._directory.lock()
            except LockedError as error:
                if not said:
                    said = True
                    _log.info("another publisher is at work", extra={"pid": error.pid})
                self._directory.ask_for_lock()
            else:
                return True
            self._listen()
            self._tell_sometimes(standby=True)
            leaving = self._deadline is not None or self._input.gone
            if leaving and not self._own_log.exists():
                return False
            if self._deadline is not None and time.monotonic() >= self._deadline:
                return False

    def _goes_on(self) -> bool:
        """Tell whether more may come that is to be delivered, and there is time for it."""
        if self._deadline is None:
            return not self._may_leave()
        if self._log_ended() or time.monotonic() >= self._deadline:
            return False
        return self._input.gone or (self._unended and self._is_behind())

    def _is_behind(self) -> bool:
        """Return whether any bus has yet to get messages that can be read from the logs."""
        return any(bus.account.pending for bus in self._publisher.snapshot().buses.values())

    def _may_leave(self) -> bool:
        """Tell whether the server is gone and so is the work, or another publisher waits for it."""
        if not self._input.gone:
            return False
        done = self._log_ended() and self._publisher.settle()
        return done or self._directory.asked_for_lock()

    def _log_ended(self) -> bool:
        """Tell whether the server has let go of its log: one that is killed does so last."""
        return Log(self._own_log).finished()

    def _listen(self) -> None:
        command = self._input.next(_TICK_S)
        if command is not None:
            self._deadline = time.monotonic() + command.drain_s
            self._unended = not command.ended
            if command.ended:
                self._take_its_word()
        elif self._signalled and self._input.gone and self._deadline is None:
            self._deadline = time.monotonic() + self._config.drain_timeout_s

    def _take_its_word(self) -> None:
        """Count the server's log as ended, even if another process keeps its lock."""
        for log in self._directory.logs():
            if log.path == self._own_log:
                log.declare_finished()

    def _tell_sometimes(self, *, standby: bool = False) -> None:
        if time.monotonic() - self._told_at < _TELL_S:
            return
        if standby:
            self._told_at = time.monotonic()
            self._write(self._others_snapshot())
        else:
            self._tell()

    def _tell(self) -> None:
        """Say how things are: to the server, and to those who wait for the lock."""
        self._told_at = time.monotonic()
        snapshot = self._publisher.snapshot()
        try:
            self._directory.write_status(msgspec.json.encode(snapshot))
        except OSError as error:  # a full disk: what stands there grows old, and says so
            if self._status_trouble.allow() is not None:
                _log.warning("status cannot be written", extra={"error": str(error)})
        self._write(snapshot)

    def _others_snapshot(self) -> Snapshot:
        """Give what the publisher at work said last; if that is long ago, no bus is healthy."""
        status = self._directory.read_status()
        snapshot = self._publisher.snapshot()
        if status is not None:
            with contextlib.suppress(msgspec.MsgspecError):  # another version's, or just written
                snapshot = msgspec.json.decode(status, type=Snapshot)
        snapshot.standby = True
        silent_s = time.monotonic() - snapshot.at
        for bus in snapshot.buses.values() if silent_s > SILENT_S else ():
            bus.statistics.healthy = False
            bus.statistics.last_error = "the publisher at work is silent"
        return snapshot

    def _write(self, snapshot: Snapshot) -> None:
        """Report to the server; its last report is waited for, no other one.

        A server that stands still must not hold up what this process publishes for others.
        """
        if self._syncing is not None:
            snapshot.sync_failures = self._syncing.failures
            snapshot.sync_error = self._syncing.last_error
        if snapshot.final:
            os.set_blocking(self._reports, True)
        elif self._unsaid:
            self._say()
            if self._unsaid:
                return
        self._unsaid += msgspec.json.encode(snapshot) + b"\n"
        self._say()

    def _say(self) -> None:
        """Write what there is to be said, as far as there is room for it."""
        try:
            while self._unsaid:
                self._unsaid = self._unsaid[os.write(self._reports, self._unsaid) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the server is gone
            self._unsaid = b""

    def _on_term(self, *_: object) -> None:
        self._signalled = True


def _give_way() -> None:
    """Have no thread that wakes up take a processor away from whoever is at work there.

    It has its share all the same, a little later. To empty the ring is half a megabyte a thousand
    times a second, which drives all that a server has out of the caches of the processor it is on.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Run with the configuration that comes first on standard input."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
    logs.configure(settings.log_format, debug=settings.debug)
    tune()
    _give_way()
    # Before: who empties the ring must not be slower than the server that fills it.
    mover = None
    if (ring := int(sys.argv[2]) if len(sys.argv) > 2 else -1) >= 0:
        mover = Mover(Path(settings.journal) / settings.log, ring, settings.fsync_s)
        mover.start()
    os.nice(_NICENESS)
    try:
        code = Process(settings, int(sys.argv[1]), mover).run()
    except Exception:  # noqa: BLE001 - whatever it was, threads must not keep the process
        _log.exception("publisher failed")
        code = 2
    sys.stdout.flush()
    logging.shutdown()
    # A bus that did not let go in time must not keep the process.
    os._exit(code)


if __name__ == "__main__":
    main()
