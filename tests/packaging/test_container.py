"""The container files: linted, and their own commands run here instead of in an image."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tardis_machine.engine.choice import kernel
from tests.support.ports import free_port_pair
from tests.support.servers.process import ServerProcess

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each on one line."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def last(name: str) -> str:
    return [rest for instruction, rest in instructions() if instruction == name][-1]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last("ENV")))


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [BIN / "hadolint", "--no-color", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_images_are_pinned_by_tag_and_run_as_nobody_in_particular() -> None:
    images = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    images += [each["image"] for each in compose["services"].values() if "image" in each]
    stages = {rest.split()[-1] for name, rest in instructions() if name == "FROM"}
    for image in set(images) - stages:
        name, _, tag = image.partition(":")
        assert tag not in {"", "latest"}, f"{name} has no tag"
        assert "@" not in image
    assert last("USER").isdigit()
    assert int(last("USER")) > 0


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run what the stages `wheel` and `server` run, in an environment of its own."""
    folder = tmp_path_factory.mktemp("container")
    uv = shlex.quote(str(BIN / "uv"))
    subprocess.run([BIN / "uv", "venv", "-q", "--seed", "-p", sys.executable, folder], check=True)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    stages: dict[str, list[str]] = {}
    for name, rest in instructions():
        if name == "FROM":
            stage = stages.setdefault(rest.split()[-1], [])
        elif name == "RUN":
            stage.append(rest)
    for command in (*stages["wheel"], *stages["base"], *stages["server"]):
        if command.startswith(("apt-get", "useradd")):  # the image's business
            continue
        # uv has the packages at hand which pip would download again, and checks the same hashes.
        here = command.replace("pip install --no-cache-dir", f"{uv} pip install -q")
        here = here.replace(" /dist", f" {folder / 'dist'}")
        if kernel().module is None:
            here = here.replace("TM_KERNEL=compiled", "TM_KERNEL=python")
        here = here.replace("/tmp/server.txt", str(ROOT / "requirements" / "server.txt"))
        subprocess.run(
            ["bash", "-euc", here],
            cwd=ROOT,
            env={**os.environ, "PATH": path, "VIRTUAL_ENV": str(folder)},
            check=True,
        )
    return folder / "bin"


@pytest.mark.parametrize("variable", ["TM_PORT", "PORT"])
def test_what_the_image_starts_is_healthy_by_its_own_check(
    installed: Path, tmp_path: Path, variable: str
) -> None:
    port = free_port_pair()
    entry = json.loads(last("ENTRYPOINT"))
    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    settings = {
        name: value.replace("/data", str(tmp_path)) for name, value in environment().items()
    } | {"TM_HOST": "127.0.0.1", "TM_SAMPLE_DATA": "true", "TM_PORT": "1"}
    settings |= {variable: str(port)}
    assert environment()["TM_HOST"] == "0.0.0.0"

    def healthy() -> bool:
        command = [installed / check[0], *check[1:]]
        env = {**os.environ, **settings}
        return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0

    told = [f"{name}={value}" for name, value in settings.items()]
    command = ["env", *told, str(installed / entry[0]), *entry[1:]]
    server = ServerProcess(command, port=port, log=tmp_path / "log")
    assert not healthy()
    server.start()
    try:
        assert healthy()
        compiled = kernel().module is not None
        assert ("kernel=compiled" in (tmp_path / "log").read_text()) == compiled
    finally:
        server.stop()


def test_the_kernel_is_built_where_it_runs() -> None:
    """A library that was linked against a newer Debian's would not load."""
    bases = {rest.split()[-1]: rest.split()[0] for name, rest in instructions() if name == "FROM"}
    debian = {image.rpartition("-")[2] for image in bases.values() if ":" in image}
    assert len(debian) == 1
    for stage in ("server", "spark"):
        lines = (ROOT / "Dockerfile").read_text().partition(f" AS {stage}\n")[2]
        assert "COPY --from=wheel /dist /dist" in lines.partition("\nFROM ")[0]


class Compose(yaml.SafeLoader):
    """Reads Compose's own tags as what they stand before."""


def test_image_leaves_access_to_its_user_and_compose_publishes_to_loopback() -> None:
    assert not {"TM_AUTH_TOKEN", "TM_ALLOW_ANONYMOUS"} & set(environment())
    server = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["server"]
    assert server["environment"]["TM_ALLOW_ANONYMOUS"] == "true"
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])


Compose.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def test_every_setting_of_the_compose_files_is_one_of_ours(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    override = yaml.load(
        page.partition("```yaml")[2].partition("\n")[2].partition("```")[0], Compose
    )
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    given: dict[str, str] = compose["services"]["server"]["environment"]
    given |= override["services"]["server"]["environment"]
    for name, each in override["secrets"].items():
        (tmp_path / name).write_text("secret")
        assert each == {"file": f"./{name}"}
        assert name in override["services"]["server"]["secrets"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TM_")}
    told = {name: value.replace("/run/secrets", str(tmp_path)) for name, value in given.items()}
    done = subprocess.run(
        [BIN / "tardis-machine", "config", "--set", "--json"],
        env=plain | told,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(given) <= set(done.stdout.replace('"', " ").split()), done.stdout
