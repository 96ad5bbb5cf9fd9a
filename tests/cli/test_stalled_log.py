"""A server whose standard error is a pipe that is not read."""

import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cli.requests import get, replay
from tests.support.command import COMMAND, environment
from tests.support.ports import free_port_pair

_REFUSED = 4000
"""At half a kilobyte a line, twice as many as fit into pipe and queue."""


@contextmanager
def unread(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_server(port: int) -> None:
    while True:
        try:
            get(port, "/health-check")
        except OSError:
            time.sleep(0.05)
        else:
            return


def refuse(port: int, count: int) -> None:
    """Send requests for another host; the server logs each."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        for _ in range(count):
            client.request("GET", f"/{'x' * 200}", headers={"Host": "x" * 200})
            with client.getresponse() as response:
                assert response.status == 403
                response.read()


@pytest.mark.parametrize("mode", [(), ("--cluster-mode",)])
def test_server_goes_on_and_stops_although_its_log_is_not_read(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    port = free_port_pair()
    events = tmp_path / "events"
    journal = tmp_path / "journal"
    with unread(
        *("--sample-data", "--port", str(port), *mode),
        *("--file-path", str(events), "--journal-dir", str(journal)),
    ) as process:
        wait_for_server(port)
        refuse(port, _REFUSED)
        count = len(replay(port).splitlines())
        metrics = get(port, "/metrics").decode()
        lost = re.findall(r"^tardis_machine_log_dropped_total\S* (\S+)$", metrics, re.MULTILINE)
        assert sum(map(float, lost)) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        assert len(events.read_bytes().splitlines()) == count
        assert process.stderr is not None
        assert b"browser refused" in process.stderr.read()


def test_lines_before_a_crash_are_written() -> None:
    taken = free_port_pair()
    with unread("--sample-data", "--port", str(taken)):
        wait_for_server(taken)
        with unread("--sample-data", "--port", str(taken), "--log-format", "json") as second:
            assert second.wait(timeout=120) == 1
            assert second.stderr is not None
            warning, error = second.stderr.read().decode().splitlines()
    assert "synthetic" in json.loads(warning)["event"]
    assert error.startswith("tardis-machine: cannot listen")
