"""What the cache does with directories that other users could have prepared."""

import logging
import os
import tempfile
import time
from pathlib import Path

import pytest
import zstandard

from tardis_machine.config import ConfigError
from tardis_machine.history import CacheError, Filter, History, default_cache_dir, sample
from tardis_machine.history.cache import MINUTE, Cache, CachedSlice
from tests.support.servers.tardis_api import TardisApi
from tests.support.waiting import wait_until

START = 1709251200 // 60
"""2024-03-01T00:00Z, in minutes."""
PIN_FOLDER = f"123-{'0' * 32}"
"""A folder of hard links, as earlier versions made them."""


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    return tmp_path / "cache" / "tardis-machine" / "slices"


def read(history: History, minutes: int = 1) -> bytes:
    start = START * MINUTE
    return b"".join(history.read("ftx", [Filter("trades")], start, start + minutes * MINUTE))


def slice_at(cache: Cache, minute: int) -> Path:
    return cache.path("ftx", "k", START + minute, 1, "zst")


def body(size: int = 1000) -> bytes:
    return zstandard.ZstdCompressor().compress(os.urandom(size))


def stored(cache: Cache, minute: int, size: int = 1000) -> Path:
    """A slice that was stored, read, and let go."""
    path = slice_at(cache, minute)
    cache.store(path, [body(size)])
    cache.unpin(path)
    return path


def elsewhere(tmp_path: Path, *names: str) -> Path:
    """Another directory of this user, with old files in it."""
    directory = tmp_path / "elsewhere"
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body())
        os.utime(path, (1000, 1000))
    return directory


def content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_slices_are_kept_in_the_users_cache_by_default(
    tardis_api: TardisApi, default: Path
) -> None:
    assert default_cache_dir() == default
    with History(endpoint=tardis_api.endpoint) as history:
        assert read(history)
    assert len(list(default.glob("feeds/ftx/**/00.json.zst"))) == 1


def test_older_cache_of_this_user_is_named_once(
    default: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    History().close()
    assert caplog.records == []
    older = tmp_path / "temp" / ".tardis-cache"
    older.mkdir()
    for _ in range(2):
        History().close()
        History(cache_dir=tmp_path / "named").close()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.__dict__["directory"] == str(older)
    assert record.__dict__["to_use_it"] == f"--cache-dir {older}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory to another user")
def test_older_cache_of_another_user_is_not_named(
    default: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = tmp_path / "temp" / ".tardis-cache"
    older.mkdir()
    os.chown(older, 12345, 12345)
    History().close()
    assert caplog.records == []


def test_directory_that_everyone_may_write_to_is_refused_by_its_argument(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match=rf"^cache_dir '{tmp_path}': everyone may write to it"):
        History(cache_dir=tmp_path)


def test_sample_needs_no_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nonexistent")
    with sample.sample_history() as history:
        start = int(sample.START.timestamp()) * 1_000_000
        assert b"".join(history.read("bitmex", [], start, start + MINUTE))


def test_slice_is_not_written_through_a_link(tmp_path: Path) -> None:
    directory = elsewhere(tmp_path, "1-1-00.json.zst", "old")
    before = content(directory)
    cache = Cache(tmp_path / "cache")
    cache.directory.mkdir()
    (cache.directory / ".unfinished").symlink_to(directory)
    unfinished = cache.directory / ".unfinished"
    with pytest.raises(CacheError, match=rf"written: {unfinished}: expected no symbolic link"):
        stored(cache, 0)
    assert content(directory) == before


def test_what_a_killed_process_left_is_no_others_file(tmp_path: Path) -> None:
    directory = elsewhere(tmp_path, "old")
    cache = Cache(tmp_path / "cache")
    (cache.directory / ".unfinished").mkdir(parents=True)
    link = cache.directory / ".unfinished" / "1-1-00.json.zst"
    link.symlink_to(directory / "old")
    os.utime(link, (1000, 1000), follow_symlinks=False)
    new = cache.directory / ".unfinished" / "1-1-01.json.zst"
    new.symlink_to(directory / "old")  # of which the link itself is new
    stored(cache, 0)
    assert [each.is_symlink() for each in (link, new)] == [False, True]
    assert content(directory).keys() == {"old"}


def test_old_pins_are_removed_with_the_disk_space_they_hold(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    kept = stored(cache, 0)
    folder = cache.directory / ".pins" / PIN_FOLDER
    folder.mkdir(parents=True)
    (folder / "0").hardlink_to(kept)
    evicted = folder / "1"
    evicted.write_bytes(body())
    stored(Cache(cache.directory), 1)
    assert not (cache.directory / ".pins").exists()
    assert kept.stat().st_nlink == 1


@pytest.mark.parametrize("at", [".pins", f".pins/{PIN_FOLDER}", f".pins/{PIN_FOLDER}/0"])
def test_old_pins_behind_a_link_are_left_alone(tmp_path: Path, at: str) -> None:
    directory = elsewhere(tmp_path, f"{PIN_FOLDER}/0", "0")
    before = content(directory)
    link = tmp_path / "cache" / at
    link.parent.mkdir(parents=True)
    link.symlink_to(directory)
    stored(Cache(tmp_path / "cache"), 0)
    assert content(directory) == before


def test_folders_among_old_pins_that_are_no_pins_are_left_alone(tmp_path: Path) -> None:
    for name in ("mine", PIN_FOLDER):
        (tmp_path / ".pins" / name).mkdir(parents=True)
        (tmp_path / ".pins" / name / "file").touch()
    stored(Cache(tmp_path), 0)
    assert [each.name for each in (tmp_path / ".pins").iterdir()] == ["mine"]
    assert (tmp_path / ".pins" / "mine" / "file").exists()


def test_total_is_not_written_through_a_link(tmp_path: Path) -> None:
    directory = elsewhere(tmp_path, "file")
    before = content(directory)
    cache = Cache(tmp_path / "cache", max_bytes=5000)
    cache.directory.mkdir()
    (cache.directory / ".usage").symlink_to(directory / "file")
    with pytest.raises(CacheError, match=rf"{cache.directory / '.usage'}: Too many levels"):
        stored(cache, 0)
    assert cache.total_bytes() is None
    assert content(directory) == before


def test_total_in_a_named_pipe_holds_up_nobody(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=5000)
    os.mkfifo(tmp_path / ".usage")
    assert cache.total_bytes() is None
    with pytest.raises(CacheError, match="written"):
        stored(cache, 0)


@pytest.mark.parametrize("at", ["feeds", "feeds/ftx", "feeds/ftx/k/2024/03/01/00", "file"])
def test_eviction_does_not_follow_links(tmp_path: Path, at: str) -> None:
    cache = Cache(tmp_path / "cache", max_bytes=5000)
    old = slice_at(cache, 30).relative_to(cache.directory)
    link = cache.directory / (old if at == "file" else at)
    directory = elsewhere(tmp_path, str(old.relative_to(at)) if at != "file" else "file")
    before = content(directory)
    link.parent.mkdir(parents=True)
    link.symlink_to(directory / "file" if at == "file" else directory)
    for minute in range(10):
        stored(cache, minute)
    assert before.items() <= content(directory).items()


def test_bad_slice_behind_a_link_stays_until_it_is_replaced(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path / "cache") as history:
        whole = read(history, 2)
        exchange = tmp_path / "cache" / "feeds" / "ftx"
        exchange.rename(tmp_path / "elsewhere")
        exchange.symlink_to(tmp_path / "elsewhere")
        bad = next((tmp_path / "elsewhere").rglob("00.json.zst"))
        bad.write_bytes(b"bad")
        history.cache.discard(exchange / bad.relative_to(tmp_path / "elsewhere"))
        assert bad.read_bytes() == b"bad"
        assert read(history, 2) == whole
        assert bad.read_bytes() != b"bad"


@pytest.mark.parametrize("name", ["feeds", ".unfinished"])
def test_clearing_refuses_a_link(tmp_path: Path, name: str) -> None:
    directory = elsewhere(tmp_path, "file")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / name).symlink_to(directory)
    with pytest.raises(CacheError, match=r"cannot be cleared: .*symbolic link"):
        Cache(tmp_path / "cache").clear()
    assert (directory / "file").exists()


def test_cache_directory_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    cache = Cache(tmp_path / "link", max_bytes=5000)
    for minute in range(10):
        assert stored(cache, minute).exists()
    assert len(list((tmp_path / "cache").rglob("*.zst"))) < 6
    cache.clear()
    assert list((tmp_path / "cache").rglob("*.zst")) == []


def test_named_pipe_among_slices_is_replaced(tardis_api: TardisApi, tmp_path: Path) -> None:
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path) as history:
        whole = read(history, 2)
        for path in tmp_path.rglob("*.zst"):
            path.unlink()
            os.mkfifo(path)
        assert read(history, 2) == whole
    assert all(path.is_file() for path in tmp_path.rglob("*.zst"))


class Disk:
    """How full the disk seems to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size, self.free = 1 << 40, 1 << 39
        monkeypatch.setattr(os, "statvfs", self._statvfs)

    def _statvfs(self, _: Path) -> os.statvfs_result:
        blocks = (4096, 4096, self.size // 4096, self.free // 4096, self.free // 4096)
        return os.statvfs_result((*blocks, 0, 0, 0, 0, 255))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize(
    ("size", "free", "is_kept"),
    [
        (1 << 40, 1 << 30, True),
        (1 << 40, (1 << 30) - 4096, False),
        (20 << 20, 1 << 20, True),
        (20 << 20, (1 << 20) - 4096, False),
        (0, 0, True),  # a file system that does not tell
    ],
)
def test_slice_is_kept_if_enough_of_the_disk_is_free(
    tmp_path: Path, disk: Disk, size: int, free: int, is_kept: bool
) -> None:
    disk.size, disk.free = size, free
    assert stored(Cache(tmp_path), 0).exists() is is_kept


def test_slices_are_deleted_once_read_while_the_disk_is_nearly_full(
    tardis_api: TardisApi, tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path) as history:
        kept = read(history, 3)
        disk.free = 1 << 20
        whole = read(history, 8)
        assert whole.startswith(kept)
        assert len(list(tmp_path.rglob("*.zst"))) == 3
        assert read(history, 8) == whole
        [record] = [each for each in caplog.records if "nearly full" in each.message]
        assert record.levelno == logging.WARNING
        assert record.__dict__["directory"] == str(tmp_path)
        disk.free = 1 << 39
        read(history, 8)
    assert len(list(tmp_path.rglob("*.zst"))) == 8


def test_slice_deleted_by_another_process_once_read_is_fetched_again(
    tardis_api: TardisApi, tmp_path: Path, disk: Disk
) -> None:
    disk.free = 1 << 20
    with (
        History(endpoint=tardis_api.endpoint, cache_dir=tmp_path) as ours,
        History(endpoint=tardis_api.endpoint, cache_dir=tmp_path) as theirs,
    ):
        span = (START * MINUTE, (START + 3) * MINUTE)
        storing = theirs.read("ftx", [Filter("trades")], *span)
        whole = next(storing)
        wait_until(lambda: theirs.cache.pinned == 3)
        finding = ours.read("ftx", [Filter("trades")], *span)
        while (pending := finding.pending()) is not None:
            pending.exception()
        assert ours.cache.pinned == 3
        whole += b"".join(storing)
        assert list(tmp_path.rglob("*.zst")) == []
        assert b"".join(finding) == whole
    assert len(tardis_api.calls) == 6


@pytest.mark.parametrize("max_bytes", [None, 1_000_000])
def test_bytes_of_the_cache_are_told(tmp_path: Path, disk: Disk, max_bytes: int | None) -> None:
    cache = Cache(tmp_path, max_bytes)
    kept = [stored(cache, minute) for minute in range(3)]
    (tmp_path / "mine.zst").touch()
    while (told := cache.total_bytes()) is None:
        time.sleep(0.005)
    assert told == sum(path.stat().st_size for path in kept)
    kept.append(stored(cache, 3))
    disk.free = 0
    stored(cache, 4)
    assert cache.total_bytes() == sum(path.stat().st_size for path in kept)


def test_bytes_of_a_directory_that_is_only_read_are_not_counted(tmp_path: Path) -> None:
    assert Cache(tmp_path, read_only=True).total_bytes() is None


def test_slice_lies_about_its_minutes_only_within_a_day(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path) as history:
        whole = read(history, 2)
        first = next(tmp_path.rglob("00.json.zst"))
        first.with_name("00.size-60000000.json.gz").touch()
        assert read(history, 2) == whole
        assert CachedSlice(START, 1, first) in history.cache.slices(
            "ftx", first.relative_to(tmp_path).parts[2], START // 60
        )
