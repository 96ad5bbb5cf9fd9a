"""What `make dist` makes, in empty environments: each Python, each extra, README's Python code.

The distribution comes from its file alone, what it depends on from the index. An interpreter that
is not here (`python3.N` on the PATH, uv's or pyenv's) is skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import run_blocks
from tests.support.ports import free_port_pair

pytestmark = [
    pytest.mark.slow,  # test_wheel.py sees what is wrong with one Python and no extra
    pytest.mark.timeout(900),
]

ROOT: Final = Path(__file__).parents[2]
UV: Final = Path(sys.executable).with_name("uv")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TESTED: Final = ("3.11", "3.12", "3.13", "3.14")
MODULES: Final = {
    "kafka": "confluent_kafka",
    "aws": "boto3",
    "redis": "redis",
    "nats": "nats",
    "arrow": "pyarrow",
    "pandas": "pandas",
    "polars": "polars",
    "spark": "pyspark, delta, ptars",
    "plot": "matplotlib",
    "all": "confluent_kafka, boto3, redis, nats, pandas, polars, pyspark, matplotlib",
}


@cache
def interpreter(version: str) -> Path | None:
    """Return an interpreter of this version that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python")]
    found = subprocess.run(
        [UV, "python", "find", "--no-python-downloads", version],
        capture_output=True,
        text=True,
        check=False,
    )
    for path in [*names, found.stdout.strip()]:
        if path and _runs(path):
            return Path(path)
    return None


def _runs(path: str | Path) -> bool:
    done = subprocess.run([path, "-c", "import ssl, sqlite3"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo to build the wheel with the kernel")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "dist", f"DIST_DIR={folder}"], cwd=ROOT, check=True)
    return folder


@pytest.fixture(params=TESTED)
def python(request: pytest.FixtureRequest) -> Path:
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} here")
    return found


def install(artifact: Path, extra: str, python: Path, folder: Path) -> Path:
    """Install a distribution with an extra into a new environment; return its interpreter."""
    subprocess.run([UV, "venv", "--quiet", "--python", python, folder], check=True)
    installed = folder / "bin" / "python"
    requirement = f"tardis-machine[{extra}] @ {artifact.as_uri()}"
    command: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", installed]
    subprocess.run([*command, requirement], cwd=folder, check=True, env=without_choice())
    return installed


def without_choice() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TM_KERNEL"}


def version(python: Path) -> tuple[str, str]:
    """Return what `tardis-machine --version` says, and what it says on standard error."""
    done = subprocess.run(
        [python.with_name("tardis-machine"), "--version"],
        env=without_choice(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


def test_dist_holds_two_wheels_and_a_source_distribution(dist: Path) -> None:
    wheels = [path.name.removesuffix(".whl").split("-") for path in dist.glob("*.whl")]
    assert sorted((python, abi) for _, _, python, abi, _ in wheels) == [
        ("cp311", "abi3"),
        ("py3", "none"),
    ]
    assert len(list(dist.glob("*.tar.gz"))) == 1


@pytest.mark.parametrize("artifact", ["abi3.*.whl", "none-any.whl", "tar.gz"])
def test_readme_runs_outside_of_the_clone(
    dist: Path, python: Path, artifact: str, tmp_path: Path
) -> None:
    [path] = [path for path in dist.iterdir() if re.search(artifact, path.name)]
    installed = install(path, "pandas", python, tmp_path / "venv")
    shown, hint = version(installed)
    if artifact == "none-any.whl":
        assert shown.endswith("(kernel: python (it was not built))")
        assert "no compiled kernel (it was not built), Python serves more slowly" in hint
        assert "\n" not in hint
    else:
        assert (shown.endswith("(kernel: compiled)"), hint) == (True, "")
    outside = tmp_path / "outside"
    outside.mkdir()
    first = free_port_pair()
    run_blocks(ROOT / "README.md", outside, installed, {"8000": str(first), "8001": str(first + 1)})


@pytest.mark.parametrize("extra", MODULES)
def test_extra_installs_what_it_names(dist: Path, python: Path, extra: str, tmp_path: Path) -> None:
    [wheel] = dist.glob("*abi3*.whl")
    installed = install(wheel, extra, python, tmp_path / "venv")
    done = subprocess.run(
        [installed, "-c", f"import {MODULES[extra]}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    shutil.rmtree(tmp_path / "venv")  # Spark alone is half a gigabyte


def test_every_extra_is_installed_here() -> None:
    assert set(MODULES) == set(PROJECT["optional-dependencies"])


def test_classifiers_name_the_versions_that_are_tested() -> None:
    named = [name.rpartition(" :: ")[2] for name in PROJECT["classifiers"] if "Python ::" in name]
    assert tuple(named) == TESTED
    assert PROJECT["requires-python"] == f">={TESTED[0]}"
