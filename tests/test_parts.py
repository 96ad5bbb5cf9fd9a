"""Jars that are fetched once, whole or not at all."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tardis_machine import parts

JAR = "org.slf4j:slf4j-simple:1.7.36"


@pytest.fixture
def ivy_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count how often Ivy is started, and let it run."""
    runs: list[Any] = []
    run = subprocess.run

    def counted(*arguments: Any, **settings: Any) -> Any:
        runs.append(arguments)
        return run(*arguments, **settings)

    monkeypatch.setattr(subprocess, "run", counted)
    return runs


def test_jars_are_fetched_once_and_then_found(tmp_path: Path, ivy_runs: list[Any]):
    first = parts.fetch_jars([JAR], tmp_path / "jars")
    second = parts.fetch_jars([JAR], tmp_path / "jars")

    assert [path.name for path in first] == ["slf4j-simple-1.7.36.jar"]
    assert first == second
    assert len(ivy_runs) == 1


def test_other_coordinates_replace_the_folder(tmp_path: Path):
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "old-1.0.jar").touch()
    (directory / "coordinates.txt").write_text("old:old:1.0\ntransitive=False\n")

    assert [path.name for path in parts.fetch_jars([JAR], directory)] == ["slf4j-simple-1.7.36.jar"]
    assert not list(tmp_path.glob(".fetching-*"))


def test_a_failed_fetch_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(parts.PartError, match=r"no\.such:part:1") as caught:
        parts.fetch_jars([JAR, "no.such:part:1"], tmp_path / "jars")

    assert caught.value.part == f"{JAR}, no.such:part:1"
    assert not (tmp_path / "jars").exists()
    assert not list(tmp_path.glob(".fetching-*"))


def test_parts_are_kept_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TM_PARTS_DIR", str(tmp_path / "mine"))
    assert parts.parts_dir() == tmp_path / "mine"

    monkeypatch.delenv("TM_PARTS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert parts.parts_dir() == tmp_path / "cache" / "tardis-machine"


@pytest.mark.parametrize(
    ("find", "part"), [(parts.java, "java"), (parts.nats_server, "nats-server")]
)
def test_a_program_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, find: Callable[[], Path], part: str
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))

    with pytest.raises(parts.PartError, match=f"{part}: not found") as caught:
        find()

    assert caught.value.part == part
