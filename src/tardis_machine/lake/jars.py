"""The jars that Spark needs, downloaded once and kept, and the Java that runs them.

Ivy, which PySpark carries, downloads them: neither Maven nor Docker is needed. A set of jars is
downloaded into a temporary folder and renamed to its place, under one lock: a folder that exists
is complete, and works offline.
"""

import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tardis_machine.errors import TardisMachineError
from tardis_machine.extras import require

_log = logging.getLogger(__name__)

_VARIABLE: Final = "TM_JARS_DIR"
_OLD_VARIABLE: Final = "TM_PARTS_DIR"
_COORDINATES: Final = "coordinates.txt"
_RETRIEVE_PATTERN: Final = "[artifact]-[revision].[ext]"


class MissingJarError(TardisMachineError):
    """A jar, or the Java program, that is not there and cannot be downloaded."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name}: {reason}")


def jars_dir() -> Path:
    """Return the folder of all downloaded jars: $TM_JARS_DIR, or one in the user's cache."""
    chosen = os.environ.get(_VARIABLE)
    if not chosen and (chosen := os.environ.get(_OLD_VARIABLE)):
        _log.warning("%s has a new name: set %s", _OLD_VARIABLE, _VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "tardis-machine" / "jars"


def fetch_jars(
    coordinates: Sequence[str], directory: Path, *, transitive: bool = False
) -> list[Path]:
    """Return the jars of these `group:artifact:version`, downloaded into the directory if missing.

    Their dependencies come along only with `transitive`. A directory with jars of other
    coordinates is replaced.
    """
    wanted = "\n".join([*sorted(coordinates), f"transitive={transitive}", ""])
    if not _holds(directory, wanted):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / ".lock"):
            if not _holds(directory, wanted):
                _install(coordinates, directory, wanted, transitive=transitive)
    return sorted(directory.glob("*.jar"))


def java() -> Path:
    """Return the path of the java program: that of $JAVA_HOME, or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise MissingJarError("java", "not found: install Java 17 or newer and put it on the PATH")
    return Path(found)


def _holds(directory: Path, wanted: str) -> bool:
    listing = directory / _COORDINATES
    return listing.is_file() and listing.read_text(encoding="utf-8") == wanted


def _install(coordinates: Sequence[str], directory: Path, wanted: str, *, transitive: bool) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetching-") as folder:
        fresh = Path(folder) / "jars"
        module = Path(folder) / "ivy.xml"
        module.write_bytes(_ivy_module(coordinates, transitive=transitive))
        _run_ivy(module, fresh, cache=directory.parent / ".ivy", names=", ".join(coordinates))
        (fresh / _COORDINATES).write_text(wanted, encoding="utf-8")
        if directory.exists():
            directory.rename(Path(folder) / "replaced")
        fresh.rename(directory)


def _ivy_module(coordinates: Sequence[str], *, transitive: bool) -> bytes:
    module = ET.Element("ivy-module", version="2.0")
    ET.SubElement(module, "info", organisation="tardis-machine", module="jars")
    configurations = ET.SubElement(module, "configurations")
    ET.SubElement(configurations, "conf", name="default")
    dependencies = ET.SubElement(module, "dependencies")
    for coordinate in coordinates:
        group, artifact, version = coordinate.split(":")
        ET.SubElement(
            dependencies,
            "dependency",
            org=group,
            name=artifact,
            rev=version,
            conf="default->default",
            transitive=str(transitive).lower(),
        )
    return ET.tostring(module)


def _run_ivy(module: Path, into: Path, *, cache: Path, names: str) -> None:
    pyspark = require("pyspark", extra="spark")
    [ivy] = Path(str(pyspark.__file__)).parent.glob("jars/ivy-*.jar")
    command: list[str | Path] = [
        java(),
        "-jar",
        ivy,
        "-cache",
        cache,
        "-ivy",
        module,
        "-confs",
        "default",
    ]
    command += ["-retrieve", into / _RETRIEVE_PATTERN, "-types", "jar", "bundle"]
    done = subprocess.run(  # noqa: S603 - a fixed program with arguments made above
        command, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not any(into.glob("*.jar")):
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise MissingJarError(
            names, f"Ivy could not download it (is the registry reachable?):\n{said}"
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
