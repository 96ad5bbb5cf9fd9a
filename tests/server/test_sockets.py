"""Both ports or none."""

import errno
import socket
import sys

import pytest

from tardis_machine.server.sockets import LAST_PORT, PortTakenError, listen, port_of
from tests.server.conftest import free_ports


def test_the_http_port_is_released_when_the_websocket_port_is_taken() -> None:
    port = free_ports()
    with socket.create_server(("127.0.0.1", port + 1)), pytest.raises(PortTakenError) as caught:
        listen("127.0.0.1", port)
    assert caught.value.port == port + 1
    socket.create_server(("127.0.0.1", port)).close()


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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_port_0_listens_on_two_adjacent_ports_of_every_address(host: str) -> None:
    sockets = listen(host, 0)
    try:
        ports = [each.getsockname()[1] for each in (*sockets.http, *sockets.websocket)]
        http, websocket = ports[: len(sockets.http)], ports[len(sockets.http) :]
        assert set(http) == {port_of(sockets.http)}
        assert set(websocket) == {port_of(sockets.http) + 1}
    finally:
        sockets.close()


def test_port_0_passes_over_a_port_whose_next_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As systems choose ports: one after the other, taken ones among them."""
    taken, free = free_ports(), free_ports()
    chosen = iter((taken, LAST_PORT, free))
    bind = socket.socket.bind

    def choosing(self: socket.socket, address: tuple[str, int]) -> None:
        bind(self, (address[0], address[1] or next(chosen)))

    monkeypatch.setattr(socket.socket, "bind", choosing)
    with socket.create_server(("127.0.0.1", taken + 1)):
        sockets = listen("127.0.0.1", 0)
    assert port_of(sockets.http) == free
    sockets.close()


def test_port_0_gives_up_where_nothing_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refusing(_: socket.socket, address: tuple[str, int]) -> None:
        tried.append(address)
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket.socket, "bind", refusing)
    with pytest.raises(PortTakenError, match=r"127\.0\.0\.1:0: Address already in use"):
        listen("127.0.0.1", 0)
    assert 1 < len(tried) < 1000


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
