"""The workflows: checked by actionlint, and true to what the project says of itself."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> str:
    there = shutil.which("actionlint")
    if there is not None:
        return there
    if shutil.which("go") is None:
        pytest.skip("there is neither actionlint nor Go to install it with")
    folder = tmp_path_factory.mktemp("go")
    done = subprocess.run(
        ["go", "install", ACTIONLINT],
        env={**os.environ, "GOBIN": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"Go cannot install actionlint: {done.stderr[-200:]}")
    return str(folder / "actionlint")


@pytest.mark.slow  # compiles actionlint; the tests below read the same files
def test_actionlint_finds_nothing(actionlint: str) -> None:
    done = subprocess.run(
        [actionlint, "-no-color", *WORKFLOWS], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_each_python_of_the_classifiers_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {name.rpartition(" :: ")[2] for name in project["classifiers"] if "Python ::" in name}
    steps = yaml.safe_load(WORKFLOWS[-1].read_text())["jobs"]["distribution"]["steps"]
    [given] = [step["with"]["python-version"] for step in steps if "python" in step.get("uses", "")]
    assert set(given.split()) == named


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_job_is_bounded_and_may_write_only_what_it_says(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 90
