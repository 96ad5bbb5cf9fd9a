"""A client that has nothing to take does not stall, however long that lasts."""

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tardis_machine.server import outlet as outlet_module
from tardis_machine.server.outlet import Outlet


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Nothing is made here by either."""


class Connection:
    """What an outlet looks at, and a clock, both moved by hand."""

    def __init__(self, own: socket.socket) -> None:
        self.now = 0.0
        self.unsent = 0
        self.cut = False
        self.writer = SimpleNamespace(output_size=0)
        self.remote = "somebody"
        self.transport = SimpleNamespace(
            get_write_buffer_size=lambda: self.unsent,
            is_closing=lambda: False,
            get_extra_info=lambda _: own,
            abort=self.abort,
        )

    def abort(self) -> None:
        self.cut = True


async def test_what_comes_after_hours_of_nothing_may_take_its_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = Connection(ours)
        outlet = Outlet(cast("Any", client), 300)
        began = outlet._loop.time()
        outlet._loop = cast("Any", SimpleNamespace(time=lambda: began + client.now))
        for client.now in range(0, 7200, 75):
            outlet.cut_if_stalled()
        client.unsent = client.writer.output_size = 100
        for client.now in range(7200, 7200 + 225, 75):
            outlet.cut_if_stalled()
            assert not client.cut
        client.now += 300
        outlet.cut_if_stalled()
        assert client.cut
        assert outlet.stalled


async def test_what_a_pour_holds_stalls_where_the_system_does_not_tell_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet_module, "_in_kernel", lambda _: 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = Connection(ours)
        outlet = Outlet(cast("Any", client), 300)
        pour = SimpleNamespace(is_held=True, written=0)
        outlet.pour = cast("Any", pour)
        began = outlet._loop.time()
        outlet._loop = cast("Any", SimpleNamespace(time=lambda: began + client.now))
        for client.now in range(0, 3000, 75):
            pour.written += 1
            outlet.cut_if_stalled()
        assert not client.cut
        client.now += 300
        outlet.cut_if_stalled()
        assert client.cut
