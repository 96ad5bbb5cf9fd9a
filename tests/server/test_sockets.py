"""Both ports or none."""

import socket
import sys

import pytest

from tardis_machine.server.sockets import PortTakenError, listen
from tests.server.conftest import free_ports


def test_the_http_port_is_released_when_the_websocket_port_is_taken() -> None:
    port = free_ports()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        with pytest.raises(PortTakenError) as caught:
            listen("127.0.0.1", port)
    assert caught.value.port == port + 1
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_a_name_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(PortTakenError, match=r"nowhere\.invalid"):
        listen("nowhere.invalid", 8000)


def test_both_listen() -> None:
    port = free_ports()
    sockets = listen("127.0.0.1", port)
    try:
        for number in (port, port + 1):
            socket.create_connection(("127.0.0.1", number), timeout=5).close()
    finally:
        sockets.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others do not let a socket choose")
def test_what_a_client_on_this_machine_is_sent_is_not_paced() -> None:
    port = free_ports()
    sockets = listen("127.0.0.1", port)
    try:
        for listener in (*sockets.http, *sockets.websocket):
            listener.setblocking(True)
            with socket.create_connection(listener.getsockname(), timeout=5):
                accepted, _ = listener.accept()
                with accepted:
                    chosen = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert chosen.rstrip(b"\0") == b"reno"
    finally:
        sockets.close()
