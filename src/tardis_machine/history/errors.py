"""What can go wrong between the Tardis API, its cache on disk and a reader."""

from pathlib import Path
from typing import ClassVar

from tardis_machine.errors import TardisMachineError


class HistoryError(TardisMachineError):
    """History cannot be had; `status` is the upstream's HTTP status where there was one."""

    def __init__(self, message: str, *, status: int | None = None, exchange: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.exchange = exchange


class RetriesExhaustedError(HistoryError):
    """The API kept failing in ways that usually pass."""

    retriable: ClassVar[bool] = True


class ReaderClosedError(HistoryError):
    """The reader, or the history it belongs to, was closed while something waited for it."""


class CacheError(HistoryError):
    """The cache directory cannot be written, read or cleared."""

    def __init__(self, path: Path, error: OSError, *, use: str = "written") -> None:
        super().__init__(f"the cache cannot be {use}: {path}: {error.strerror or error}")
        self.path = path


class CorruptSliceError(TardisMachineError):
    """A slice's file does not decompress to its end."""

    retriable: ClassVar[bool] = True

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"corrupt slice {path}: {reason}")
        self.path = path
        self.reason = reason


class EvictedSliceError(TardisMachineError):
    """A slice's file was removed from the cache, by any process, before it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"slice {path} was removed before it was read")
        self.path = path
