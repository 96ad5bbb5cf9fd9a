"""Several processes on one journal directory: whose it is, who is older, how much fits."""

import multiprocessing
import os
import shutil
import signal
import stat
import threading
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tardis_machine.journal import (
    BoundError,
    Directory,
    Entry,
    LockedError,
    Log,
    OtherVersionError,
    Provenance,
    Reader,
    Writer,
)
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.segment import list_log, segment_path, tombstone_path

PROVENANCE = encode_provenance(Provenance("producer", "request"))
SPAWN = multiprocessing.get_context("spawn")


def writer(
    path: Path,
    buses: Sequence[str] = ("kafka",),
    *,
    max_bytes: int = 1 << 20,
    topic: str = "bronze",
    adopt: bool = False,
    fsync: float | None = None,
) -> Writer:
    where = {bus: f"{bus} {topic}" for bus in buses}
    return Writer(
        path, "p", buses, destinations=where, max_bytes=max_bytes, adopt=adopt, fsync=fsync
    )


def fill(journal: Writer, size: int = 4_000) -> int:
    """Append until nothing fits any more."""
    count = 0
    while journal.append(PROVENANCE, b"x" * size + b"\n", 1, count):
        count += 1
    return count


def used(path: Path) -> int:
    return sum(each.stat().st_size for each in path.glob("*/*.seg"))


def positions(log: Log) -> list[int | str]:
    reader = Reader(log, 0, 0, 0)
    found: list[int | str] = []
    while (each := reader.read()) is not None:
        found.append(each.position if isinstance(each, Entry) else each.reason)
    return found


# Links.


def test_what_is_left_of_a_log_is_not_deleted_behind_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("lock", "log.json", "spare", "0.seg"):
        (precious / name).touch()
    journal = tmp_path / "journal"
    journal.mkdir()
    name = "log-000000000001-00000000"
    for prefix in (".new-", ".old-", ""):
        (journal / f"{prefix}{name}").symlink_to(precious)
    directory = Directory(journal)
    with directory.entrance():
        assert directory.logs() == []
    directory.lock()
    directory.unlock()
    assert len(list(precious.iterdir())) == 4


def test_file_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("text")
    (tmp_path / "publisher.lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        Directory(tmp_path).lock()
    assert precious.read_text() == "text"


# The bound.


def _fill_beside(path: Path, go: Event) -> None:
    journal = writer(path, max_bytes=4 << 20)
    go.wait()
    fill(journal, 700)
    journal.close()


def test_the_bound_is_kept_over_all_processes(tmp_path: Path) -> None:
    go = SPAWN.Event()
    servers = [SPAWN.Process(target=_fill_beside, args=(tmp_path, go)) for _ in range(3)]
    for server in servers:
        server.start()
    directory = Directory(tmp_path)
    while len(directory.logs()) < len(servers):
        assert all(server.is_alive() for server in servers)
    go.set()
    for server in servers:
        server.join()
    assert 0.9 * (4 << 20) < used(tmp_path) <= 4 << 20


def test_an_idle_siblings_log_makes_room_for_live(tmp_path: Path) -> None:
    idle = writer(tmp_path)
    fill(idle)
    live = writer(tmp_path)
    for number in range(100):
        while not live.append(PROVENANCE, b"x" * 4_000 + b"\n", 1, number):
            assert live.make_room(forced=True)
    assert used(tmp_path) <= 1 << 20
    assert live.messages == 100
    skipped = list_log(idle.path).tombstones
    assert skipped
    idle.close()
    live.close()


def test_a_bus_that_is_gone_holds_nobody_up(tmp_path: Path) -> None:
    """Taken out of the configuration, with its share given up: replays go on at a full journal."""
    old = writer(tmp_path, ("kafka", "nats"))
    fill(old)
    old.close()
    with pytest.raises(BoundError, match="messages for nats"):
        writer(tmp_path)
    journal = writer(tmp_path, adopt=True)
    [left, _] = Directory(tmp_path).logs()
    cursor = left.cursor("kafka")
    cursor.state.segment = left.listing().segments[-1]
    cursor.save()
    cursor.close()
    assert not journal.append(PROVENANCE, b"x" * 300_000 + b"\n", 1, 0)
    while not journal.append(PROVENANCE, b"x" * 300_000 + b"\n", 1, 0):
        assert journal.make_room(forced=False)
    journal.close()


def test_a_bus_that_nobody_configures_is_not_waited_for(tmp_path: Path) -> None:
    """A log is put back for another bus: what it holds goes first, and is named for that bus."""
    old = writer(tmp_path / "elsewhere", ("nats",))
    fill(old)
    old.close()
    journal = writer(tmp_path / "journal")
    back = old.path.rename(journal.path.with_name("log-000000000000-00000000"))
    assert not journal.append(PROVENANCE, b"x" * 4_000 + b"\n", 1, 0)
    assert journal.make_room(forced=False)
    assert list_log(back).tombstones == [0]
    assert journal.append(PROVENANCE, b"x" * 4_000 + b"\n", 1, 0)
    journal.close()


def test_a_bus_that_has_read_all_of_a_log_does_not_hold_its_segments(tmp_path: Path) -> None:
    now = 0.0
    old = writer(tmp_path, ("kafka", "nats"))
    fill(old)
    old.close()
    where = {"kafka": "kafka bronze", "nats": "nats bronze"}
    journal = Writer(
        tmp_path,
        "p",
        list(where),
        destinations=where,
        max_bytes=1 << 20,
        fsync=None,
        clock=lambda: now,
    )
    log = Directory(tmp_path).logs()[0]
    cursor = log.cursor("kafka")
    reader = Reader(log, 0, 0, 0)
    *_, last = iter(reader.read, None)
    assert isinstance(last, Entry)
    state = cursor.state
    state.segment, state.offset, state.seen = last.segment, last.end, reader.messages
    cursor.save()
    cursor.close()
    assert not journal.append(PROVENANCE, b"x" * 4_000 + b"\n", 1, 0)
    assert not journal.make_room(forced=False)
    now = 61.0
    for number in log.listing().segments:
        assert journal.space.find_stalled() == {"nats"}
        assert journal.make_room(forced=False)
        assert not segment_path(log.path, number).exists()
    journal.close()


# Whose it is.


def test_another_destination_is_refused_while_a_server_lives(tmp_path: Path) -> None:
    first = writer(tmp_path, topic="bronze")
    with pytest.raises(BoundError, match=rf"process {os.getpid()} for kafka \(kafka bronze\)"):
        writer(tmp_path, topic="silver")
    with pytest.raises(BoundError, match="process"):
        writer(tmp_path, ("kafka", "nats"))
    writer(tmp_path, topic="bronze").close()
    first.close()


def test_what_is_left_for_another_destination_is_refused_by_name(tmp_path: Path) -> None:
    first = writer(tmp_path, topic="bronze")
    first.append(PROVENANCE, b"x\n", 1, 0)
    first.close()
    with pytest.raises(BoundError) as refused:
        writer(tmp_path, topic="silver")
    assert refused.value.pending == {"kafka": 1}
    assert refused.value.bound == {"kafka": "kafka bronze"}
    assert refused.value.pid is None
    assert "--journal-adopt" in str(refused.value)
    taken = writer(tmp_path, topic="silver", adopt=True)
    assert [log.destination("kafka") for log in Directory(tmp_path).logs()] == ["kafka silver"] * 2
    taken.close()


def test_what_is_left_behind_a_torn_header_is_refused_as_well(tmp_path: Path) -> None:
    first = writer(tmp_path, topic="bronze")
    first.append(PROVENANCE, b"x\n", 1, 0)
    first.close()
    path = segment_path(first.path, 0)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(BoundError) as refused:
        writer(tmp_path, topic="silver")
    assert refused.value.pending == {"kafka": 1}


def test_what_is_delivered_binds_nobody(tmp_path: Path) -> None:
    first = writer(tmp_path, topic="bronze")
    first.append(PROVENANCE, b"x\n", 1, 0)
    first.close()
    [log] = Directory(tmp_path).logs()
    cursor = log.cursor("kafka")
    cursor.state.seen = 1
    cursor.save()
    cursor.close()
    writer(tmp_path, topic="silver").close()


@pytest.mark.parametrize("name", ["lock", "log.json"])
def test_what_others_keep_beside_the_logs_is_none(tmp_path: Path, name: str) -> None:
    """A database has a file `lock` of its own, and whatever ends as ours do was not begun by us."""
    for each in ("precious", "log-book-1", ".old-precious", ".new-precious"):
        (tmp_path / each).mkdir()
        (tmp_path / each / name).touch()
        (tmp_path / each / "data.db").write_bytes(b"x")
    writer(tmp_path).close()
    directory = Directory(tmp_path)
    directory.lock()
    [log] = directory.logs()
    log.remove()
    directory.unlock()
    left = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.glob("*/*"))
    assert left == [
        f"{each}/{file}"
        for each in (".new-precious", ".old-precious", "log-book-1", "precious")
        for file in ("data.db", name)
    ]


@pytest.mark.parametrize("died", [False, True])
def test_what_is_not_a_logs_own_outlives_it(tmp_path: Path, *, died: bool) -> None:
    journal = writer(tmp_path)
    fill(journal)
    assert journal.make_room(forced=True)
    journal.close()
    (journal.path / "notes").mkdir()
    (journal.path / "notes" / "mine.txt").write_bytes(b"x")
    directory = Directory(tmp_path)
    [log] = directory.logs()
    if died:
        log.collect(1 << 40)
        log.path.rename(tmp_path / f".old-{log.name}")
        directory.lock()
        directory.unlock()
    else:
        log.remove()
    kept = tmp_path / "aside" / log.name
    assert [each.relative_to(kept) for each in kept.rglob("*.*")] == [Path("notes/mine.txt")]
    assert not list(tmp_path.glob("*log-*"))


# Who is older.


def test_a_log_is_younger_than_all_before_it_whatever_the_clock_says(tmp_path: Path) -> None:
    future = tmp_path / "20991231T235959.000000-00000000"  # as they were named by the clock
    future.mkdir()
    (future / "lock").touch()
    made = []
    for _ in range(3):
        journal = writer(tmp_path)
        made.append(journal.path.name)
        journal.close()
    names = [log.name for log in Directory(tmp_path).logs()]
    assert names == [future.name, *made]


# The publisher's lock.


def test_one_publisher_per_directory(tmp_path: Path) -> None:
    first, second = Directory(tmp_path), Directory(tmp_path)
    first.lock()
    with pytest.raises(LockedError) as raised:
        second.lock()
    assert raised.value.pid == str(os.getpid())
    second.ask_for_lock()
    assert first.asked_for_lock()
    first.unlock()
    second.lock()
    assert not second.asked_for_lock()
    second.unlock()


def _ask(path: Path, asked: Event) -> None:
    Directory(path).ask_for_lock()
    asked.set()
    signal.pause()


def test_nobody_asks_for_the_lock_when_dead(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.lock()
    asked = SPAWN.Event()
    standby = SPAWN.Process(target=_ask, args=(tmp_path, asked))
    standby.start()
    asked.wait()
    assert directory.asked_for_lock()
    standby.kill()
    standby.join()
    assert not directory.asked_for_lock()
    (tmp_path / "publisher.waiting").touch()
    assert not directory.asked_for_lock()
    directory.unlock()


def _fork_and_let_go(path: Path) -> None:
    signal.alarm(60)
    journal, directory = writer(path), Directory(path)
    directory.lock()
    with directory.entrance(), directory.space():
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            signal.pause()
    try:
        directory.unlock()
        journal.close()
        another = Directory(path)
        another.lock()
        with another.entrance(), another.space():
            assert [log.finished() for log in another.logs()] == [True]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_was_forked_keeps_no_lock(tmp_path: Path) -> None:
    """As one does that an embedding program has forked, and that lives on."""
    server = SPAWN.Process(target=_fork_and_let_go, args=(tmp_path,))
    server.start()
    server.join()
    assert server.exitcode == 0


# What cannot be read.


@pytest.mark.parametrize("content", [b"", b'{"producer_id":"p","bu', b"\x00" * 40])
def test_a_torn_description_does_not_stop_anything(tmp_path: Path, content: bytes) -> None:
    journal = writer(tmp_path)
    journal.append(PROVENANCE, b"x\n", 1, 0)
    journal.close()
    (journal.path / "log.json").write_bytes(content)
    [log] = Directory(tmp_path).logs()
    assert log.buses(("kafka", "nats")) == ["kafka", "nats"]
    assert positions(log) == [0]
    writer(tmp_path, topic="silver").close()
    log.remove()
    [kept] = (tmp_path / "aside").iterdir()
    assert kept.read_bytes() == content


def test_a_lost_description_does_not_lose_the_log(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    journal.append(PROVENANCE, b"x\n", 1, 0)
    journal.close()
    (journal.path / "log.json").unlink()
    [log] = Directory(tmp_path).logs()
    assert positions(log) == [0]


@pytest.mark.parametrize("torn", [b"", b"\x95\x00"])
def test_a_torn_tombstone_costs_the_names_and_nothing_else(tmp_path: Path, torn: bytes) -> None:
    journal = writer(tmp_path)
    count = fill(journal)
    assert journal.make_room(forced=True)
    journal.close()
    tombstone_path(journal.path, 0).write_bytes(torn)
    [log] = Directory(tmp_path).logs()
    reader = Reader(log, 0, 0, 0)
    gap = reader.read()
    assert gap is not None
    assert (gap.messages, gap.first) == (gap.messages, None)
    rest = 0
    while reader.read() is not None:
        rest += 1
    assert gap.messages + rest == count
    assert log.skipped(0, 0) == 0
    log.collect(99)
    [kept] = (tmp_path / "aside").iterdir()
    assert kept.read_bytes() == torn


def test_a_torn_tombstone_at_the_end_is_told_of(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    journal.append(PROVENANCE, b"x\n", 1, 0)
    assert journal.make_room(forced=True)
    journal.close()
    segment_path(journal.path, 1).unlink()
    tombstone_path(journal.path, 0).write_bytes(b"")
    [log] = Directory(tmp_path).logs()
    reader = Reader(log, 0, 0, 0)
    gap = reader.read()
    assert not isinstance(gap, Entry)
    assert gap is not None
    assert gap.messages == 0
    assert reader.read() is None


@pytest.mark.parametrize("where", ["segment", "entry", "description"])
def test_another_version_is_neither_read_nor_cut_nor_skipped(tmp_path: Path, where: str) -> None:
    journal = writer(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        if where == "entry":
            patched.setattr("tardis_machine.journal.entry._VERSION", 2)
        count = fill(journal)
    journal.close()
    assert count
    path = segment_path(journal.path, 0)
    content = path.read_bytes()
    if where == "segment":
        content = content.replace(b"TMJRNL01", b"TMJRNL02", 1)
        path.write_bytes(content)
    if where == "description":
        description = journal.path / "log.json"
        description.write_bytes(description.read_bytes().replace(b'"version":1', b'"version":2'))
    [log] = Directory(tmp_path).logs()
    if where == "description":
        with pytest.raises(OtherVersionError, match="format 02"):
            log.check_version()
    else:
        with pytest.raises(OtherVersionError, match="format 02, this is 01"):
            positions(log)
    another = writer(tmp_path, topic="silver" if where != "entry" else "bronze")
    if where != "entry":
        another.make_room(forced=True)
    another.close()
    assert path.read_bytes() == content
    kept = log.set_aside()
    assert segment_path(kept, 0).read_bytes() == content
    assert log.name not in [each.name for each in Directory(tmp_path).logs()]


def test_only_the_owner_may_read_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = writer(path, fsync=0.01)
    fill(journal)
    journal.make_room(forced=True)
    [log] = Directory(path).logs()
    cursor = log.cursor("kafka")
    cursor.save()
    cursor.close()
    directory = Directory(path)
    directory.lock()
    directory.write_status(b"{}")
    directory.unlock()
    journal.close()
    for each in (path, *path.rglob("*")):
        expected = 0o700 if each.is_dir() else 0o600
        assert stat.S_IMODE(each.stat().st_mode) == expected, each


def test_what_is_kept_aside_may_be_moved_away_while_it_is_measured(tmp_path: Path) -> None:
    """The publisher measures it twice a second, and died of it."""
    kept = tmp_path / "aside" / "log"
    enough = threading.Event()

    def move_away() -> None:
        while not enough.is_set():
            kept.mkdir(parents=True)
            for number in range(20):
                (kept / f"{number}.seg").write_bytes(b"x")
            shutil.rmtree(kept)

    mover = threading.Thread(target=move_away)
    mover.start()
    try:
        sizes = {Directory(tmp_path).aside_bytes() for _ in range(2_000)}
    finally:
        enough.set()
        mover.join()
    assert max(sizes) <= 20
