"""Dead letters sent again, after what was wrong with them or with the bus has changed."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tardis_machine.bronze import Encoder, Event, Rejected
from tardis_machine.config import ConfigError, claim
from tardis_machine.journal.durable import open_private, sync_directory, write_all
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig, EventBus
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import (
    IN_WORK,
    DeadLetter,
    DeadLetters,
    Unreadable,
    in_work,
    read,
    wait_for_writer,
)
from tardis_machine.publish.record import Record
from tardis_machine.publish.settling import settle

_log = logging.getLogger(__name__)

_LOCK: Final = ".resend.lock"
_UNREADABLE: Final = ".unreadable"


class Resent:
    """What became of one file of dead letters."""

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.delivered = 0
        self.filtered = 0
        self.refused = 0
        self.unsent = 0
        self.unreadable = 0

    @property
    def left(self) -> int:
        """Count what is still somewhere in the dead letters."""
        return self.refused + self.unsent + self.unreadable

    def counts(self) -> dict[str, str | int]:
        return dict(vars(self))


def resend(path: Path, buses: Mapping[str, BusConfig], config: PublishConfig) -> Iterator[Resent]:
    """Send the letters of a file, or of all files of a directory.

    A file is renamed while it is worked on, so that a publisher may write new letters meanwhile;
    what is refused again, or could not be sent, goes back to where it was. What a run that was
    killed has left under that other name comes first, and is never written over.
    """
    files = _files(path)
    directory = claim("--dead-letters", path if path.is_dir() else path.parent)
    with _alone(directory):
        for file in files:
            work = in_work(file)
            if work.exists():
                yield from _work_off(work, buses, config)
            if file.exists():
                file.rename(work)
                sync_directory(work.parent)
                yield from _work_off(work, buses, config)


def _files(path: Path) -> list[Path]:
    """Name the files that letters were written to, whether they are there or in work."""
    if path.is_dir():
        found = [*path.glob("*.ndjson"), *path.glob(f"*.ndjson{IN_WORK}")]
        return sorted({file.with_name(file.name.removesuffix(IN_WORK)) for file in found})
    if not path.exists() and not in_work(path).exists():
        raise ConfigError("--dead-letters", str(path), "expected a file or a directory of them")
    return [path.with_name(path.name.removesuffix(IN_WORK))]


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep a second run away: it would send the same letters."""
    fd = open_private(directory / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "--dead-letters", str(directory), "is being sent again by another process"
            ) from None
        yield
    finally:
        os.close(fd)


def _work_off(
    work: Path, buses: Mapping[str, BusConfig], config: PublishConfig
) -> Iterator[Resent]:
    """Send one file's letters; it is gone when each of them is delivered or back."""
    unreadable = 0
    wait_for_writer(work)
    # Before the first of them is sent: what is refused then would be sent again with the rest.
    for letter in read(work):
        if isinstance(letter, DeadLetter) and letter.bus not in buses:
            allowed = ", ".join(buses) or "none"
            raise ConfigError(
                "--dead-letters", str(work), f"is for {letter.bus}; buses configured: {allowed}"
            )

    def letters() -> Iterator[DeadLetter]:
        nonlocal unreadable
        for found in read(work):
            if isinstance(found, Unreadable):
                unreadable += 1
                _set_aside(work, found)
            else:
                yield found

    for bus, of_bus in groupby(letters(), key=lambda letter: letter.bus):
        yield _resend(of_bus, BUSES[bus](buses[bus]), DeadLetters(work.parent, bus), config)
    if unreadable:
        found = Resent(work.name.removesuffix(IN_WORK))
        found.unreadable = unreadable
        yield found
    work.unlink()
    sync_directory(work.parent)


def _set_aside(work: Path, found: Unreadable) -> None:
    aside = work.with_name(work.name.removesuffix(IN_WORK) + _UNREADABLE)
    _log.error("no dead letter, kept aside", extra={"path": str(aside), "reason": found.reason})
    fd = open_private(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        write_all(fd, found.line.rstrip(b"\n") + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def _resend(
    letters: Iterator[DeadLetter], bus: EventBus[Any], back: DeadLetters, config: PublishConfig
) -> Resent:
    found = Resent(bus.name)
    router = bus.router()
    try:
        while batch := list(islice(letters, bus.limits.records)):
            waiting: list[_Waiting] = []
            refused: list[DeadLetter] = []
            for letter in batch:
                event = letter.event() or _encode(letter)
                if isinstance(event, Rejected):
                    refused.append(letter)
                    continue
                router.context = letter.context
                records = router.route([event])
                waiting += [_Waiting(letter, record) for record in records]
                found.filtered += not records
            if not found.unsent:
                waiting = _send(waiting, bus, refused, config, found)
            found.refused += len(refused)
            found.unsent += len(waiting)
            if refused or waiting:
                back.add([*refused, *(letter for letter, _ in waiting)])
    finally:
        bus.close()
    return found


class _Waiting(NamedTuple):
    letter: DeadLetter
    record: Record


def _encode(letter: DeadLetter) -> Event | Rejected:
    """Encode a line that could not be encoded before; it may be a newer encoder's turn."""
    return Encoder(letter.context).encode_line(letter.line.encode(), letter.position)


def _send(
    waiting: list[_Waiting],
    bus: EventBus[Any],
    refused: list[DeadLetter],
    config: PublishConfig,
    found: Resent,
) -> list[_Waiting]:
    """Try as often as configured; gives what the bus did not take then."""
    settled = settle(bus, [each.record for each in waiting], config)
    found.delivered += settled.delivered
    refused += [
        msgspec.structs.replace(waiting[place].letter, reason=str(error))
        for place, error in settled.refused
    ]
    return [waiting[place] for place, _ in settled.unsent]
