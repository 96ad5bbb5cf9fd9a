"""Directories of the publisher that other users could change."""

import os
from pathlib import Path

import pytest

from tardis_machine.config import ConfigError
from tardis_machine.publish.buses.file import FileConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tests.support.command import Run
from tests.support.outbox import Start

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may give a directory to another user"
)


def made(path: Path, mode: int) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


@pytest.fixture
def file(tmp_path: Path) -> FileConfig:
    return FileConfig(path=tmp_path / "events")


async def test_journal_that_everyone_may_write_to_is_refused(
    publish: Start, file: FileConfig, journal_dir: Path
) -> None:
    made(journal_dir, 0o1777)
    with pytest.raises(ConfigError, match=rf"^--journal-dir '{journal_dir}': everyone may write"):
        await publish({"file": file})


async def test_journal_that_its_group_may_write_to_is_a_warning(
    publish: Start, file: FileConfig, journal_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(journal_dir, 0o770)
    await publish({"file": file})
    [record] = [each for each in caplog.records if "other users may change" in each.message]
    assert record.__dict__["directory"] == str(journal_dir)


@needs_root
@pytest.mark.parametrize("place", ["tardis-machine", "tardis-machine/journal"])
async def test_default_journal_of_another_user_is_refused(
    publish: Start,
    file: FileConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = JournalConfig().claim()
    assert path == tmp_path / "state" / "tardis-machine" / "journal"
    os.chown(tmp_path / "state" / place, 12345, 12345)
    with pytest.raises(ConfigError, match=r"^--journal-dir '.*owner 12345"):
        await publish({"file": file}, journal={"dir": None})


async def test_dead_letters_that_everyone_may_write_to_are_refused(
    publish: Start, file: FileConfig, tmp_path: Path
) -> None:
    letters = made(tmp_path / "letters", 0o777)
    with pytest.raises(ConfigError, match=rf"^--dead-letter-dir '{letters}': everyone may write"):
        await publish({"file": file}, dead_letter_dir=letters)


@pytest.mark.parametrize("mode", [0o770, 0o777])
async def test_dead_letters_in_the_journal_that_others_may_write_to_are_refused(
    publish: Start, file: FileConfig, journal_dir: Path, mode: int
) -> None:
    letters = made(journal_dir / "dead-letters", mode)
    with pytest.raises(ConfigError, match=rf"^--dead-letter-dir '{letters}': .*mode {mode:04o}"):
        await publish({"file": file})


def test_dead_letters_in_the_journal_are_made_private(journal_dir: Path) -> None:
    letters = made(journal_dir / "dead-letters", 0o755)
    PublishConfig().claim_dead_letters(journal_dir)
    assert letters.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("flag", ["--journal-dir", "--dead-letters"])
def test_directory_that_everyone_may_write_to_is_not_published_from(
    tmp_path: Path, run: Run, flag: str
) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "file.ndjson").touch()
    done = run("publish", "--file-path", str(tmp_path / "events"), flag, str(tmp_path))
    assert done.returncode == 1
    assert f"tardis-machine publish: {flag} '{tmp_path}': everyone may write to it" in done.stderr
