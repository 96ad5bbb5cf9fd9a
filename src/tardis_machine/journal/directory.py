"""The journal directory: its logs, and the one publisher allowed to empty them."""

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Final

from tardis_machine.errors import TardisMachineError
from tardis_machine.journal.log import Log

_LOCK: Final = "publisher.lock"
_UNBORN_S: Final = 60.0
_WAITING: Final = "publisher.waiting"


class LockedError(TardisMachineError):
    """Another publisher empties this journal."""

    retriable = True

    def __init__(self, path: Path, pid: str) -> None:
        self.path = path
        self.pid = pid
        super().__init__(f"journal {path} is being published by process {pid or 'unknown'}")


class Directory:
    """All logs below one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logs: dict[str, Log] = {}
        self._fd: int | None = None

    def logs(self) -> list[Log]:
        """List the logs, oldest first. The same Log is given for the same name each time."""
        try:
            with os.scandir(self.path) as found:
                names = sorted(item.name for item in found if item.name[0] != "." and item.is_dir())
        except FileNotFoundError:
            names = []
        logs = {}
        for name in names:
            log = self._logs.get(name)
            if log is not None or (self.path / name / "log.json").exists():
                logs[name] = log or Log(self.path / name)
        self._logs = logs
        return list(logs.values())

    def bytes(self) -> int:
        return sum(log.bytes() for log in self.logs())

    def lock(self) -> None:
        """Become this journal's publisher, or raise LockedError."""
        self.path.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise LockedError(self.path, pid) from None
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd
        with contextlib.suppress(FileNotFoundError):
            (self.path / _WAITING).unlink()
        for leftover in self.path.glob(".old-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for unborn in self.path.glob(".new-*"):  # of a server that died while making its log
            with contextlib.suppress(FileNotFoundError):
                if time.time() - unborn.stat().st_mtime > _UNBORN_S:
                    shutil.rmtree(unborn, ignore_errors=True)

    def ask_for_lock(self) -> None:
        """Tell a publisher whose server is gone that another one would take over."""
        (self.path / _WAITING).touch()

    def asked_for_lock(self) -> bool:
        return (self.path / _WAITING).exists()

    def unlock(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
