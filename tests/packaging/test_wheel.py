"""The wheel, in an environment that has nothing else, and the source it is built from."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.ports import free_port_pair
from tests.support.servers.process import ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", folder, ROOT]
    subprocess.run(command, check=True, env={**os.environ, "VIRTUAL_ENV": sys.prefix})
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, what it depends on, and no extra."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, home], check=True)
    python = home / "bin" / "python"
    versions = ROOT / "requirements" / "dev.txt"
    install = [UV, "pip", "install", "--quiet", "--python", python, "-c", versions, wheel]
    subprocess.run(install, check=True)
    return python.parent


def run(binaries: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binaries / arguments[0], *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_wheel_carries_schemas_sample_and_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tardis_machine/generated/lakehouse/bronze/v1/normalized_event_pb2.py" in names
    assert "tardis_machine/py.typed" in names
    bitmex = "tardis_machine/history/sample/data/feeds/bitmex/"
    assert any(name.startswith(bitmex) for name in names)
    assert {Path(name).name for name in names} >= {"LICENSE", "NOTICE"}


def test_source_distribution_is_what_the_wheel_is_built_from(tmp_path: Path) -> None:
    command = [UV, "build", "--quiet", "--sdist", "--no-build-isolation", "--out-dir", tmp_path]
    subprocess.run([*command, ROOT], check=True, env={**os.environ, "VIRTUAL_ENV": sys.prefix})
    [built] = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        paths = [Path(name).parts[1:] for name in archive.getnames()]
    assert ("src", "tardis_machine", "py.typed") in paths
    assert {path for path in paths if path[:2] == ("kernel", "src")}
    assert {path[1] for path in paths if path[0] == "kernel"} == {
        *("Cargo.toml", "README.md", "build.py", "rustfmt.toml", "src")
    }
    assert not [path for path in paths if path[-1].endswith(".so")]
    assert {path[0] for path in paths} == {
        *("src", "kernel", "schemas", "README.md", "LICENSE", "NOTICE"),
        *("pyproject.toml", "PKG-INFO", ".gitignore"),  # which the builder adds
    }


def test_the_oldest_versions_that_it_takes_are_enough(wheel: Path, tmp_path: Path) -> None:
    """Whoever has one of them already keeps it."""
    subprocess.run(
        [UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True
    )
    python = tmp_path / "venv" / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", "--python", python]
    oldest = ["--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml"]
    subprocess.run([*install, *oldest], check=True)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    done = run(python.parent, "python", "-c", "import tardis_machine.server.app")
    assert (done.returncode, done.stderr) == (0, "")


def test_serves_the_sample_data(binaries: Path, tmp_path: Path) -> None:
    port = free_port_pair()
    server = ServerProcess(
        [binaries / "tardis-machine", "--sample-data", "--port", str(port)],
        port=port,
        log=tmp_path / "log",
    )
    server.start()
    try:
        replay = (
            "import json, sys, urllib.parse, urllib.request as u;"
            "o = {'exchange': 'deribit', 'from': '2024-03-01', 'to': '2024-03-01T00:01',"
            " 'dataTypes': ['trade']};"
            f"url = 'http://127.0.0.1:{port}/replay-normalized?options=';"
            "print(u.urlopen(url + urllib.parse.quote(json.dumps(o))).read().decode())"
        )
        done = run(binaries, "python", "-c", replay)
    finally:
        server.stop()
    assert done.stdout.count('"type":"trade"') > 5, done.stderr


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("kafka", ("--sample-data", "--kafka-brokers", "127.0.0.1:1", "--kafka-topic", "t")),
        ("nats", ("--sample-data", "--nats-servers", "nats://127.0.0.1:1", "--nats-subject", "s")),
        ("spark", ("lake", "show", "trades", "--tables", "nowhere")),
    ],
)
def test_absent_extra_is_named(
    binaries: Path, tmp_path: Path, extra: str, arguments: Sequence[str]
) -> None:
    if extra != "spark":
        arguments = [*arguments, "--journal-dir", str(tmp_path), "--port", "0"]
    done = run(binaries, "tardis-machine", *arguments)
    assert done.returncode != 0
    assert f"tardis-machine[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
