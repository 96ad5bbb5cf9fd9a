"""Clients that vanish in the middle: frozen, or killed without a word."""

import signal
import subprocess
import sys

import pytest

from tests.clients.door import ENDLESS, Open
from tests.support.waiting import wait_until

# Slow, so as not to be done before it is over.
HTTP = """
import sys, time, urllib.request
response = urllib.request.urlopen(sys.argv[1])
while response.read(10_000): time.sleep(0.05)
"""
WS = """
import sys, time, websocket
socket = websocket.create_connection(sys.argv[1])
while socket.recv(): time.sleep(0.05)
"""


@pytest.mark.parametrize("over", ["http", "ws"])
@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGSTOP, "stalled"), (signal.SIGKILL, "disconnected")]
)
def test_the_server_lets_go(opened: Open, over: str, number: signal.Signals, outcome: str) -> None:
    door = opened("--sample-data", "--stall-timeout-s", "1")
    path = "/replay-normalized" if over == "http" else "/ws-replay-normalized"
    url = (door.http if over == "http" else door.ws)(path, ENDLESS)
    idle = door.metric("process_open_fds")
    client = subprocess.Popen([sys.executable, "-c", HTTP if over == "http" else WS, url])
    try:
        wait_until(lambda: door.metric("tardis_machine_messages_total") > 0, "nothing comes")
        client.send_signal(number)
        wait_until(lambda: door.ended(outcome) == 1, f"it has not {outcome}")
        assert door.metric("tardis_machine_active_responses") == 0
        wait_until(lambda: door.metric("process_open_fds") <= idle, "files stay open")
    finally:
        client.kill()
        client.wait()
    limited = door.metric("tardis_machine_limited_total", limit="stall_timeout_s")
    assert limited == (outcome == "stalled")
    assert "Traceback" not in door.log.read_text()
