import errno
import os
import resource
import shutil
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard

from tardis_machine.history.cache import LONGEST_SLICE, Cache, CachedSlice, Coverage
from tardis_machine.history.errors import CacheError, CorruptSliceError

MINUTE = 1709251200 // 60
"""2024-03-01T00:00Z."""


def body(text: bytes = b"") -> bytes:
    return zstandard.ZstdCompressor().compress(text)


def put(cache: Cache, start: int, minutes: int = 1, key: str = "k", suffix: str = "zst") -> Path:
    path = cache.path("bitmex", key, MINUTE + start, minutes, suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_layout_is_the_official_clients(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    hour = tmp_path / "feeds/deribit/abc/2024/03/01/07"
    assert cache.path("deribit", "abc", MINUTE + 425, 1, "gz") == hour / "05.json.gz"
    assert cache.path("deribit", "abc", MINUTE + 425, 12, "zst") == hour / "05.size-12.json.zst"


def test_any_file_that_covers_a_minute_serves_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    long = put(cache, 55, 90)
    short = put(cache, 60, suffix="gz")
    other = put(cache, 150, key="other")
    put(cache, 170, key="not looked for")
    (long.parent / "30.json.gz.part").touch()
    (long.parent / ".30.json.zst.1-2.unfinished.zst").touch()
    coverage = Coverage(cache, "bitmex", ("k", "other"))
    served = {
        minute: coverage.at(MINUTE + minute) for minute in (30, 54, 55, 60, 144, 145, 150, 170)
    }
    assert {minute: each and each.path for minute, each in served.items()} == {
        30: None,
        54: None,
        55: long,
        60: long,
        144: long,
        145: None,
        150: other,
        170: None,
    }
    assert coverage.gap(MINUTE + 145, 60) == 5
    assert coverage.gap(MINUTE + 151, 7) == 7
    coverage.remove(CachedSlice(MINUTE + 55, 90, long))
    assert coverage.at(MINUTE + 70) is None
    assert short.exists()


@pytest.mark.parametrize(
    "name",
    [
        "00.size-1441.json.gz",
        "00.size-60000000.json.gz",
        f"00.size-{'9' * 200}.json.gz",
        "00.size-0.json.gz",
        "60.json.gz",
        "\u0661\u0661.json.gz",
    ],
)
def test_name_that_promises_what_no_slice_has_is_left_out(tmp_path: Path, name: str) -> None:
    cache = Cache(tmp_path)
    longest = put(cache, 0, LONGEST_SLICE)
    longest.with_name(name).touch()
    assert [each.path for each in cache.slices("bitmex", "k", MINUTE // 60)] == [longest]


def test_hours_may_be_asked_for_in_any_order(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    paths = {minute: put(cache, minute) for minute in (0, 61, 3000, 6000)}
    coverage = Coverage(cache, "bitmex", ("k",))
    for minute in (6000, 0, 3000, 61, 6000):
        found = coverage.at(MINUTE + minute)
        assert found is not None
        assert found.path == paths[minute]


def test_a_slice_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path = cache.path("bitmex", "k", MINUTE, 1, "zst")

    def cut() -> Iterator[bytes]:
        yield body(b"text\n")[:5]
        assert not path.exists()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        cache.store(path, cut())
    with pytest.raises(CorruptSliceError):
        cache.store(path, [body(b"text\n")[:5]])
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    cache.store(path, [body(b"te"), body(b"xt\n")])
    assert cache.is_verified(path)
    cache.unpin(path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    left = [tmp_path / ".unfinished" / name for name in ("1-1-00.json.zst", "2-2-00.json.zst")]
    left[0].parent.mkdir()
    for each in left:
        each.touch()
    os.utime(left[0], (1000, 1000))
    cache.store(cache.path("bitmex", "k", MINUTE, 1, "zst"), [body()])
    assert [each.exists() for each in left] == [False, True]


def test_a_file_changed_since_is_not_trusted(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path = cache.path("bitmex", "k", MINUTE, 1, "zst")
    cache.store(path, [body(b"text\n")])
    path.write_bytes(b"something else")
    assert not cache.is_verified(path)
    path.unlink()
    assert not cache.is_verified(path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "feeds").touch()
    (tmp_path / "file").touch()
    for directory in (tmp_path, tmp_path / "file"):
        cache = Cache(directory)
        path = cache.path("bitmex", "k", MINUTE, 1, "zst")
        with pytest.raises(CacheError, match=rf"the cache cannot be written: {directory}"):
            cache.store(path, [body()])


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path = cache.path("bitmex", "k", MINUTE, 1, "zst")

    def chunks() -> Generator[bytes, None, None]:
        # A limit on the size of files stands in for the end of the disk: same call, same kind.
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            yield os.urandom(5000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)

    too_much = chunks()
    with pytest.raises(CacheError, match="File too large"):
        cache.store(path, too_much)
    too_much.close()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_the_oldest_files_go_first_and_pinned_ones_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=250)
    content = os.urandom(90)
    paths = [cache.path("bitmex", "k", MINUTE + each, 1, "zst") for each in range(5)]
    for age, path in enumerate(paths[:4]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1000 + age, 1000 + age))
    cache.pin(paths[0])
    cache.store(paths[4], [body(content)])
    assert [path.exists() for path in paths] == [True, False, False, False, True]
    cache.unpin(paths[4])
    assert cache.has_room(150)
    assert not cache.has_room(200)


def stored(cache: Cache, start: int, size: int = 1000) -> Path:
    """A slice that was stored, read, and let go."""
    path = cache.path("bitmex", "k", MINUTE + start, 1, "zst")
    cache.store(path, [body(os.urandom(size))])
    cache.unpin(path)
    return path


def total(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.zst"))


def test_not_every_store_looks_at_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = 0
    walk = os.walk

    def counted(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        nonlocal walks
        walks += 1
        return walk(top)

    monkeypatch.setattr(os, "walk", counted)
    cache = Cache(tmp_path, max_bytes=100_000)
    for start in range(200):
        stored(cache, start)
        assert total(tmp_path) <= 100_000
    assert walks <= 15


def test_processes_that_share_a_cache_share_its_bound(tmp_path: Path) -> None:
    caches = [Cache(tmp_path, max_bytes=20_000) for _ in range(4)]
    for start in range(100):
        stored(caches[start % 4], start)
        assert total(tmp_path) <= 20_000


def test_slice_is_evicted_after_its_last_pin_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=10_000)
    path = stored(cache, 0)
    cache.pin(path)
    cache.pin(path)
    cache.unpin(path)
    for start in range(1, 30):
        stored(cache, start)
    assert path.exists()
    cache.unpin(path)
    for start in range(30, 60):
        stored(cache, start)
    assert not path.exists()


def test_a_pin_does_not_wait_for_an_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path, max_bytes=10_000)
    path = stored(cache, 0)
    walking, go_on = threading.Event(), threading.Event()
    walk = os.walk

    def slow(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        walking.set()
        assert go_on.wait(60)
        return walk(top)

    monkeypatch.setattr(os, "walk", slow)
    with ThreadPoolExecutor(1) as pool:
        storing = pool.submit(stored, cache, 1, 20_000)
        assert walking.wait(60)
        cache.pin(path)
        assert not cache.has_room(1)
        cache.unpin(path)
        go_on.set()
        storing.result()


def test_what_stood_in_the_way_of_an_eviction_goes_when_it_was_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=1500)
    path = stored(cache, 0)
    cache.pin(path)
    other = cache.path("bitmex", "k", MINUTE + 1, 1, "zst")
    cache.store(other, [body(os.urandom(1000))])
    assert path.exists()
    cache.unpin(path)
    assert not path.exists()
    cache.unpin(other)
    assert other.exists()


def test_a_slice_that_cannot_be_evicted_fails_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path, max_bytes=1500)
    path = stored(cache, 0)
    unlink = os.unlink

    def refused(name: str, *, dir_fd: int | None = None) -> None:
        if name == path.name:
            raise PermissionError(13, "Permission denied")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refused)
    stored(cache, 1)
    assert path.exists()
    assert any(record.message == "cached slice cannot be evicted" for record in caplog.records)


def test_a_cache_that_cannot_be_cleared_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (tmp_path / "feeds").mkdir()
    monkeypatch.setattr(shutil, "rmtree", refuse)  # root may remove anything
    told = f"^the cache cannot be cleared: {tmp_path}: Permission denied$"
    with pytest.raises(CacheError, match=told):
        Cache(tmp_path).clear()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CacheError, match=f"cannot be cleared: {file}: File exists"):
        Cache(file, max_bytes=1).clear()


def test_clearing_leaves_what_is_not_the_caches(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put(cache, 0)
    (tmp_path / "mine.txt").touch()
    cache.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    cache.clear()
