"""The publisher over several logs: what it owes to whom, in which order, and what it survives."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pytest

from tardis_machine.config import to_dict
from tardis_machine.journal import Cursor, Directory, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.segment import segment_path
from tardis_machine.publish.accounts import Snapshot, Statistics
from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig, SendResult
from tardis_machine.publish.buses.file import FileConfig, FileEventBus
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.lanes import Lanes
from tardis_machine.publish.process import Drain, Settings
from tardis_machine.publish.publisher import Publisher
from tardis_machine.publish.record import Record
from tests.publish.promises import assert_balanced, events_of, written
from tests.support.command import Launch, Run
from tests.support.events import lines
from tests.support.waiting import wait_until

Deliver = Callable[..., Publisher]


class Orphan(NamedTuple):
    """A publisher's process, and what it says."""

    process: subprocess.Popen[bytes]
    reports: BinaryIO

    def report(self) -> Snapshot:
        return msgspec.json.decode(self.reports.readline(), type=Snapshot)


@pytest.fixture
def file(tmp_path: Path) -> FileConfig:
    return FileConfig(path=tmp_path / "events.ndjson")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def log(
    journal: Path,
    buses: dict[str, BusConfig],
    count: int,
    *,
    start: int = 0,
    batch: int = 10,
    segment_bytes: int = 1 << 20,
) -> Writer:
    """Write a log; its writer lives until it is closed."""
    writer = Writer(
        journal,
        "p",
        list(buses),
        destinations=destinations(buses),
        max_bytes=1 << 24,
        fsync=None,
        segment_bytes=segment_bytes,
    )
    provenance = encode_provenance(Provenance("p", "r"))
    for first in range(start, start + count, batch):
        assert writer.append(provenance, lines(batch, start=first), batch, first)
    return writer


@pytest.fixture
def deliver(journal: Path) -> Iterator[Deliver]:
    """Publish until all that writers have left is delivered."""
    started: list[Publisher] = []

    def delivered(buses: dict[str, BusConfig], **settings: Any) -> Publisher:
        publisher = Publisher(buses, Directory(journal), PublishConfig(**settings))
        publisher.start()
        started.append(publisher)
        assert publisher.drain(time.monotonic() + 60)
        return publisher

    yield delivered
    for publisher in started:
        publisher.stop(time.monotonic() + 10)


@pytest.fixture
def orphan(journal: Path, file: FileConfig) -> Iterator[Callable[..., Orphan]]:
    """Start the publisher of a server that has closed its end of the pipe, as one killed does.

    One that tells it anything lives.
    """
    started: list[Orphan] = []

    def start(writer: Writer, told: bytes = b"", **publish: Any) -> Orphan:
        config = to_dict(PublishConfig(**publish))
        settings = Settings({"file": to_dict(file)}, config, str(journal), writer.path.name)
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "tardis_machine.publish.process", str(writing)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(writing,))
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(settings) + b"\n" + told)
        process.stdin.flush()
        if not told:
            process.stdin.close()
        started.append(Orphan(process, open(reading, "rb")))  # noqa: PTH123, SIM115 - a pipe
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()
        each.reports.close()


def test_logs_are_delivered_oldest_first(journal: Path, deliver: Deliver, file: FileConfig) -> None:
    """A restart leaves a long log: what the next server wrote comes after all of it."""
    log(journal, {"file": file}, 3_000).close()
    log(journal, {"file": file}, 100, start=3_000).close()
    log(journal, {"file": file}, 100, start=3_100).close()
    deliver({"file": file})
    assert written(file) == [event.event_id for event in events_of(lines(3_200))]


def test_a_publisher_does_not_leave_before_its_server_has_let_go_of_its_log(
    journal: Path, file: FileConfig, orphan: Callable[..., Orphan]
) -> None:
    """A server that is killed closes its end of the pipe first."""
    writer = log(journal, {"file": file}, 100)
    publisher = orphan(writer)
    for _ in range(3):
        assert not publisher.report().final
    provenance = encode_provenance(Provenance("p", "r"))
    assert writer.append(provenance, lines(10, start=100), 10, 100)
    writer.close()
    assert publisher.process.wait(timeout=60) == 0
    assert written(file) == [event.event_id for event in events_of(lines(110))]
    assert not Directory(journal).logs()


@pytest.mark.parametrize("kept", [False, True])
def test_a_publisher_that_is_told_to_stop_waits_for_the_log_as_long_as_it_drains(
    journal: Path, file: FileConfig, orphan: Callable[..., Orphan], *, kept: bool
) -> None:
    writer = log(journal, {"file": file}, 100)
    publisher = orphan(writer, drain_timeout_s=5.0 if kept else 60.0)
    assert not publisher.report().final
    publisher.process.terminate()
    for _ in range(2):
        assert not publisher.report().final
    if not kept:
        writer.close()
    assert publisher.process.wait(timeout=30) == 0
    assert bool(Directory(journal).logs()) == kept
    writer.close()


def test_a_publisher_without_its_server_makes_way_though_somebody_keeps_its_log(
    journal: Path, file: FileConfig, orphan: Callable[..., Orphan]
) -> None:
    """As a process does that was forked from the server's, and outlives it."""
    writer = log(journal, {"file": file}, 100)
    publisher = orphan(writer)
    assert not publisher.report().final
    next_one = Directory(journal)
    next_one.ask_for_lock()
    publisher.process.wait(timeout=60)
    next_one.lock()
    next_one.unlock()
    writer.close()


def test_a_server_that_drains_learns_of_its_log_though_somebody_keeps_it(
    journal: Path, file: FileConfig, orphan: Callable[..., Orphan]
) -> None:
    writer = log(journal, {"file": file}, 100)
    publisher = orphan(writer, told=msgspec.json.encode(Drain(60.0)) + b"\n")
    while not (report := publisher.report()).final:
        pass
    assert_balanced(report.buses["file"].ended, journalled=100, delivered=100)
    assert publisher.process.wait(timeout=60) == 0
    assert len(written(file)) == 100
    writer.close()


def test_a_bus_added_later_has_dropped_nothing(
    journal: Path, deliver: Deliver, file: FileConfig, tmp_path: Path
) -> None:
    """Logs from before owe it nothing, though segments of theirs are gone already."""
    log(journal, {"file": file}, 100, segment_bytes=1_000).close()
    [before] = Directory(journal).logs()
    before.collect(1)
    later = FileConfig(path=tmp_path / "later.ndjson")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(BUSES, "console", _SecondFile)
        log(journal, {"file": file, "console": later}, 50, start=200).close()
        publisher = deliver({"file": file, "console": later})
    account = publisher.snapshot().buses["console"].account
    assert_balanced(account, journalled=50, delivered=50)
    assert written(later) == [event.event_id for event in events_of(lines(50, start=200))]


class _SecondFile(FileEventBus):
    name = "console"


class _Dying(FileEventBus):
    """Ends the sender's thread with what no bus should raise, so many times."""

    deaths = 0

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        if _Dying.deaths:
            _Dying.deaths -= 1
            raise SystemExit("a thread that ends")
        return super().send(records, timeout_s)


def test_a_delivery_that_dies_is_unhealthy_and_begins_anew(
    journal: Path, file: FileConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUSES, "file", _Dying)
    _Dying.deaths = 2
    log(journal, {"file": file}, 500).close()
    publisher = Publisher({"file": file}, Directory(journal), PublishConfig(retry_max_s=1.0))
    publisher.start()
    healthy = [publisher.snapshot().buses["file"].statistics.healthy]
    deadline = time.monotonic() + 60
    while not publisher.settle() and time.monotonic() < deadline:
        statistics = publisher.snapshot().buses["file"].statistics
        if statistics.healthy != healthy[-1]:
            healthy.append(statistics.healthy)
            if not statistics.healthy:
                assert statistics.last_error == "SystemExit: a thread that ends"
        time.sleep(0.005)
    publisher.stop(time.monotonic() + 10)
    assert healthy[:2] == [True, False]
    assert publisher.snapshot().buses["file"].statistics.healthy
    assert _Dying.deaths == 0
    assert written(file) == [event.event_id for event in events_of(lines(500))]


class _Held(FileEventBus):
    """Connects at once, then dies in its first calls, and waits in each later one for leave."""

    calls = 0
    leave = threading.Event()

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        _Held.calls += 1
        if _Held.calls <= 2:
            raise SystemExit("x" * (2 << 20) + "\udcff")
        assert _Held.leave.wait(60)
        return super().send(records, timeout_s)


def test_bus_whose_delivery_died_recovers_with_an_acknowledgement_not_a_connection(
    journal: Path, file: FileConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUSES, "file", _Held)
    _Held.calls, _Held.leave = 0, threading.Event()
    log(journal, {"file": file}, 500).close()
    publisher = Publisher({"file": file}, Directory(journal), PublishConfig(retry_max_s=1.0))
    publisher.start()
    try:
        wait_until(lambda: publisher.settle() or _Held.calls == 3, "the third delivery sends")
        snapshot = publisher.snapshot()
        statistics = snapshot.buses["file"].statistics
        assert (statistics.healthy, statistics.deaths) == (False, 2)
        assert statistics.last_error.startswith("SystemExit: xxx")
        assert len(msgspec.json.encode(snapshot)) < 10_000
        _Held.leave.set()
        wait_until(publisher.settle, "everything is delivered")
        statistics = publisher.snapshot().buses["file"].statistics
        assert (statistics.healthy, statistics.deaths) == (True, 2)
        assert statistics.last_error == ""
    finally:
        publisher.stop(time.monotonic() + 10)


def test_success_that_a_dying_delivery_still_notes_does_not_make_its_bus_healthy() -> None:
    statistics = Statistics()
    lanes = Lanes("file", PublishConfig(), statistics)
    lanes.die("KeyError: 1")
    lanes.succeed(lanes.main)
    lanes.fail(lanes.main, "too fast", progress=True)
    assert not statistics.healthy


def test_snapshot_does_not_grow_with_the_logs_of_servers_that_are_gone(
    journal: Path, file: FileConfig
) -> None:
    for _ in range(20):
        log(journal, {"file": file}, 10).close()
    alive = log(journal, {"file": file}, 10)
    publisher = Publisher({"file": file}, Directory(journal), PublishConfig())
    bus = publisher.snapshot().buses["file"]
    alive.close()
    assert bus.counted == {alive.path.name: 10}
    assert bus.account.journalled == 210


def test_a_log_of_another_version_is_kept_aside_and_the_rest_delivered(
    journal: Path, deliver: Deliver, file: FileConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """After a rollback: what the newer version wrote waits for it, untouched."""
    newer = log(journal, {"file": file}, 100)
    newer.close()
    path = segment_path(newer.path, 0)
    content = path.read_bytes().replace(b"TMJRNL01", b"TMJRNL02", 1)
    path.write_bytes(content)
    log(journal, {"file": file}, 50, start=100).close()
    publisher = deliver({"file": file})
    assert written(file) == [event.event_id for event in events_of(lines(50, start=100))]
    kept = journal / "aside" / newer.path.name
    assert segment_path(kept, 0).read_bytes() == content
    assert not Directory(journal).logs()
    snapshot = publisher.snapshot()
    assert snapshot.aside_bytes > len(content)
    assert_balanced(snapshot.buses["file"].account, journalled=50, delivered=50)
    assert any("log kept aside" in record.message for record in caplog.records)


def of_another_version(journal: Path, file: FileConfig) -> Path:
    """Write a log that a newer version has left."""
    newer = log(journal, {"file": file}, 100)
    newer.close()
    path = segment_path(newer.path, 0)
    path.write_bytes(path.read_bytes().replace(b"TMJRNL01", b"TMJRNL02", 1))
    return newer.path


def test_a_copy_of_what_is_kept_aside_is_kept_beside_it(
    journal: Path, deliver: Deliver, file: FileConfig
) -> None:
    """Put back for the version that wrote it, but copied; then this version starts again."""
    newer = of_another_version(journal, file)
    content = segment_path(newer, 0).read_bytes()
    deliver({"file": file}).stop(time.monotonic() + 10)
    for number in (2, 3):
        shutil.copytree(journal / "aside" / newer.name, newer)
        log(journal, {"file": file}, 50).close()
        deliver({"file": file}).stop(time.monotonic() + 10)
        assert not Directory(journal).logs()
        assert segment_path(journal / "aside" / f"{newer.name}.{number}", 0).read_bytes() == content
    assert len(written(file)) == 100
    (journal / "aside" / f"{newer.name}.2").rename(journal / f"{newer.name}.2")
    assert [each.name for each in Directory(journal).logs()] == [f"{newer.name}.2"]


def test_a_log_that_cannot_be_put_away_stops_no_bus(
    journal: Path, deliver: Deliver, file: FileConfig, caplog: pytest.LogCaptureFixture
) -> None:
    newer = of_another_version(journal, file)
    (journal / "aside").touch()  # where there should be a folder
    log(journal, {"file": file}, 50, start=100).close()
    publisher = deliver({"file": file})
    for _ in range(3):
        publisher.tick()
    assert written(file) == [event.event_id for event in events_of(lines(50, start=100))]
    assert [each.name for each in Directory(journal).logs()] == [newer.name]
    assert sum("cannot be dealt with" in record.message for record in caplog.records) == 1
    assert_balanced(publisher.snapshot().buses["file"].account, journalled=50, delivered=50)
    (journal / "aside").unlink()
    publisher.tick()
    assert not Directory(journal).logs()
    assert_balanced(publisher.snapshot().buses["file"].account, journalled=50, delivered=50)


def test_a_log_is_delivered_up_to_what_another_version_wrote(
    journal: Path, deliver: Deliver, file: FileConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = log(journal, {"file": file}, 100)
    with monkeypatch.context() as patched:
        patched.setattr("tardis_machine.journal.entry._VERSION", 2)
        assert mixed.append(encode_provenance(Provenance("p", "r")), lines(10, start=100), 10, 100)
    mixed.close()
    content = segment_path(mixed.path, 0).read_bytes()
    publisher = deliver({"file": file})
    assert written(file) == [event.event_id for event in events_of(lines(100))]
    kept = journal / "aside" / mixed.path.name
    assert segment_path(kept, 0).read_bytes() == content
    account = publisher.snapshot().buses["file"].account
    assert_balanced(account, journalled=110, delivered=100, dropped=10)


def test_a_log_that_is_delivered_while_nobody_looks_is_removed_all_the_same(
    journal: Path, deliver: Deliver, file: FileConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Publisher.tick

    def look_and_tarry(publisher: Publisher) -> None:
        look(publisher)
        time.sleep(0.3)  # long enough for all to be delivered just after the look

    monkeypatch.setattr(Publisher, "tick", look_and_tarry)
    log(journal, {"file": file}, 100).close()
    deliver({"file": file})
    assert not Directory(journal).logs()


@pytest.mark.parametrize("writable", [True, False])
def test_a_log_is_booked_as_delivered_however_its_cursor_fares(
    journal: Path,
    deliver: Deliver,
    file: FileConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    writable: bool,
) -> None:
    """It is looked at many times while its last cursor is on the way to a slow disk."""
    save = Cursor.save

    def save_slowly(cursor: Cursor) -> None:
        time.sleep(0.3)
        if not writable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        save(cursor)

    monkeypatch.setattr(Cursor, "save", save_slowly)
    log(journal, {"file": file}, 100).close()
    publisher = deliver({"file": file})
    assert not Directory(journal).logs()
    snapshot = publisher.snapshot()
    assert_balanced(snapshot.buses["file"].account, journalled=100, delivered=100)
    said = "" if writable else "the cursor cannot be written: [Errno 5] Input/output error"
    assert snapshot.buses["file"].statistics.last_error == said


@pytest.mark.parametrize("torn", ["log.json", "000000000000.skip"])
def test_a_torn_file_stops_no_bus(
    journal: Path, deliver: Deliver, file: FileConfig, torn: str
) -> None:
    old = log(journal, {"file": file}, 200, segment_bytes=4_000)
    assert old.make_room(forced=True)
    old.close()
    (old.path / torn).write_bytes(b"")
    log(journal, {"file": file}, 50, start=200).close()
    publisher = deliver({"file": file})
    account = publisher.snapshot().buses["file"].account
    assert 0 < account.dropped < 200
    assert_balanced(
        account, journalled=250, delivered=250 - account.dropped, dropped=account.dropped
    )
    told = 1  # the announcement of what was skipped
    assert len(written(file)) == account.delivered + told
    assert not Directory(journal).logs()


def test_a_log_of_another_configuration_is_left_alone(
    journal: Path, deliver: Deliver, file: FileConfig, tmp_path: Path
) -> None:
    """As an orphaned publisher meets it when another server has begun with the empty journal."""
    elsewhere = FileConfig(path=tmp_path / "elsewhere.ndjson")
    other = log(journal, {"file": elsewhere}, 100)
    other.close()
    publisher = deliver({"file": file})
    assert not file.path or not file.path.exists() or written(file) == []
    assert [each.name for each in Directory(journal).logs()] == [other.path.name]
    assert_balanced(publisher.snapshot().buses["file"].account, journalled=0)
    publisher.stop(time.monotonic() + 10)
    deliver({"file": elsewhere})
    assert written(elsewhere) == [event.event_id for event in events_of(lines(100))]


def test_what_the_version_before_has_left_is_delivered(
    journal: Path, deliver: Deliver, file: FileConfig
) -> None:
    """Its logs were named by the clock, and did not say where a bus goes."""
    old = log(journal, {"file": file}, 100)
    old.close()
    old.path.rename(journal / "20241115T173653.000000-0a1b2c3d")
    described = b'{"producer_id":"p","buses":["file"],"pid":1,"version":1}'
    (journal / "20241115T173653.000000-0a1b2c3d" / "log.json").write_bytes(described)
    log(journal, {"file": file}, 100, start=100).close()
    deliver({"file": file})
    assert written(file) == [event.event_id for event in events_of(lines(200))]
    assert not Directory(journal).logs()


def test_the_command_refuses_another_destination_until_it_is_told_to_adopt(
    journal: Path, file: FileConfig, tmp_path: Path, run: Run
) -> None:
    log(journal, {"file": file}, 100).close()
    elsewhere = FileConfig(path=tmp_path / "elsewhere.ndjson")
    flags = ("publish", "--journal-dir", str(journal), "--file-path", str(elsewhere.path))
    refused = run(*flags)
    assert refused.returncode == 1
    assert f"100 messages for file, written for file (path {file.path})" in refused.stderr
    assert run(*flags, "--journal-adopt").returncode == 0
    assert written(elsewhere) == [event.event_id for event in events_of(lines(100))]
    assert not Directory(journal).logs()


def test_what_waits_is_neither_filtered_nor_sent_by_another_allow_list(
    journal: Path, file: FileConfig, run: Run
) -> None:
    """What was accepted stays so, and what nobody wanted stays away, until somebody decides."""
    flags = ("publish", "--journal-dir", str(journal), "--file-path", str(file.path))
    only = replace(file, include_payloads=("trade",))
    trades = [event.event_id for event in events_of(lines(100)) if event.payload_case == "trade"]
    assert 0 < len(trades) < 100
    log(journal, {"file": only}, 100).close()
    refused = run(*flags)
    assert refused.returncode == 1
    assert f"written for file (path {file.path}, only trade)" in refused.stderr
    assert run(*flags, "--file-include-payloads", "trade").returncode == 0
    assert written(file) == trades
    log(journal, {"file": file}, 100).close()
    assert run(*flags, "--file-include-payloads", "trade").returncode == 1
    taken = run(*flags, "--file-include-payloads", "trade", "--journal-adopt")
    assert taken.returncode == 0
    assert f"filtered={100 - len(trades)} accepted={len(trades)}" in taken.stderr
    assert written(file) == trades * 2


def test_the_command_may_drain_one_bus_and_leave_the_others(
    journal: Path, file: FileConfig, run: Run
) -> None:
    nats = NatsConfig(servers=("nats://127.0.0.1:1",), subject="x")
    log(journal, {"file": file, "nats": nats}, 100, segment_bytes=5_000).close()
    [written_before] = Directory(journal).logs()
    segments = written_before.listing().segments
    assert len(segments) > 2
    done = run("publish", "--journal-dir", str(journal), "--file-path", str(file.path))
    assert done.returncode == 1
    assert "drained bus=file journalled=100 filtered=0 accepted=100 delivered=100" in done.stderr
    assert "drained bus=nats journalled=100 filtered=0 accepted=100 delivered=0" in done.stderr
    assert len(written(file)) == 100
    [kept] = Directory(journal).logs()
    assert kept.listing().segments == segments
    assert kept.pending("nats") == 100


def test_a_server_without_buses_says_what_waits_for_those_it_had(
    journal: Path, file: FileConfig, launch: Launch
) -> None:
    """It was started without a variable, perhaps, and would publish nothing and never say so."""
    log(journal, {"file": file}, 100).close()
    flags = ("--sample-data", "--port", "0")
    server = launch(*flags, "--journal-dir", str(journal))
    said = server.wait_for("messages wait in the journal")
    assert "bus=file messages=100" in said
    server.wait_for("listening")
    assert server.stop(signal.SIGTERM) == 0
    [kept] = Directory(journal).logs()
    assert kept.pending("file") == 100


def test_the_command_takes_nothing_from_a_server_that_lives(
    journal: Path, file: FileConfig, tmp_path: Path, run: Run
) -> None:
    living = log(journal, {"file": file}, 100)
    elsewhere = str(tmp_path / "elsewhere.ndjson")
    flags = ("publish", "--journal-dir", str(journal), "--file-path", elsewhere)
    done = run(*flags, "--journal-adopt")
    assert done.returncode == 1
    assert f"in use by process {os.getpid()}" in done.stderr
    [untouched] = Directory(journal).logs()
    assert untouched.destination("file") == f"path {file.path}"
    living.close()
