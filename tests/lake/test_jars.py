"""Jars that are fetched once, whole or not at all."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.lake import jars

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
    first = jars.fetch_jars([JAR], tmp_path / "jars")
    second = jars.fetch_jars([JAR], tmp_path / "jars")

    assert [path.name for path in first] == ["slf4j-simple-1.7.36.jar"]
    assert first == second
    assert len(ivy_runs) == 1


def test_other_coordinates_replace_the_folder(tmp_path: Path):
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "old-1.0.jar").touch()
    (directory / "coordinates.txt").write_text("old:old:1.0\ntransitive=False\n")

    assert [path.name for path in jars.fetch_jars([JAR], directory)] == ["slf4j-simple-1.7.36.jar"]
    assert not list(tmp_path.glob(".fetching-*"))


def test_a_failed_fetch_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(jars.MissingJarError, match=r"no\.such:part:1") as caught:
        jars.fetch_jars([JAR, "no.such:part:1"], tmp_path / "jars")

    assert caught.value.name == f"{JAR}, no.such:part:1"
    assert not (tmp_path / "jars").exists()
    assert not list(tmp_path.glob(".fetching-*"))


def test_jars_are_kept_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TM_JARS_DIR", str(tmp_path / "mine"))
    assert jars.jars_dir() == tmp_path / "mine"

    monkeypatch.delenv("TM_JARS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jars.jars_dir() == tmp_path / "cache" / "tardis-machine" / "jars"


def test_old_name_of_the_variable_works_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("TM_JARS_DIR", raising=False)
    monkeypatch.setenv("TM_PARTS_DIR", str(tmp_path))
    assert jars.jars_dir() == tmp_path
    assert caplog.messages == ["TM_PARTS_DIR has a new name: set TM_JARS_DIR"]


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(jars.MissingJarError, match="java: not found") as caught:
        jars.java()

    assert caught.value.name == "java"
