"""Errors of the Tardis API, its cache on disk and their readers."""

from pathlib import Path
from typing import ClassVar

from tardis_machine.errors import TardisMachineError


class HistoryError(TardisMachineError):
    """History that cannot be fetched or read.

    `status` is the API's HTTP status, or the one that the server should answer with; None if
    neither applies.
    """

    def __init__(self, message: str, *, status: int | None = None, exchange: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.exchange = exchange


class RetriesExhaustedError(HistoryError):
    """A fetch that failed at every try with errors that usually pass."""

    retriable: ClassVar[bool] = True


class ReaderClosedError(HistoryError):
    """A reader or history that was closed while a caller used it or waited for it."""


class CacheError(HistoryError):
    """A cache directory that cannot be written, read or cleared."""

    def __init__(self, path: Path, error: OSError, *, use: str = "written") -> None:
        super().__init__(f"the cache cannot be {use}: {path}: {error.strerror or error}")
        self.path = path


class CorruptSliceError(TardisMachineError):
    """A slice whose file does not decompress to its end, or has too long a line."""

    retriable: ClassVar[bool] = True

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"corrupt slice {path}: {reason}")
        self.path = path
        self.reason = reason


class EvictedSliceError(TardisMachineError):
    """A slice whose file was removed from the cache, by any process, before it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"slice {path} was removed before it was read")
        self.path = path
