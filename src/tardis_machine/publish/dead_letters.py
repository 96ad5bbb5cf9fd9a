"""What a bus will never accept: NDJSON with the reason, to be sent again once that has changed."""

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tardis_machine.bronze import Context, Event, Rejected
from tardis_machine.errors import TardisMachineError

_NAME: Final = "{bus}.ndjson"


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
            value=base64.b64decode(self.value),
            payload_case=self.payload_case,
            exchange=self.exchange,
            symbol=self.symbol,
            data_type=self.data_type,
            event_id=self.event_id,
            local_us=self.local_us,
            position=self.position,
        )


class DeadLetterError(TardisMachineError):
    """A file of dead letters that cannot be read."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}, line {line}: {reason}")


class DeadLetters:
    """The dead letters of one bus, appended to one file."""

    def __init__(self, directory: Path, bus: str) -> None:
        self.bus = bus
        self.path = directory / _NAME.format(bus=bus)

    def add_event(self, context: Context, event: Event, destination: str, reason: str) -> None:
        self.add(
            DeadLetter(
                bus=self.bus,
                reason=reason,
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
        )

    def add_line(self, context: Context, rejected: Rejected) -> None:
        self.add(
            DeadLetter(
                bus=self.bus,
                reason=str(rejected.error),
                time_us=time.time_ns() // 1000,
                context=context,
                position=rejected.position,
                line=rejected.line.decode(errors="replace"),
            )
        )

    def add(self, letter: DeadLetter) -> None:
        """Write one line and force it to disk: the journal forgets the message after this."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            start = os.fstat(fd).st_size
            data = msgspec.json.encode(letter) + b"\n"
            try:
                written = os.write(fd, data)
                while written < len(data):
                    written += os.write(fd, data[written:])
                os.fdatasync(fd)
            except OSError:
                os.ftruncate(fd, start)
                raise
        finally:
            os.close(fd)


def read(path: Path) -> Iterator[DeadLetter]:
    """Read a file of dead letters."""
    decoder = msgspec.json.Decoder(DeadLetter)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise DeadLetterError(path, number, f"is no dead letter: {error}") from error
