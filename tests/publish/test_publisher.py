"""The publisher over several logs: what it owes to whom, in which order, and what it survives."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.journal import Directory, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig, SendResult
from tardis_machine.publish.buses.file import FileConfig, FileEventBus
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.publisher import Publisher
from tardis_machine.publish.record import Record
from tests.buses.events import lines
from tests.publish.promises import assert_balanced, events_of
from tests.publish.test_outbox import written

Run = Callable[..., Publisher]


@pytest.fixture
def file(tmp_path: Path) -> FileConfig:
    return FileConfig(path=tmp_path / "events.ndjson")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def log(
    journal: Path, buses: Sequence[str], count: int, *, start: int = 0, batch: int = 10
) -> Writer:
    """Write a log; its writer lives until it is closed."""
    writer = Writer(journal, "p", buses, max_bytes=1 << 24, fsync=None)
    provenance = encode_provenance(Provenance("p", "r"))
    for first in range(start, start + count, batch):
        assert writer.append(provenance, lines(batch, start=first), batch, first)
    return writer


@pytest.fixture
def run(journal: Path) -> Iterator[Run]:
    """Publish until all that writers have left is delivered."""
    started: list[Publisher] = []

    def ran(buses: dict[str, BusConfig], **settings: Any) -> Publisher:
        publisher = Publisher(buses, Directory(journal), PublishConfig(**settings))
        publisher.start()
        started.append(publisher)
        assert publisher.drain(time.monotonic() + 60)
        return publisher

    yield ran
    for publisher in started:
        publisher.stop(time.monotonic() + 10)


def test_logs_are_delivered_oldest_first(journal: Path, run: Run, file: FileConfig) -> None:
    """A restart leaves a long log: what the next server wrote comes after all of it."""
    log(journal, ["file"], 3_000).close()
    log(journal, ["file"], 100, start=3_000).close()
    log(journal, ["file"], 100, start=3_100).close()
    run({"file": file})
    assert written(file) == [event.event_id for event in events_of(lines(3_200))]


def test_a_bus_added_later_has_dropped_nothing(
    journal: Path, run: Run, file: FileConfig, tmp_path: Path
) -> None:
    """Logs from before owe it nothing, though segments of theirs are gone already."""
    old = log(journal, ["file"], 100)
    old.segment_bytes = 1
    old.append(encode_provenance(Provenance("p", "r")), lines(1, start=100), 1, 100)
    old.close()
    [before] = Directory(journal).logs()
    before.collect(1)
    later = FileConfig(path=tmp_path / "later.ndjson")
    log(journal, ["file", "console"], 50, start=200).close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(BUSES, "console", _SecondFile)
        publisher = run({"file": file, "console": later})
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
    log(journal, ["file"], 500).close()
    publisher = Publisher({"file": file}, Directory(journal), PublishConfig(retry_max_s=1.0))
    publisher.start()
    healthy = [publisher.snapshot().buses["file"].statistics.healthy]
    deadline = time.monotonic() + 60
    while not publisher.drained() and time.monotonic() < deadline:
        publisher.tick()
        statistics = publisher.snapshot().buses["file"].statistics
        if statistics.healthy != healthy[-1]:
            healthy.append(statistics.healthy)
            if not statistics.healthy:
                assert statistics.last_error == "SystemExit: a thread that ends"
        time.sleep(0.005)
    publisher.stop(time.monotonic() + 10)
    assert healthy[:2] == [True, False]
    assert healthy[-1]
    assert _Dying.deaths == 0
    assert written(file) == [event.event_id for event in events_of(lines(500))]
