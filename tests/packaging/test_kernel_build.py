"""The build of the kernel: where it fails it says why on one line, and Python serves."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CARGO = shutil.which("cargo")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the kernel's source, beside a package that holds a kernel of another source."""
    shutil.copytree(
        ROOT / "kernel", tmp_path / "kernel", ignore=shutil.ignore_patterns("target", "Cargo.lock")
    )
    package = tmp_path / "src" / "tardis_machine"
    package.mkdir(parents=True)
    (package / "_kernel.abi3.so").write_text("stale")
    return tmp_path


def build(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, project / "kernel" / "build.py"],
        env={**os.environ, "XDG_CACHE_HOME": str(project / "cache"), "TM_KERNEL": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def fake_cargo(project: Path, script: str) -> str:
    """Write a cargo that runs a shell script; return a PATH on which it comes first."""
    folder = project / "bin"
    folder.mkdir()
    (folder / "cargo").write_text(f"#!/bin/sh\n{script}")
    (folder / "cargo").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def failing(output: str) -> str:
    return f"cat >&2 <<'END'\n{textwrap.dedent(output).strip()}\nEND\nexit 101\n"


NO_TOOLCHAIN = """
    error: rustup could not choose a version of cargo to run: no default is configured.
    help: run 'rustup default stable' to download the latest stable release of Rust
    Stack backtrace:
      13: <unknown>
"""
NO_LINKER = """
       Compiling proc-macro2 v1.0.107
    error: linker `cc` not found
      |
      = note: No such file or directory (os error 2)

    error: could not compile `proc-macro2` (build script) due to 1 previous error
    warning: build failed, waiting for other jobs to finish...
"""
NO_EDITION = """
    error: failed to parse manifest at `Cargo.toml`

    Caused by:
      failed to parse the `edition` key

    Caused by:
      this version of Cargo is older than the `2024` edition
"""
OLD_RUST = """
    error: rustc 1.63.0 is not supported by the following package:
      tardis-machine-kernel@0.0.0 requires rustc 1.85
"""


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            failing(NO_TOOLCHAIN),
            (
                "rustup could not choose a version of cargo to run: no default is configured: "
                "help: run 'rustup default stable' to download the latest stable release of Rust"
            ),
        ),
        (failing(NO_LINKER), "linker `cc` not found"),
        (
            failing(NO_EDITION),
            (
                "failed to parse manifest at `Cargo.toml`: "
                "this version of Cargo is older than the `2024` edition"
            ),
        ),
        (
            failing(OLD_RUST),
            (
                "rustc 1.63.0 is not supported by the following package: "
                "tardis-machine-kernel@0.0.0 requires rustc 1.85"
            ),
        ),
        ("echo no word of an err''or; exit 1", "no word of an error"),
        ("exit 9", "cargo exits with 9"),
    ],
    ids=["no toolchain", "no linker", "no edition", "old Rust", "other words", "no words"],
)
def test_build_that_fails_names_its_reason_on_one_line(
    project: Path, script: str, reason: str
) -> None:
    done = build(project, PATH=fake_cargo(project, script))
    log = project / "kernel" / "target" / "build.log"
    assert (done.returncode, done.stderr) == (0, "")
    [_, line] = done.stdout.splitlines()
    assert line == f"No compiled kernel, Python serves: {reason} (full log: {log})"


def test_build_that_fails_leaves_no_kernel_of_another_source(project: Path) -> None:
    build(project, PATH=fake_cargo(project, "exit 9"))
    assert not list((project / "src" / "tardis_machine").iterdir())


def test_build_without_cargo_says_so(project: Path) -> None:
    done = build(project, PATH=str(project))
    assert done.stdout.startswith("No compiled kernel, Python serves: there is no cargo")
    assert done.returncode == 0


def test_build_that_is_required_fails_with_the_reason(project: Path) -> None:
    done = build(project, PATH=str(project), TM_KERNEL="compiled")
    assert done.stderr.startswith("No compiled kernel: there is no cargo on the PATH")
    assert done.returncode == 1


def test_build_that_is_not_wanted_runs_nothing(project: Path) -> None:
    done = build(project, PATH=fake_cargo(project, "exit 9"), TM_KERNEL="python")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert (project / "src" / "tardis_machine" / "_kernel.abi3.so").read_text() == "stale"


COMPILES = """
while [ "$1" != --target-dir ]; do shift; done
mkdir -p "$2/release"
for name in lib{}.so lib{}.dylib; do echo compiled > "$2/release/$name"; done
""".replace("{}", "tardis_machine_kernel")


def test_library_is_compiled_once_for_all_clones(project: Path) -> None:
    kernel = project / "src" / "tardis_machine" / "_kernel.abi3.so"
    path = fake_cargo(project, COMPILES)
    assert build(project, PATH=path).stdout.startswith("Building the compiled kernel")
    assert kernel.read_text() == "compiled\n"
    kernel.unlink()
    (project / "bin" / "cargo").write_text("exit 9")
    assert build(project, PATH=path).stdout == ""
    assert kernel.read_text() == "compiled\n"


def test_library_is_compiled_anew_when_the_source_changes(project: Path) -> None:
    path = fake_cargo(project, COMPILES)
    build(project, PATH=path)
    with (project / "kernel" / "src" / "lib.rs").open("a") as source:
        source.write("// changed\n")
    assert build(project, PATH=path).stdout.startswith("Building the compiled kernel")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to chown")
def test_cached_library_of_another_user_is_not_loaded(project: Path) -> None:
    path = fake_cargo(project, COMPILES)
    build(project, PATH=path)
    [cached] = project.glob("cache/tardis-machine/kernel/*/_kernel.abi3.so")
    cached.write_text("another user's")
    os.chown(cached, 12345, 12345)
    assert build(project, PATH=path).stdout.startswith("Building the compiled kernel")
    assert (project / "src" / "tardis_machine" / "_kernel.abi3.so").read_text() == "compiled\n"


def test_cache_that_cannot_be_written_costs_only_another_build(project: Path) -> None:
    (project / "cache").write_text("no folder")
    done = build(project, PATH=fake_cargo(project, COMPILES))
    assert (done.stderr, done.returncode) == ("", 0)
    assert (project / "src" / "tardis_machine" / "_kernel.abi3.so").read_text() == "compiled\n"


@pytest.mark.skipif(CARGO is None, reason="there is no cargo here")
def test_rustup_without_a_toolchain_is_named(project: Path, tmp_path: Path) -> None:
    if shutil.which("rustup") is None:
        pytest.skip("this cargo is not rustup's")
    done = build(project, RUSTUP_HOME=str(tmp_path / "rustup"), RUSTUP_TOOLCHAIN="")
    assert "Python serves: rustup could not choose a version of cargo" in done.stdout
