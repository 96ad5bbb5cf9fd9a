import os
import resource
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import zstandard

from tardis_machine.history.cache import Cache, CachedSlice, Coverage
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
    coverage.forget(CachedSlice(MINUTE + 55, 90, long))
    assert coverage.at(MINUTE + 70) is None
    assert short.exists()


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
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert cache.is_verified(path)


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


def test_clearing_leaves_what_is_not_the_caches(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    put(cache, 0)
    (tmp_path / "mine.txt").touch()
    cache.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    cache.clear()
