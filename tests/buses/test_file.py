"""Records as lines of JSON in a file."""

import base64
import json
from pathlib import Path

import pytest

from tardis_machine.config import ConfigError
from tardis_machine.publish.buses.errors import BusUnavailableError
from tardis_machine.publish.buses.file import FileConfig, FileEventBus
from tests.buses.events import records


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


def test_a_folder_is_refused_at_start(tmp_path: Path):
    with pytest.raises(ConfigError, match="--file-path"):
        FileConfig(path=tmp_path).validate()
