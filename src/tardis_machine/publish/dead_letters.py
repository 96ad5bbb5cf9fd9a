"""What a bus will never accept: NDJSON with the reason, to be sent again once that has changed."""

import base64
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tardis_machine.bounded import shortened
from tardis_machine.bronze import Context, DecodeError, Event, Rejected, Series, decode
from tardis_machine.config import make_private
from tardis_machine.journal.durable import open_private, sync_directory, write_all

_NAME: Final = "{bus}.ndjson"
IN_WORK: Final = ".resending"
_POSITIONS: Final = 1 << 63


class DeadLetter(msgspec.Struct, omit_defaults=True):
    """One message that was refused: the event, or the line that could not become one."""

    bus: str
    reason: str
    time_us: int
    context: Context
    position: int
    destination: str = ""
    event_id: str = ""
    payload_case: str = ""
    exchange: str = ""
    symbol: str = ""
    data_type: str = ""
    local_us: int = 0
    value: str = ""
    line: str = ""

    def event(self) -> Event | None:
        """Give the event back as it was; None for a line that has never been one."""
        if not self.value:
            return None
        return Event(
            value=base64.b64decode(self.value, validate=True),
            series=Series(self.exchange, self.symbol, self.payload_case, self.data_type),
            event_id=self.event_id,
            local_us=self.local_us,
            position=self.position,
        )

    def verify(self) -> None:
        """Refuse what is damaged inside, with DecodeError or ValueError: nobody could send that."""
        event = self.event()
        if event is None:
            if not self.line.strip() or "\n" in self.line.rstrip("\n"):
                raise ValueError("expected an event, or a line")
        elif decode(event.value).envelope.event_id != self.event_id:
            raise ValueError("the event has another id")
        if not 0 <= self.position < _POSITIONS:
            raise ValueError(f"{self.position} is no position")


class DeadLettersFullError(OSError):
    """The dead letters of a bus have reached their bound: the bus waits until some are gone."""

    def __init__(self, path: Path, size: int, limit: int) -> None:
        self.path = path
        self.size = size
        self.limit = limit
        super().__init__(
            errno.EDQUOT,
            f"{size} of {limit} bytes are used; send them again (tardis-machine publish "
            "--dead-letters) or see --dead-letter-max-bytes",
            str(path),
        )


class DeadLetters:
    """The dead letters of one bus, appended to one file that is bounded."""

    def __init__(self, directory: Path, bus: str, max_bytes: int | None = None) -> None:
        self.bus = bus
        self.path = directory / _NAME.format(bus=bus)
        self._max_bytes = max_bytes

    def of_event(self, context: Context, event: Event, destination: str, reason: str) -> DeadLetter:
        return DeadLetter(
            bus=self.bus,
            reason=shortened(reason),
            time_us=time.time_ns() // 1000,
            context=context,
            position=event.position,
            destination=destination,
            event_id=event.event_id,
            payload_case=event.payload_case,
            exchange=event.exchange,
            symbol=event.symbol,
            data_type=event.data_type,
            local_us=event.local_us,
            value=base64.b64encode(event.value).decode(),
        )

    def of_line(self, context: Context, rejected: Rejected) -> DeadLetter:
        return DeadLetter(
            bus=self.bus,
            reason=shortened(str(rejected.error)),
            time_us=time.time_ns() // 1000,
            context=context,
            position=rejected.position,
            line=rejected.line.decode(errors="replace"),
        )

    def size(self) -> int:
        """Measure what lies there, with what is being sent again."""
        return sum(_size(path) for path in (self.path, in_work(self.path)))

    def add(self, letters: Sequence[DeadLetter]) -> int:
        """Write as many of these as there is room for, and force them to disk with one sync.

        The journal forgets the messages after this. Tells how many it were; OSError if none. An
        empty file takes a letter of any size.
        """
        lines = [msgspec.json.encode(letter) + b"\n" for letter in letters]
        count = self._fitting(lines)
        make_private(self.path.parent)
        fd = self._open()
        try:
            start = os.fstat(fd).st_size
            # What power loss has torn stays a line of its own.
            torn = start > 0 and os.pread(fd, 1, start - 1) != b"\n"
            try:
                write_all(fd, (b"\n" if torn else b"") + b"".join(lines[:count]))
                os.fdatasync(fd)
            except OSError:
                os.ftruncate(fd, start)
                raise
        finally:
            os.close(fd)
        if start == 0:
            sync_directory(self.path.parent)
        return count

    def _open(self) -> int:
        """Open the file and lock it: what is sent again from it must not miss what is written."""
        while True:
            fd = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(fd), self.path.stat()):
                    return fd
            except FileNotFoundError:
                pass  # like another file in its place: it was taken away meanwhile
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _fitting(self, lines: Sequence[bytes]) -> int:
        if self._max_bytes is None:
            return len(lines)
        used = self.size()
        size, count = used, 0
        for line in lines:
            if size + len(line) > self._max_bytes and size:
                break
            size += len(line)
            count += 1
        if lines and not count:
            raise DeadLettersFullError(self.path, used, self._max_bytes)
        return count


def in_work(path: Path) -> Path:
    """Name the file that letters are sent again from: what it was, and that it is at work."""
    return path.with_name(path.name + IN_WORK)


def wait_for_writer(path: Path) -> None:
    """Wait until a file that was renamed is complete: nobody begins to write to it any more."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # whoever writes there is told what is wrong
        return 0


class Unreadable(NamedTuple):
    """A line that is no dead letter: torn by power loss, damaged, or another's."""

    line: bytes
    reason: str


def read(path: Path) -> Iterator[DeadLetter | Unreadable]:
    """Read a file of dead letters; what cannot be read is given as it is."""
    decoder = msgspec.json.Decoder(DeadLetter)
    with path.open("rb") as file:
        for line in file:
            try:
                letter = decoder.decode(line)
                letter.verify()
            except (msgspec.MsgspecError, DecodeError, ValueError) as error:
                if line.strip():
                    yield Unreadable(line, str(error))
            else:
                yield letter
