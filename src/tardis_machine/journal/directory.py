"""The journal directory: its logs, whose configuration they belong to, and its one publisher."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tardis_machine.config import make_private
from tardis_machine.errors import TardisMachineError
from tardis_machine.journal import durable, segment
from tardis_machine.journal.log import NUMBERED, Log, clear, is_log, is_name

_log = logging.getLogger(__name__)

_ENTRANCE: Final = "entrance.lock"
_SPACE: Final = "space.lock"
_PUBLISHER: Final = "publisher.lock"
_WAITING: Final = "publisher.waiting"
_STATUS: Final = "publisher.json"


class LockedError(TardisMachineError):
    """Another publisher empties this journal."""

    retriable = True

    def __init__(self, path: Path, pid: str) -> None:
        self.path = path
        self.pid = pid
        super().__init__(f"journal {path} is being published by process {pid or 'unknown'}")


class BoundError(TardisMachineError):
    """The journal belongs to another configuration: to other buses, or to other destinations."""

    def __init__(
        self,
        path: Path,
        bound: Mapping[str, str],
        *,
        pending: Mapping[str, int] | None = None,
        pid: int | None = None,
    ) -> None:
        """`bound` says where each bus goes, `pid` who uses it now, `pending` what is left."""
        self.path = path
        self.bound = dict(bound)
        self.pending = dict(pending or {})
        self.pid = pid
        whose = ", ".join(f"{bus} ({where})" if where else bus for bus, where in bound.items())
        if pid is not None:
            reason = f"is in use by process {pid} for {whose}; expected a directory of its own"
        else:
            left = ", ".join(f"{count} messages for {bus}" for bus, count in self.pending.items())
            reason = (
                f"holds {left}, written for {whose}; drain it with those settings (tardis-machine "
                "publish), or take it over with --journal-adopt, or use another directory"
            )
        super().__init__(f"journal {path} {reason}")
        self.reason = reason


class Directory:
    """All logs below one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logs: dict[str, Log] = {}
        self._publisher: int | None = None
        self._waiting: int | None = None

    def logs(self) -> list[Log]:
        """List the logs, oldest first. The same Log is given for the same name each time."""
        try:
            with os.scandir(self.path) as found:
                names = sorted(
                    each.name
                    for each in found
                    if is_name(each.name) and each.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            names = []
        logs = {}
        for name in names:
            log = self._logs.get(name)
            if log is not None or is_log(self.path / name):
                logs[name] = log or Log(self.path / name)
        self._logs = logs
        return list(logs.values())

    def free_bytes(self) -> int:
        """Tell what its disk has left."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def aside_bytes(self) -> int:
        """Sum up what is kept aside, though somebody may just be moving it away."""
        total = 0
        for folder, _, names in os.walk(segment.aside(self.path)):
            for name in names:
                with contextlib.suppress(OSError):
                    total += Path(folder, name).stat().st_size
        return total

    def next_log(self, token: str) -> str:
        """Name a new log so that it sorts behind all there are, whatever the clock says.

        The entrance must be held.
        """
        paths = [*self.path.iterdir(), *segment.aside(self.path).glob("*")]
        numbers = [int(match[1]) for path in paths if (match := NUMBERED.match(path.name))]
        return f"log-{max(numbers, default=0) + 1:012}-{token}"

    @contextlib.contextmanager
    def entrance(self) -> Iterator[None]:
        """Keep all others from making logs meanwhile."""
        make_private(self.path)
        with self._held(_ENTRANCE):
            self._clear(".new-")  # of a server that died while making its log
            yield

    @contextlib.contextmanager
    def space(self) -> Iterator[None]:
        """Keep all others from taking space meanwhile: the bound is one for all processes."""
        with self._held(_SPACE):
            yield

    def bind(
        self, destinations: Mapping[str, str], *, adopt: bool = False, partly: bool = False
    ) -> None:
        """Make sure that all logs belong to this configuration, or raise BoundError.

        What is delivered binds nobody. With `adopt`, logs that are left over are written over to
        it; what they hold for a bus that it does not have is given up. `partly`: it need not have
        all buses, as long as those that it has go where they went. The entrance must be held.
        """
        bound: dict[str, str] = {}
        pending: dict[str, int] = {}
        strange: list[Log] = []
        for log in self.logs():
            meta = log.meta()
            if meta is None or (log.finished() and not log.readable()):
                continue  # every bus gets it, or it is kept aside
            others = [bus for bus in meta.buses if not belongs(log, bus, destinations)]
            where = {bus: log.destination(bus) for bus in meta.buses}
            if partly and not adopt:
                others = [bus for bus in others if bus in destinations]
            same = partly or where.keys() == destinations.keys()
            if not log.finished() and (others or not same):
                raise BoundError(self.path, where, pid=meta.pid)
            left = {bus: count for bus in others if (count := log.pending(bus))}
            if left:
                strange.append(log)
            for bus, count in left.items():
                pending[bus] = pending.get(bus, 0) + count
                bound[bus] = where[bus]
        if pending and not adopt:
            raise BoundError(self.path, bound, pending=pending)
        for log in strange:
            log.rebind(destinations)
        for bus, count in pending.items():
            taken = bus in destinations
            event = (
                "taken over by this configuration" if taken else "given up: no such bus any more"
            )
            extra = {"bus": bus, "messages": count, "was": bound[bus]}
            _log.log(logging.INFO if taken else logging.WARNING, event, extra=extra)

    def lock(self) -> None:
        """Become this journal's publisher, or raise LockedError."""
        make_private(self.path)
        fd = durable.open_private(self.path / _PUBLISHER, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise LockedError(self.path, pid) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._publisher = fd
        self._stop_waiting()
        self._clear(".old-")

    def unlock(self) -> None:
        if self._publisher is not None:
            durable.let_go(self._publisher)
            self._publisher = None
        self._stop_waiting()

    def ask_for_lock(self) -> None:
        """Tell a publisher whose server is gone that another one would take over.

        That is a lock too, not a file that would go on asking for whoever is dead.
        """
        if self._waiting is None:
            self._waiting = durable.open_private(self.path / _WAITING, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._waiting, fcntl.LOCK_SH)

    def asked_for_lock(self) -> bool:
        fd = durable.open_private(self.path / _WAITING, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            durable.let_go(fd)
        return False

    def write_status(self, data: bytes) -> None:
        """Leave the publisher's last word where those who wait for its lock find it."""
        partial = self.path / f".{_STATUS}.new"
        fd = durable.open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            durable.write_all(fd, data)
        finally:
            os.close(fd)
        partial.replace(self.path / _STATUS)

    def read_status(self) -> bytes | None:
        """Give the publisher's last word; None if it has not said any."""
        try:
            return (self.path / _STATUS).read_bytes()
        except FileNotFoundError:
            return None

    def _clear(self, prefix: str) -> None:
        """Delete what is left of logs that were being made, or deleted, when their process died."""
        for path in list(self.path.glob(f"{prefix}*")):
            name = path.name.removeprefix(prefix)
            if is_name(name):
                clear(path, name)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            durable.let_go(self._waiting)
            self._waiting = None

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[None]:
        fd = durable.open_private(self.path / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            durable.let_go(fd)


def belongs(log: Log, bus: str, destinations: Mapping[str, str]) -> bool:
    """Tell whether a log's messages for a bus are to go where that bus goes now."""
    known = {log.destination(bus), destinations.get(bus, "")} - {""}
    return bus in destinations and len(known) <= 1
