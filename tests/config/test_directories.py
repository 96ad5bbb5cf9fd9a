import logging
import os
import pwd
import stat
from pathlib import Path

import pytest

from tardis_machine.config import ConfigError, DefaultDirectory, claim, unlink_below

FLAG = "--cache-dir"
DEFAULT = DefaultDirectory("XDG_CACHE_HOME", ".cache", "slices")
OTHER = 12345
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may give a directory to another user"
)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    base = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    return base


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def made(path: Path, mode: int) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    return path


def test_default_directory_is_made_private_with_those_above(base: Path) -> None:
    path = DEFAULT.claim(FLAG)
    assert path == base / "tardis-machine" / "slices"
    assert [mode(each) for each in (path, path.parent, base)] == [0o700] * 3
    assert DEFAULT.claim(FLAG) == path


@pytest.mark.parametrize("variable", [None, "", "relative/cache"])
def test_variable_without_absolute_path_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if variable is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert DEFAULT.path(FLAG) == tmp_path / ".cache" / "tardis-machine" / "slices"


def test_default_directory_that_others_may_read_is_tightened(base: Path) -> None:
    path = made(base / "tardis-machine" / "slices", 0o755)
    made(path.parent, 0o775)
    made(base, 0o775)
    DEFAULT.claim(FLAG)
    assert [mode(each) for each in (path, path.parent, base)] == [0o700, 0o755, 0o775]


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_default_directory_that_others_may_write_to_is_refused(base: Path, mode: int) -> None:
    path = made(base / "tardis-machine" / "slices", mode)
    with pytest.raises(ConfigError, match=rf"^{FLAG} '{path}': .* mode {mode:04o}\).*remove it"):
        DEFAULT.claim(FLAG)


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("place", [".", "tardis-machine"])
def test_default_directory_below_one_that_everyone_may_write_to_is_refused(
    base: Path, place: str, mode: int
) -> None:
    made(base / "tardis-machine" / "slices", 0o700)
    made(base / place, mode)
    with pytest.raises(ConfigError, match=rf"^{FLAG} .* mode {mode:04o}\)"):
        DEFAULT.claim(FLAG)


@needs_root
@pytest.mark.parametrize("place", [".", "tardis-machine", "tardis-machine/slices"])
def test_default_directory_that_another_user_owns_is_refused(base: Path, place: str) -> None:
    made(base / "tardis-machine" / "slices", 0o700)
    os.chown(base / place, OTHER, OTHER)
    with pytest.raises(ConfigError, match=rf"^{FLAG} .*owner {OTHER}, mode 07"):
        DEFAULT.claim(FLAG)


@needs_root
def test_default_directory_behind_another_users_link_is_refused(base: Path) -> None:
    path = base / "tardis-machine" / "slices"
    made(path.parent, 0o700)
    path.symlink_to(made(base / "mine", 0o700))
    assert DEFAULT.claim(FLAG) == path
    os.lchown(path, OTHER, OTHER)
    with pytest.raises(ConfigError, match=rf"^{FLAG} .*owner .*{OTHER}, mode 0700"):
        DEFAULT.claim(FLAG)


def test_user_without_home_directory_is_told_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigError, match=rf"^{FLAG}: this user has no home directory: name a"):
        DEFAULT.claim(FLAG)


def test_home_that_cannot_be_written_to_is_told_with_the_flag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nonexistent")
    with pytest.raises(ConfigError, match=rf"^{FLAG} '/proc/nonexistent/.*expected a directory"):
        DEFAULT.claim(FLAG)


def test_named_directory_is_made_private_with_those_above(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert claim(FLAG, path) == path
    assert [mode(each) for each in (path, path.parent)] == [0o700, 0o700]


def test_named_directory_that_others_may_read_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(tmp_path / "cache", 0o755)
    claim(FLAG, path)
    assert mode(path) == 0o755
    assert caplog.records == []


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703])
def test_named_directory_that_everyone_may_write_to_is_refused_and_below_it_is_room(
    tmp_path: Path, mode: int
) -> None:
    path = made(tmp_path / "emptyDir", mode)
    with pytest.raises(ConfigError) as caught:
        claim(FLAG, path)
    assert str(caught.value).startswith(
        f"{FLAG} '{path}': everyone may write to it (mode {mode:04o})"
    )
    advised = path / "tardis-machine"
    assert f"name a subdirectory, {advised} for example" in str(caught.value)
    assert stat.S_IMODE(claim(FLAG, advised).stat().st_mode) == 0o700


def test_named_directory_that_its_group_may_write_to_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(tmp_path / "cache", 0o2775)
    for _ in range(2):
        claim(FLAG, path)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.__dict__["directory"] == str(path)
    assert record.__dict__["found"] == f"owner {os.geteuid()}, mode 2775"


@needs_root
@pytest.mark.parametrize("is_link", [False, True])
def test_named_directory_of_another_user_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_link: bool
) -> None:
    path = made(tmp_path / "cache", 0o755)
    if is_link:
        path = tmp_path / "link"
        path.symlink_to(tmp_path / "cache")
    os.lchown(path, OTHER, OTHER)
    claim(FLAG, path)
    [record] = caplog.records
    assert str(OTHER) in record.__dict__["found"]


def test_named_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for below in (path, path / "cache"):
        with pytest.raises(ConfigError, match=f"^{FLAG} '{below}': cannot be created: "):
            claim(FLAG, below)


def test_file_is_removed_unless_a_link_is_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "top" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "top")
    for name in ("one", "two"):
        (tmp_path / "top" / "a" / name).touch()
    unlink_below(tmp_path / "link", tmp_path / "link" / "a" / "one")
    with pytest.raises(OSError, match="expected no symbolic link"):
        unlink_below(tmp_path, tmp_path / "link" / "a" / "two")
    assert [each.name for each in (tmp_path / "top" / "a").iterdir()] == ["two"]
