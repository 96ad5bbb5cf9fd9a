"""Both ports or none."""

import errno
import logging
import socket
import sys

import pytest

from tardis_machine.server.sockets import LAST_PORT, PortTakenError, listen, port_of
from tests.support.ports import free_port_pair, needs_ipv6


def test_the_http_port_is_released_when_the_websocket_port_is_taken() -> None:
    port = free_port_pair()
    with socket.create_server(("127.0.0.1", port + 1)), pytest.raises(PortTakenError) as caught:
        listen("127.0.0.1", port)
    assert caught.value.port == port + 1
    socket.create_server(("127.0.0.1", port)).close()


def test_a_name_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(PortTakenError, match=r"nowhere\.invalid"):
        listen("nowhere.invalid", 8000)


def test_both_listen() -> None:
    port = free_port_pair()
    sockets = listen("127.0.0.1", port)
    try:
        for number in (port, port + 1):
            socket.create_connection(("127.0.0.1", number), timeout=5).close()
    finally:
        sockets.close()


@pytest.mark.parametrize("host", [None, "127.0.0.1", "localhost", "0.0.0.0"])
def test_port_0_listens_on_two_adjacent_ports_of_every_address(host: str | None) -> None:
    sockets = listen(host, 0)
    try:
        ports = [each.getsockname()[1] for each in (*sockets.http, *sockets.websocket)]
        http, websocket = ports[: len(sockets.http)], ports[len(sockets.http) :]
        assert set(http) == {port_of(sockets.http)}
        assert set(websocket) == {port_of(sockets.http) + 1}
    finally:
        sockets.close()


def hosts_of(listening: tuple[socket.socket, ...]) -> list[str]:
    return [each.getsockname()[0] for each in listening]


@needs_ipv6
def test_without_a_host_both_loopback_addresses_listen() -> None:
    both = listen(None, 0)
    try:
        assert hosts_of(both.http) == hosts_of(both.websocket) == ["127.0.0.1", "::1"]
    finally:
        both.close()


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_host_that_is_named_listens_alone(host: str) -> None:
    sockets = listen(host, 0)
    try:
        assert hosts_of(sockets.http) == hosts_of(sockets.websocket) == [host]
    finally:
        sockets.close()


@needs_ipv6
@pytest.mark.parametrize("offset", [0, 1])
def test_port_taken_on_ipv6_leaves_both_to_ipv4(
    offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port_pair()
    with (
        socket.create_server(("::1", port + offset), family=socket.AF_INET6),
        caplog.at_level(logging.INFO, "tardis_machine.server.sockets"),
    ):
        sockets = listen(None, port)
    try:
        assert hosts_of(sockets.http) == hosts_of(sockets.websocket) == ["127.0.0.1"]
    finally:
        sockets.close()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert f"[::1]:{port + offset}: Address already in use" in record.__dict__["error"]
    # The other port of the pair is given back.
    socket.create_server(("::1", port + 1 - offset), family=socket.AF_INET6).close()


def test_system_without_ipv6_listens_on_ipv4_at_the_first_try(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bind = socket.socket.bind

    def without_ipv6(self: socket.socket, address: tuple[str, int]) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", without_ipv6)
    with caplog.at_level(logging.DEBUG, "tardis_machine.server.sockets"):
        sockets = listen(None, 0)
    assert hosts_of(sockets.http) == hosts_of(sockets.websocket) == ["127.0.0.1"]
    sockets.close()
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


@needs_ipv6
@pytest.mark.parametrize("offset", [0, 1])
def test_port_0_passes_over_a_port_that_is_taken_on_ipv6(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, free = free_port_pair(), free_port_pair()
    chosen = iter((taken, free))
    bind = socket.socket.bind

    def choosing(self: socket.socket, address: tuple[str, int]) -> None:
        bind(self, (address[0], address[1] or next(chosen)))

    with socket.create_server(("::1", taken + offset), family=socket.AF_INET6):
        monkeypatch.setattr(socket.socket, "bind", choosing)
        sockets = listen(None, 0)
    try:
        assert port_of(sockets.http) == free
        assert hosts_of(sockets.http) == hosts_of(sockets.websocket) == ["127.0.0.1", "::1"]
    finally:
        sockets.close()
    socket.create_server(("127.0.0.1", taken)).close()


@needs_ipv6
def test_port_0_listens_on_ipv4_where_every_port_is_taken_on_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bind = socket.socket.bind

    def refusing(self: socket.socket, address: tuple[str, int]) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        bind(self, address)

    monkeypatch.setattr(socket.socket, "bind", refusing)
    sockets = listen(None, 0)
    assert hosts_of(sockets.http) == hosts_of(sockets.websocket) == ["127.0.0.1"]
    sockets.close()


def test_port_0_passes_over_a_port_whose_next_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As systems choose ports: one after the other, taken ones among them."""
    taken, free = free_port_pair(), free_port_pair()
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
    port = free_port_pair()
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
