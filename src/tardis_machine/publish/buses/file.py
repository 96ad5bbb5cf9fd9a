"""Records as JSON lines in a file, for debugging and for reading back."""

import base64
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from tardis_machine.config import ConfigError, setting
from tardis_machine.publish.buses.base import BusConfig, EventBus, Limits
from tardis_machine.publish.buses.errors import BusUnavailableError
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import Record
from tardis_machine.publish.routing import DEFAULT_KEY, Routing, static_headers

_LOOK_S: Final = 0.01
"""How often to look whether another process is done with the file."""


@dataclass(frozen=True, kw_only=True)
class FileConfig(BusConfig, section="file", title="File"):
    """The file, and what goes into it."""

    needs = ("path",)

    path: Path | None = setting(None, help="append every record to this file as a line of JSON")
    key_template: str = setting(DEFAULT_KEY, help="each record's key")
    static_headers: dict[str, str] = setting(
        {}, help="headers that every record carries", metavar="KEY:VALUE,…"
    )

    def routing(self) -> Routing:
        """Everything goes to the one file."""
        return self.rules(
            "path",
            key="key_template",
            headers=static_headers(self.static_headers, self.flag("static_headers")),
        )

    @property
    def limits(self) -> Limits:
        """One write per batch."""
        return Limits(records=5_000, bytes=8 << 20, delay_s=0.1)

    def validate(self) -> None:
        """Refuse what is no file: of a folder or a device no torn line can be cut off."""
        super().validate()
        if self.path is not None and self.path.exists() and not self.path.is_file():
            allowed = "expected a file, not a folder or a device"
            raise ConfigError(self.flag("path"), str(self.path), allowed)


class FileEventBus(EventBus[FileConfig]):
    """Appends, as others may; a line torn by a crash is cut off before the next one is written."""

    name = "file"
    config_type = FileConfig
    noun = "file"

    def __init__(self, config: FileConfig) -> None:
        super().__init__(config)
        self._file: FileIO | None = None

    @property
    def _is_open(self) -> bool:
        """Tell whether the open file is still the one of that name, not deleted or rotated."""
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except OSError:
            return False

    def _open(self, timeout_s: float) -> None:
        """Look whether the file, or its folder, can be written to."""
        nearest = next(p for p in (self._path, *self._path.absolute().parents) if p.exists())
        fit = nearest == self._path or nearest.is_dir()
        if not fit or not os.access(nearest, os.W_OK):
            raise self._unavailable("cannot be written", str(self._path))

    def _prepare(self, destinations: Sequence[str]) -> None:
        """Open the file for appending."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
        except OSError as error:
            raise self._refused(error) from error

    def _close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _address(self) -> str:
        return "JSON lines"

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        """Append the batch with one write; what was written of a failed one is cut off again."""
        places = fates.open()
        data = msgspec.json.Encoder().encode_lines([_fields(records[place]) for place in places])
        assert self._file is not None
        try:
            with self._alone(self._file, deadline):
                _append(self._file, data)
        except OSError as error:
            raise self._refused(error) from error
        fates.deliver(places)

    @contextmanager
    def _alone(self, file: FileIO, deadline: float) -> Iterator[None]:
        """Keep others who append to the file from doing so meanwhile."""
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    reason = "another process keeps it locked"
                    raise self._unavailable(reason, str(self._path)) from None
                time.sleep(_LOOK_S)
            else:
                break
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    @property
    def _path(self) -> Path:
        assert self.config.path is not None
        return self.config.path

    def _refused(self, error: OSError) -> BusUnavailableError:
        return self._unavailable(error.strerror or str(error), str(self._path))


def _fields(record: Record) -> dict[str, object]:
    return {
        "key": record.key,
        "headers": dict(record.headers),
        "value": base64.b64encode(record.value).decode(),
    }


def _append(file: FileIO, data: bytes) -> None:
    """Write all of it behind the last line that is whole, or nothing."""
    end = _whole_lines(file)
    try:
        file.seek(end)
        file.truncate()
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def _whole_lines(file: FileIO) -> int:
    """Give the length of the file up to its last line end."""
    position = file.seek(0, os.SEEK_END)
    while position > 0:
        start = max(0, position - 65_536)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
