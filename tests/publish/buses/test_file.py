"""Records as lines of JSON in a file."""

import base64
import fcntl
import json
import resource
import signal
from pathlib import Path

import pytest

from tardis_machine.config import ConfigError
from tardis_machine.publish.buses.errors import BusUnavailableError
from tardis_machine.publish.buses.file import FileConfig, FileEventBus
from tests.support.events import records


def test_each_record_is_a_line(tmp_path: Path):
    path = tmp_path / "new" / "events.ndjson"
    bus = FileEventBus(FileConfig(path=path, static_headers={"desk": "a"}))
    sent = records(bus, 20)

    assert bus.send(sent[:10], 1).delivered == 10
    assert bus.send(sent[10:], 1).delivered == 10
    bus.close()

    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [base64.b64decode(line["value"]) for line in found] == [r.value for r in sent]
    assert [line["key"] for line in found] == [r.key for r in sent]
    assert [line["headers"] for line in found] == [dict(r.headers) for r in sent]


@pytest.mark.parametrize("torn", [b'{"key":"bit', b"x" * 200_000])
def test_a_torn_line_is_cut_before_the_next_is_written(tmp_path: Path, torn: bytes):
    path = tmp_path / "events.ndjson"
    bus = FileEventBus(FileConfig(path=path))
    bus.send(records(bus, 3), 1)
    bus.close()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)

    bus.send(records(bus, 2, start=3), 1)
    bus.close()

    content = path.read_bytes()
    assert content.startswith(whole)
    assert len([json.loads(line) for line in content.splitlines()]) == 5


@pytest.mark.parametrize("how", ["deleted", "rotated"])
def test_a_file_that_is_gone_is_begun_anew(tmp_path: Path, how: str):
    """What is written to a file without a name is lost."""
    path = tmp_path / "events.ndjson"
    bus = FileEventBus(FileConfig(path=path))
    bus.send(records(bus, 3), 1)
    if how == "deleted":
        path.unlink()
    else:
        path.rename(tmp_path / "events.1")

    assert bus.send(records(bus, 2, start=3), 1).delivered == 2
    bus.close()

    assert len(path.read_bytes().splitlines()) == 2


def test_several_may_append_to_one_file(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    one, other = (FileEventBus(FileConfig(path=path)) for _ in range(2))
    sent = records(one, 30)

    for start, bus in ((0, one), (10, other), (20, one)):
        assert bus.send(sent[start : start + 10], 1).delivered == 10
    one.close()
    other.close()

    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [base64.b64decode(line["value"]) for line in found] == [r.value for r in sent]


def test_whoever_keeps_the_file_locked_is_waited_for(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    bus = FileEventBus(FileConfig(path=path))
    with path.open("wb") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        result = bus.send(records(bus, 2), 0.05)
    assert {str(failure.error) for failure in result.failures} == {
        f"file {path}: another process keeps it locked"
    }
    assert bus.send(records(bus, 2), 1).delivered == 2
    bus.close()


def test_a_file_that_cannot_be_written_is_trouble_that_passes(tmp_path: Path):
    (tmp_path / "taken").write_text("a file, not a folder")
    bus = FileEventBus(FileConfig(path=tmp_path / "taken" / "events.ndjson"))

    result = bus.send(records(bus, 2), 1)

    assert [failure.error.retriable for failure in result.failures] == [True, True]
    with pytest.raises(BusUnavailableError, match="taken"):
        bus.check()


def test_a_full_disk_leaves_no_half_written_batch():
    """/dev/full takes nothing and says so, as a full disk does."""
    bus = FileEventBus(FileConfig(path=Path("/dev/full")))

    result = bus.send(records(bus, 2), 1)
    bus.close()

    assert result.delivered == 0
    assert all(failure.error.retriable for failure in result.failures)


def test_what_was_written_of_a_failed_batch_is_cut_off(tmp_path: Path):
    path = tmp_path / "events.ndjson"
    bus = FileEventBus(FileConfig(path=path))
    sent = records(bus, 10)
    bus.send(sent[:2], 1)
    whole = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * len(whole), before[1]))
    try:
        result = bus.send(sent[2:], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    assert result.delivered == 0
    assert path.read_bytes() == whole
    assert bus.send(sent[2:], 1).delivered == 8
    bus.close()
    assert len(path.read_bytes().splitlines()) == 10


def test_a_folder_is_refused_at_start(tmp_path: Path):
    with pytest.raises(ConfigError, match="--file-path"):
        FileConfig(path=tmp_path).validate()


@pytest.mark.parametrize("path", ["/dev/null", "/dev"])
def test_what_is_no_file_is_refused(path: str):
    with pytest.raises(ConfigError, match="expected a file") as caught:
        FileConfig(path=Path(path)).validate()

    assert caught.value.flag == "--file-path"
