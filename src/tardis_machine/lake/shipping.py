"""Settings on their way to executors, whose disks have none of the files that these name."""

import dataclasses
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Generic, TypeVar

from tardis_machine.publish.buses.base import BusConfig

C = TypeVar("C", bound=BusConfig)


class Shipped(Generic[C]):
    """Settings of a bus with the content of the files that they name.

    Never an option of Spark's: plans and the UI show those. This travels inside of pickled code.
    """

    def __init__(self, config: C) -> None:
        """Read the files, on the machine where the settings were made."""
        self._config = config
        self._unpacked: C | None = None
        self._files = {
            name: Path(path).read_bytes()
            for name in config.files
            if (path := getattr(config, name)) is not None
        }

    def unpacked(self) -> C:
        """Give the settings where they are used: files are this process's own, and private."""
        if self._unpacked is None:
            self._unpacked = self._written() if self._files else self._config
        return self._unpacked

    def _written(self) -> C:
        # Nobody else can enter it.
        folder = Path(tempfile.mkdtemp(prefix="tardis-machine-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        paths = {name: folder / name for name in self._files}
        for name, path in paths.items():
            path.write_bytes(self._files[name])
        config: C = dataclasses.replace(self._config, **paths)  # type: ignore[arg-type]
        return config

    def __getstate__(self) -> dict[str, object]:
        """Leave what was unpacked here: its files are here."""
        return {**self.__dict__, "_unpacked": None}
