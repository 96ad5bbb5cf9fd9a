"""Two processes that share a cache too small for both: each evicts slices the other has to read."""

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec

from tardis_machine.history import History
from tardis_machine.history.cache import MINUTE
from tests.history.slices import FILTERS, START, expected
from tests.support.servers.tardis_api import TardisApi

MINUTES = 60
SCRIPT = f"""
import hashlib, json, logging, sys, time
from collections import Counter
from tardis_machine.history.filters import Filter
from tardis_machine.history import History

events = Counter()

class Count(logging.Handler):
    def emit(self, record):
        events[record.getMessage()] += 1

logging.getLogger().setLevel(logging.INFO)
logging.getLogger().addHandler(Count())
endpoint, directory, max_bytes, start = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])

def read():
    end = start + {MINUTES} * {MINUTE}
    return history.read("ftx", [Filter("trades", ("BTC/USD",))], start, end)

with History(endpoint=endpoint, cache_dir=directory, cache_max_bytes=max_bytes) as history:
    reader = read()
    digests = [hashlib.sha256(next(reader))]
    while history.cache.pinned < 8:
        time.sleep(0.005)
    print("ready", flush=True)
    sys.stdin.readline()
    for piece in reader:
        digests[0].update(piece)
    print("read", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        digests.append(hashlib.sha256(b"".join(read())))
    pinned = history.cache.pinned
print(json.dumps(dict(digests=[each.hexdigest() for each in digests], pinned=pinned, **events)))
"""


class Replayer:
    """A process that replays an hour, and goes on to its next step when it is told to."""

    def __init__(self, api: TardisApi, directory: Path, max_bytes: int, hour: int) -> None:
        start = (START + hour * 60) * MINUTE
        command = [sys.executable, "-c", SCRIPT, api.endpoint, directory, max_bytes, start]
        self._process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def wait(self, step: str) -> None:
        assert self._stdout.readline().strip() == step

    def go_on(self) -> None:
        print(file=self._stdin, flush=True)

    def report(self) -> dict[str, object]:
        text = self._process.communicate()[0]
        assert self._process.returncode == 0
        report: dict[str, object] = msgspec.json.decode(text)
        return report


def test_processes_that_evict_each_others_slices_read_every_line_and_report_none_corrupt(
    tardis_api: TardisApi, tmp_path: Path
) -> None:
    with History(endpoint=tardis_api.endpoint, cache_dir=tmp_path / "alone") as history:
        b"".join(history.read("ftx", FILTERS, START * MINUTE, (START + MINUTES) * MINUTE))
    largest = max(path.stat().st_size for path in tmp_path.rglob("*.zst"))
    shared = tmp_path / "shared"
    one = Replayer(tardis_api, shared, 12 * largest, hour=0)
    one.wait("ready")
    other = Replayer(tardis_api, shared, 12 * largest, hour=1)
    other.wait("ready")  # its read-ahead evicted slices that the first was about to read
    for each in (one, other):
        each.go_on()
        each.wait("read")
    for each in (one, other):
        each.go_on()  # now both at once
    for hour, each in enumerate((one, other)):
        report = each.report()
        whole = hashlib.sha256(expected(60 * hour, 60 * hour + MINUTES)).hexdigest()
        assert report["digests"] == [whole] * 4
        assert report["slice evicted before it was read, fetching it again"]
        assert "slice corrupt, fetching it again" not in report
        assert report["pinned"] == 0
    assert sum(path.stat().st_size for path in shared.rglob("*.zst")) <= 12 * largest
