"""The cache on Windows, which has no `flock` and opens no directories."""

import logging
import os
import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tardis_machine.config import make_private
from tardis_machine.history.blocks import verify
from tardis_machine.history.cache import Cache
from tardis_machine.history.errors import CacheError

log = logging.getLogger(__name__)

HAS_FILE_LOCKS: Final = find_spec("fcntl") is not None


class WindowsCache(Cache):
    """Slices as files in a directory of this user, without a size limit and for one process."""

    def __init__(self, directory: Path, max_bytes: int | None = None) -> None:
        super().__init__(directory)
        if max_bytes is not None:
            log.warning(
                "cache_max_bytes has no effect on Windows: it needs Linux or macOS",
                extra={"cache_max_bytes": max_bytes},
            )
        try:
            make_private(directory)
        except OSError as error:
            raise CacheError(directory, error) from None

    def store(self, path: Path, chunks: Iterable[bytes]) -> int:
        """Write a slice to a temporary file, verify it, rename and pin it; return its size."""
        temporary = path.with_name(f"{os.getpid()}-{threading.get_ident()}-{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.writelines(chunks)
            verify(temporary)
            self.mark_verified(temporary, named=path)
            self._pins.add(path, current_path=temporary)
            temporary.replace(path)
        except OSError as error:
            self.unpin(path)
            raise CacheError(path, error) from None
        finally:
            with suppress(OSError):
                temporary.unlink()
        return path.stat().st_size

    def discard(self, path: Path) -> None:
        """Remove a corrupt file."""
        self._verified.pop(path, None)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CacheError(path, error) from None

    def clear(self) -> None:
        """Remove every slice; leave other files of the directory alone."""
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.directory / "feeds")
        except OSError as error:
            raise CacheError(self.directory, error, use="cleared") from None
        self._verified.clear()
