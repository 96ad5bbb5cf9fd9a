import asyncio
import errno
import hashlib
import logging
import os
import resource
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tardis_machine.history import (
    CacheError,
    Filter,
    History,
    HistoryError,
    HistoryReader,
    ReaderClosedError,
    RetriesExhaustedError,
    sample,
)
from tardis_machine.history import reader as reader_module
from tardis_machine.history.cache import MINUTE
from tardis_machine.history.filters import cache_keys
from tests.history.slices import FILTERS, START, expected, write
from tests.support.servers.tardis_api import Fault, TardisApi, numbered_lines, sample_lines
from tests.support.waiting import wait_until


class Replays:
    """A history on the test's server; minutes are counted from the start."""

    def __init__(self, api: TardisApi, directory: Path) -> None:
        self.api = api
        self.directory = directory
        self.pauses: list[float] = []
        self.history = History(endpoint=api.endpoint, cache_dir=directory, sleep=self.pauses.append)

    def read(self, start: int, end: int, filters: list[Filter] = FILTERS) -> HistoryReader:
        return self.history.read("ftx", filters, (START + start) * MINUTE, (START + end) * MINUTE)

    def asked(self) -> list[tuple[int, int]]:
        return [(call.minute - START, call.minutes) for call in self.api.calls]

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*") if path.is_file())


@pytest.fixture
def replays(tardis_api: TardisApi, tmp_path: Path) -> Iterator[Replays]:
    replays = Replays(tardis_api, tmp_path)
    yield replays
    replays.history.close()


def test_minutes_come_in_order(replays: Replays) -> None:
    reader = replays.read(0, 75)
    assert reader.total_minutes == 75
    assert b"".join(reader) == expected(0, 75)
    assert reader.done_minutes == 75
    assert list(reader) == []


def test_the_last_minute_is_asked_for_first_then_the_first(replays: Replays) -> None:
    assert b"".join(replays.read(0, 5)) == expected(0, 5)
    assert replays.asked()[:2] == [(4, 1), (0, 1)]
    assert sorted(replays.asked()) == [(each, 1) for each in range(5)]


def test_a_wrong_key_fails_before_anything_is_given_out(replays: Replays) -> None:
    replays.api.api_key = "sesame"
    with pytest.raises(HistoryError, match="Invalid API key") as caught:
        next(replays.read(0, 9))
    assert caught.value.status == 401
    assert replays.asked() == [(8, 1)]


def test_an_api_that_cannot_be_reached_is_told_before_anything_is_given_out(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    write(tmp_path, 0)
    tardis_api.close()
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path, api_wait_s=0) as history:
        reader = history.read("ftx", FILTERS, START * MINUTE, (START + 2) * MINUTE)
        with pytest.raises(RetriesExhaustedError, match="cannot be reached"):
            next(reader)
        with history.read("ftx", FILTERS, START * MINUTE, (START + 1) * MINUTE) as cached:
            assert b"".join(cached) == expected(0, 1)


def test_a_first_slice_that_is_corrupt_waits_no_longer_for_an_api_that_cannot_be_reached(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    path = write(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-5])
    tardis_api.close()
    with (
        History(endpoint=tardis_api.endpoint, cache_dir=tmp_path, api_wait_s=0) as history,
        pytest.raises(RetriesExhaustedError, match="cannot be reached"),
    ):
        next(history.read("ftx", FILTERS, START * MINUTE, (START + 1) * MINUTE))


def test_a_suggested_size_is_used_for_the_middle(replays: Replays) -> None:
    replays.api.suggested_minutes = 8
    assert b"".join(replays.read(0, 30)) == expected(0, 30)
    assert sorted(replays.asked()) == [(0, 1), (1, 8), (9, 8), (17, 8), (25, 4), (29, 1)]


def test_without_filters_slices_stay_a_minute(replays: Replays) -> None:
    replays.api.suggested_minutes = 8
    assert b"".join(replays.read(0, 6, filters=[])) == expected(0, 6)
    assert sorted(replays.asked()) == [(each, 1) for each in range(6)]


def test_an_answer_may_hold_less_than_was_asked_for(replays: Replays) -> None:
    replays.api.suggested_minutes = 10
    replays.api.max_minutes = 3
    assert b"".join(replays.read(0, 15)) == expected(0, 15)


def test_an_answer_may_hold_more_than_was_asked_for(replays: Replays) -> None:
    write(replays.directory, 0, minutes=4)
    replays.api.lines = lambda exchange, minute: b"".join(
        numbered_lines(exchange, each)
        for each in range(minute, minute + (3 if minute == START + 4 else 1))
    )
    replays.api.fail_at(START + 4, Fault(headers={"x-slice-size": "3"}))
    assert b"".join(replays.read(2, 6)) == expected(2, 6)


def test_a_cached_range_needs_no_network(replays: Replays) -> None:
    assert b"".join(replays.read(0, 12)) == expected(0, 12)
    replays.api.close()
    assert b"".join(replays.read(0, 12)) == expected(0, 12)
    assert b"".join(replays.read(3, 7)) == expected(3, 7)
    with History(endpoint=replays.api.endpoint, cache_dir=replays.directory) as other:
        reader = other.read("ftx", FILTERS, START * MINUTE, (START + 12) * MINUTE)
        assert b"".join(reader) == expected(0, 12)


def test_a_long_file_serves_any_part_of_it(replays: Replays) -> None:
    write(replays.directory, 0, minutes=60)
    write(replays.directory, 60, minutes=7)
    for start, end in ((0, 67), (2, 59), (59, 61), (66, 67)):
        assert b"".join(replays.read(start, end)) == expected(start, end)
    assert replays.asked() == []


def test_overlapping_files_repeat_nothing(replays: Replays) -> None:
    write(replays.directory, 0, minutes=10)
    write(replays.directory, 4, minutes=10)
    write(replays.directory, 8)
    assert b"".join(replays.read(0, 14)) == expected(0, 14)
    assert replays.asked() == []


def test_only_what_is_missing_is_fetched(replays: Replays) -> None:
    replays.api.suggested_minutes = 6
    write(replays.directory, 0, minutes=5)
    write(replays.directory, 14, minutes=2)
    assert b"".join(replays.read(0, 20)) == expected(0, 20)
    assert replays.asked()[:2] == [(19, 1), (5, 1)]
    assert sorted(replays.asked()) == [(5, 1), (6, 6), (12, 2), (16, 3), (19, 1)]


def test_both_clients_names_for_a_channel_without_symbols(replays: Replays) -> None:
    node, python = cache_keys([Filter("trades")])
    write(replays.directory, 0, key=node)
    write(replays.directory, 1, key=python)
    assert b"".join(replays.read(0, 2, filters=[Filter("trades")])) == expected(0, 2)
    assert replays.asked() == []
    b"".join(replays.read(0, 3, filters=[Filter("trades")]))
    assert next(path for path in replays.files() if path.name.startswith("02")).parts[-6] == node


@pytest.mark.parametrize("kept", [0.0, 0.4, 0.99])
def test_a_truncated_cache_file_is_fetched_again(
    replays: Replays, kept: float, caplog: pytest.LogCaptureFixture
) -> None:
    for minute in range(4):
        write(replays.directory, minute)
    bad = write(replays.directory, 2)
    content = bad.read_bytes()
    bad.write_bytes(content[: int(len(content) * kept)])
    assert b"".join(replays.read(0, 4)) == expected(0, 4)
    assert replays.asked() == [(2, 1)]
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [(record.message, record.__dict__["path"]) for record in told] == [
        ("slice corrupt, fetching it again", str(bad))
    ]
    replays.api.calls.clear()
    assert b"".join(replays.read(0, 4)) == expected(0, 4)
    assert replays.asked() == []


def test_a_bad_cache_file_that_cannot_be_removed_is_told_of(replays: Replays) -> None:
    write(replays.directory, 0)
    bad = write(replays.directory, 1)
    bad.unlink()
    bad.mkdir()  # which unlinking fails on, as it does in a folder that cannot be written
    got: list[bytes] = []
    with pytest.raises(CacheError, match=f"the cache cannot be written: {bad}: "):
        read_as_a_server(replays.read(0, 2), got)
    assert b"".join(got) == expected(0, 1)


def big_lines(exchange: str, minute: int) -> bytes:
    """Several blocks' worth, many of them stamped alike."""
    stamp = numbered_lines(exchange, minute)[:17].decode()
    return b"".join(
        f"{stamp}{each // 3000:02}.0000000Z {minute} {each} {hash((minute, each)):020}\n".encode()
        for each in range(20_000)
    )


def alike_lines(exchange: str, minute: int) -> bytes:
    """Many blocks' worth, all stamped alike."""
    stamp = numbered_lines(exchange, minute)[:17].decode()
    return b"".join(
        f"{stamp}00.0000000Z {each} {hashlib.sha512(b'%d' % each).hexdigest() * 3}\n".encode()
        for each in range(20_000)
    )


@pytest.mark.parametrize(("made", "blocks"), [(big_lines, 8), (alike_lines, 40)])
def test_a_file_that_goes_bad_while_it_is_read_repeats_nothing(
    replays: Replays, made: Callable[[str, int], bytes], blocks: int
) -> None:
    replays.api.lines = made
    replays.api.max_minutes = 2
    path = write(replays.directory, 0, minutes=5, lines=made)
    reader = replays.read(0, 5)
    got = [next(reader) for _ in range(blocks)]
    # In place, as a failing disk would: the reader holds the file open.
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 200_000)
    got += reader
    lines = b"".join(got).splitlines()
    whole = b"".join(made("ftx", START + each) for each in range(5)).splitlines()
    assert len(lines) == len(whole)
    assert lines == whole
    # From the minute that was being read on, in as many answers as it takes.
    first = replays.asked()[0][0]
    assert 0 < first < 4
    assert max(replays.asked())[0] > first


@pytest.mark.parametrize("line", [b"\n", b"2024-03-01T00:00:00.0000000Z \n"])
def test_lines_alike_without_number_do_not_pile_up_in_memory(replays: Replays, line: bytes) -> None:
    write(replays.directory, 0, lines=lambda *_: line * (64_000_000 // len(line)))
    tracemalloc.start()
    try:
        assert sum(map(len, replays.read(0, 1))) > 60_000_000
        assert tracemalloc.get_traced_memory()[1] < 32_000_000
    finally:
        tracemalloc.stop()


def test_a_bad_sample_file_is_an_error_and_no_wait(tmp_path: Path) -> None:
    shutil.copytree(sample.SAMPLE.directory, tmp_path / "data")
    with sample.sample_history() as history:
        history.cache.directory = tmp_path / "data"
        next((tmp_path / "data").rglob("*/bitmex/**/02.json.zst")).write_bytes(b"bad")
        start = int(sample.START.timestamp()) * 1_000_000
        reader = history.read("bitmex", [], start, start + 5 * MINUTE)
        got: list[bytes] = []
        with pytest.raises(HistoryError, match="corrupt slice"):
            read_as_a_server(reader, got)
    assert b"00:01:59" in b"".join(got)


def read_as_a_server(reader: HistoryReader, got: list[bytes]) -> None:
    while True:
        while (pending := reader.pending()) is not None:
            pending.exception()
        got.append(next(reader))


def test_a_file_that_disappears_is_fetched(
    replays: Replays, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [write(replays.directory, minute) for minute in range(30)]
    reader = replays.read(0, 30)
    got = [next(reader)]
    for path in paths:
        path.unlink()
    with caplog.at_level(logging.INFO):
        got += reader
    assert b"".join(got) == expected(0, 30)
    events = [record for record in caplog.records if "fetching it again" in record.message]
    assert {record.levelno for record in events} == {logging.INFO}
    assert {record.message for record in events} == {
        "slice evicted before it was read, fetching it again"
    }
    assert {record.__dict__["path"] for record in events} <= set(map(str, paths))


@pytest.mark.parametrize("evictions", [1, 10])
def test_evictions_of_a_slice_do_not_count_as_corrupt_files(
    replays: Replays, evictions: int
) -> None:
    path = write(replays.directory, 0)
    reader = replays.read(0, 1)
    for _ in range(evictions):
        while (pending := reader.pending()) is not None:
            pending.exception()
        path.unlink()
        assert next(reader) == b""
    replays.api.fail(Fault(truncate=9), Fault(truncate=9))
    assert b"".join(reader) == expected(0, 1)


def test_evicted_slice_that_another_process_fetched_again_is_not_removed(
    replays: Replays,
) -> None:
    path = write(replays.directory, 0)
    never, verify = threading.Event(), threading.Event()
    replays.api.fail_at(START, Fault(wait_for=never))
    with replays.read(0, 1) as reader:
        reader._opening.result(timeout=60)
        for _ in range(2):
            replays.history._workers.submit(verify.wait)
        verification = reader.pending()
        assert verification is not None
        path.unlink()
        verify.set()
        assert verification.exception() is None
        write(replays.directory, 0)
        wait_until(lambda: reader.pending() is not None and replays.api.held == 1)
        assert path.exists()
    never.set()


def test_file_that_another_machine_removed_while_it_is_read_is_fetched_again(
    replays: Replays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(replays.directory, 0)
    read = reader_module.read_blocks

    def stale(path: Path) -> Iterator[bytes]:  # as NFS does; no file system here can
        monkeypatch.setattr(reader_module, "read_blocks", read)
        yield expected(0, 1).splitlines(keepends=True)[0]
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(reader_module, "read_blocks", stale)
    assert b"".join(replays.read(0, 1)) == expected(0, 1)
    assert replays.asked() == [(0, 1)]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_removed_sample_file_is_an_error_that_does_not_call_it_corrupt(tmp_path: Path) -> None:
    shutil.copytree(sample.SAMPLE.directory, tmp_path / "data")
    with sample.sample_history() as history:
        history.cache.directory = tmp_path / "data"
        start = int(sample.START.timestamp()) * 1_000_000
        reader = history.read("bitmex", [], start, start + 5 * MINUTE)
        next(reader)
        gone = next((tmp_path / "data").rglob("*/bitmex/**/02.json.zst"))
        gone.unlink()
        with pytest.raises(HistoryError, match=f"^slice {gone} was removed before it was read"):
            b"".join(reader)


def test_reader_that_is_dropped_unpins_its_slices(replays: Replays) -> None:
    hold = threading.Event()
    replays.api.fail_at(START + 5, Fault(wait_for=hold))
    reader = replays.read(0, 20)
    next(reader)
    wait_until(lambda: replays.api.held == 1 and replays.history.cache.pinned > 10)
    del reader
    hold.set()
    wait_until(lambda: replays.history.cache.pinned == 0)


@pytest.mark.parametrize("opened", [0, 1, 2], ids=["listed", "verified", "read"])
def test_a_file_that_too_many_open_ones_keep_from_being_read_is_not_thrown_away(
    replays: Replays, opened: int
) -> None:
    paths = [write(replays.directory, minute) for minute in range(3)]
    many = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader = replays.read(0, 3)
    try:
        if opened == 0:
            reader.close()
        elif opened == 2:
            while (pending := reader.pending()) is not None:
                pending.exception()
        else:
            reader._opening.exception()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, many[1]))
        if opened == 0:
            reader = replays.read(0, 3)
        with pytest.raises(CacheError, match=r"cannot be read: .*Too many open files"):
            list(reader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, many)
    assert all(path.exists() for path in paths)
    assert b"".join(replays.read(0, 3)) == expected(0, 3)
    assert replays.asked() == []


def test_a_server_that_keeps_sending_nonsense_is_an_error(replays: Replays) -> None:
    replays.api.fail(*[Fault(corrupt=True)] * 100)
    with pytest.raises(HistoryError, match="bad slice"):
        next(replays.read(0, 1))
    assert len(replays.pauses) == 29


def test_a_bad_minute_does_not_cost_the_good_ones_before_it(replays: Replays) -> None:
    replays.api.fail_at(START + 5, Fault(404, "not recorded"))
    reader = replays.read(0, 9)
    got: list[bytes] = []
    with pytest.raises(HistoryError, match="not recorded") as caught:
        got.extend(reader)
    assert b"".join(got) == expected(0, 5)
    assert caught.value.status == 404
    with pytest.raises(ReaderClosedError):
        next(reader)


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_an_exchanges_own_messages_over_the_network(replays: Replays, encoding: str) -> None:
    replays.api.lines = sample_lines
    replays.api.encoding = encoding
    start = int(sample.START.timestamp()) * 1_000_000
    asked = ("deribit", [Filter("trades"), Filter("book", ("BTC-PERPETUAL",))])
    with sample.sample_history() as bundled:
        whole = b"".join(bundled.read(*asked, start, start + 5 * MINUTE))
    assert b"".join(replays.history.read(*asked, start, start + 5 * MINUTE)) == whole
    assert whole.count(b"\n\n") == 1


def test_disconnects_pass(replays: Replays) -> None:
    def lines(exchange: str, minute: int) -> bytes:
        ten = numbered_lines(exchange, minute).splitlines(keepends=True)
        return b"".join(ten[:4]) + b"\n" + b"".join(ten[4:])

    replays.api.lines = lines
    assert b"".join(replays.read(0, 3)) == b"".join(lines("ftx", START + each) for each in range(3))


def test_no_more_than_sixty_fetches_at_once_however_many_replay(replays: Replays) -> None:
    replays.api.delay_s = 0.02
    replays.api.frames_per_slice = 1
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(lambda day=day: b"".join(replays.read(1440 * day, 1440 * day + 110)))
            for day in range(3)
        ]
        for day, job in enumerate(jobs):
            assert job.result() == expected(1440 * day, 1440 * day + 110)
    assert 5 < replays.api.most_under_way <= 60


def test_a_history_may_be_bound_to_fewer(tardis_api: TardisApi, tmp_path: Path) -> None:
    tardis_api.delay_s = 0.01
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path, max_fetches=3) as history:
        reader = history.read("ftx", FILTERS, START * MINUTE, (START + 30) * MINUTE)
        assert b"".join(reader) == expected(0, 30)
    assert tardis_api.most_under_way == 3


def test_fetches_stay_sixty_slices_ahead_of_the_reader(replays: Replays) -> None:
    reader = replays.read(0, 200)
    next(reader)
    wait_until(lambda: len(replays.api.calls) == 61)
    assert max(minute for minute, _ in replays.asked() if minute < 199) < 61
    b"".join(reader)
    assert len(replays.api.calls) == 200


@pytest.mark.parametrize(("readers", "ahead"), [(1, 6), (3, 2), (10, 1)])
def test_a_replay_keeps_no_more_slices_than_allowed(
    tardis_api: TardisApi, tmp_path: Path, readers: int, ahead: int
) -> None:
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path, max_slices=6) as history:
        span = (START * MINUTE, (START + 20) * MINUTE)
        b"".join(history.read("ftx", FILTERS, *span))
        reader = history.read("ftx", FILTERS, *span, readers=readers)
        next(reader)
        assert history.cache.pinned == ahead
        assert len(b"".join(reader)) > 0
        assert history.cache.pinned == 0


def test_a_long_replay_does_not_hold_up_a_short_one(replays: Replays) -> None:
    hold = threading.Event()
    for minute in range(1, 100):
        replays.api.fail_at(START + minute, Fault(wait_for=hold))
    long = replays.read(0, 1000)
    next(long)
    wait_until(lambda: replays.api.held >= 50)
    assert b"".join(replays.read(2000, 2003)) == expected(2000, 2003)
    hold.set()
    long.close()


def test_replays_of_the_same_minutes_share_their_fetches(replays: Replays) -> None:
    hold = threading.Event()
    replays.api.fail_at(START + 2, Fault(wait_for=hold))
    readers = [replays.read(0, 3) for _ in range(4)]
    wait_until(lambda: replays.api.held == 1)
    hold.set()
    for reader in readers:
        assert b"".join(reader) == expected(0, 3)
    assert replays.asked().count((2, 1)) == 1


def test_closing_one_of_them_leaves_the_fetch_to_the_others(replays: Replays) -> None:
    hold = threading.Event()
    replays.api.fail_at(START + 2, Fault(wait_for=hold))
    one, other = replays.read(0, 3), replays.read(0, 3)
    wait_until(lambda: replays.api.held == 1 and one.pending() is not None)
    wait_until(lambda: one._probe is not None and other._probe is not None)
    one.close()
    hold.set()
    assert b"".join(other) == expected(0, 3)
    assert replays.asked().count((2, 1)) == 1


def test_closing_while_it_opens_leaves_the_fetch_to_the_others(replays: Replays) -> None:
    hold, opening = threading.Event(), threading.Event()
    replays.api.fail_at(START + 2, Fault(wait_for=hold))
    other = replays.read(0, 3)
    wait_until(lambda: other._probe is not None)
    for _ in range(2):
        replays.history._workers.submit(opening.wait)
    one = replays.read(0, 3)

    class ClosedJustThen(threading.Event):
        def is_set(self) -> bool:
            if not super().is_set():
                one.close()
            return super().is_set()

    one._closed = ClosedJustThen()
    opening.set()
    one._opening.result(timeout=60)
    hold.set()
    assert b"".join(other) == expected(0, 3)
    assert replays.asked().count((2, 1)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_closing_in_the_middle_never_looks_like_the_end(replays: Replays, seed: int) -> None:
    reader = replays.read(0, 6)
    got: list[bytes] = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(got.extend, reader)
        wait_until(lambda: reading.done() or len(replays.api.calls) > seed % 6)
        reader.close()
        if reading.exception() is None:
            assert b"".join(got) == expected(0, 6)
        else:
            assert isinstance(reading.exception(), ReaderClosedError)
    wait_until(lambda: replays.history.cache.pinned == 0)


def test_a_process_ends_though_a_fetch_holds_a_lock(replays: Replays, tmp_path: Path) -> None:
    never = threading.Event()
    replays.api.fail_at(START, Fault(wait_for=never))
    script = (
        "import sys, threading, time\n"
        "from tardis_machine.history import History\n"
        "history = History(endpoint=sys.argv[1], cache_dir=sys.argv[2])\n"
        f"reader = history.read('ftx', [], {START * MINUTE}, {(START + 1) * MINUTE})\n"
        "while reader._probe is None: time.sleep(0.01)\n"
        # As a daemon thread leaves it that is in the middle of something when Python ends.
        "held = threading.Thread(target=history._fetches._changed.acquire, daemon=True)\n"
        "held.start()\n"
        "held.join()\n"
    )
    command = [sys.executable, "-c", script, replays.api.endpoint, str(tmp_path / "other")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_thread_that_cannot_start_is_an_error_and_no_wait(
    replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name == "tardis-fetch":
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(HistoryError, match="can't start new thread"):
            b"".join(replays.read(0, 1))
    assert b"".join(replays.read(0, 1)) == expected(0, 1)


def test_closing_cuts_the_connections_at_once(replays: Replays) -> None:
    never = threading.Event()
    for minute in range(1, 20):
        replays.api.fail_at(START + minute, Fault(wait_for=never))
    reader = replays.read(0, 40)
    assert next(reader)
    wait_until(lambda: replays.api.held == 19)
    reader.close()
    for _ in range(19):
        assert replays.api.aborted.acquire(timeout=30)
    with pytest.raises(ReaderClosedError):
        next(reader)


def test_closing_the_history_wakes_who_waits(replays: Replays) -> None:
    never = threading.Event()
    replays.api.fail_at(START, Fault(wait_for=never))
    reader = replays.read(0, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, reader)
        wait_until(lambda: replays.api.held == 1)
        replays.history.close()
        with pytest.raises(ReaderClosedError):
            waiting.result()
    with pytest.raises(ReaderClosedError):
        replays.read(0, 1)


def test_a_dropped_reader_stops_fetching(replays: Replays) -> None:
    never = threading.Event()
    for minute in range(1, 10):
        replays.api.fail_at(START + minute, Fault(wait_for=never))
    reader = replays.read(0, 10)
    wait_until(lambda: replays.api.held == 1)
    del reader
    assert replays.api.aborted.acquire(timeout=30)


async def test_an_event_loop_waits_without_blocking(replays: Replays) -> None:
    hold = threading.Event()
    replays.api.fail_at(START + 1, Fault(wait_for=hold))
    reader = replays.read(0, 3)
    got = []
    while True:
        while (pending := reader.pending()) is not None:
            # Giving up on a wait must not cancel what is waited for.
            await asyncio.wait([asyncio.wrap_future(pending)], timeout=0.05)
            hold.set()
        try:
            got.append(next(reader))
        except StopIteration:
            break
    assert b"".join(got) == expected(0, 3)


def test_whoever_looks_first_never_waits_within_a_step(replays: Replays) -> None:
    hold = threading.Event()
    too_late = threading.Timer(5, hold.set)
    too_late.start()
    replays.api.fail_at(START + 1, Fault(wait_for=hold))
    reader = replays.read(0, 3)
    got: list[bytes] = []
    while True:
        if (pending := reader.pending()) is None:
            got.append(next(reader))
        elif b"".join(got) == expected(0, 1):
            break
        else:
            pending.exception()
    assert not hold.is_set()
    hold.set()
    too_late.cancel()
    assert b"".join([*got, *reader]) == expected(0, 3)


def no_lines(exchange: str, minute: int) -> bytes:
    del exchange, minute
    return b""


def test_files_without_lines_are_a_step_each(replays: Replays) -> None:
    for minute in range(30):
        write(replays.directory, minute, lines=no_lines)
    assert b"".join(replays.read(0, 30)) == b""
    reader = replays.read(0, 30)
    next(reader)
    assert reader.done_minutes == 1


async def test_a_cancelled_wait_cancels_nothing(replays: Replays) -> None:
    reader = replays.read(0, 3)
    while (pending := reader.pending()) is not None:
        wrapped = asyncio.wrap_future(pending)
        wrapped.cancel()
        await asyncio.sleep(0.01)
    assert b"".join(reader) == expected(0, 3)


def test_a_bounded_cache_stays_bounded_and_the_replay_whole(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    size = write(tmp_path, 5000).stat().st_size
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path, cache_max_bytes=8 * size) as h:
        reader = h.read("ftx", FILTERS, START * MINUTE, (START + 100) * MINUTE)
        most, got = 0, []
        for block in reader:
            got.append(block)
            most = max(most, len(list(tmp_path.rglob("[0-9]*.zst"))))
        assert b"".join(got) == expected(0, 100)
        assert most <= 10
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.zst")) <= 8 * size


def test_clearing_the_cache(replays: Replays) -> None:
    b"".join(replays.read(0, 2))
    assert len(replays.files()) == 2
    replays.history.clear_cache()
    assert replays.files() == []
    assert b"".join(replays.read(0, 2)) == expected(0, 2)


@pytest.mark.parametrize("exchange", ["../etc", "BitMEX", "", "a/b", "a?b"])
def test_a_name_that_is_none_reaches_no_path(replays: Replays, exchange: str) -> None:
    with pytest.raises(HistoryError, match="not an exchange's name"):
        replays.history.read(exchange, [], START * MINUTE, (START + 1) * MINUTE)


def test_times_are_cut_to_minutes(replays: Replays) -> None:
    reader = replays.history.read("ftx", [], START * MINUTE + 59_999_999, (START + 2) * MINUTE + 1)
    assert b"".join(reader) == expected(0, 2)
    with pytest.raises(HistoryError, match="at least a minute"):
        replays.history.read("ftx", [], START * MINUTE, START * MINUTE + 59_999_999)


def test_range_of_no_length_gives_nothing_and_fetches_nothing(replays: Replays) -> None:
    reader = replays.history.read("ftx", [], START * MINUTE + 1, START * MINUTE + 1)
    assert (list(reader), reader.total_minutes) == ([], 0)
    assert replays.asked() == []
