"""What the kernel writes to a socket by itself: all of it, in order, however slowly it is read."""

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from tardis_machine import sample
from tardis_machine.kernel import kernel
from tardis_machine.normalize import Pour
from tardis_machine.options import ReplayNormalizedOptions
from tardis_machine.replay import replay_normalized_many
from tardis_machine.server.outlet import Outlet
from tardis_machine.times import us_of

START = us_of("2024-03-01T00:00:00.000Z")
MINUTE = 60_000_000
OPTIONS = ReplayNormalizedOptions(
    exchange="bitmex",
    from_=START,
    to=START + 5 * MINUTE,
    data_types=["trade", "book_change", "book_snapshot_50_0ms"],
)


class Connection:
    """Both ends of a connection; ours does not block."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.ours = ours
        self.received = bytearray()
        self._theirs = theirs
        self._reading = threading.Thread(target=self._read)

    def pour(self, *, chunked: bool) -> Pour:
        module = kernel().module
        assert module is not None
        pour: Pour = module.Pour(self.ours.fileno(), chunked)
        return pour

    def read(self) -> None:
        """Have the other end read from now on."""
        self._reading.start()

    def finish(self, pour: Pour) -> None:
        """Wait until the socket has taken what is held."""
        while pour.is_held:
            select.select([], [pour], [])
            pour.resume()

    def end(self) -> bytes:
        """Everything that was received, when ours is closed."""
        self.ours.close()
        self._reading.join()
        return bytes(self.received)

    def _read(self) -> None:
        while part := self._theirs.recv(1 << 20):
            self.received += part


@pytest.fixture
def connection() -> Iterator[Connection]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        ours.setblocking(False)
        yield Connection(ours, theirs)


def unchunked(body: bytes) -> bytes:
    """The content of chunks, each of which has to be whole."""
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        assert length > 0
        parts.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        body = rest[length + 2 :]
    return b"".join(parts)


def test_what_a_socket_does_not_take_is_held_and_nothing_overtakes_it(
    connection: Connection,
) -> None:
    pour = connection.pour(chunked=True)
    text = bytes(range(256)) * (1 << 12)
    sent = 0
    while not pour.is_held:  # nobody reads
        pour.send(bytearray(text) if sent % 2 else text)
        sent += 1
    with pytest.raises(RuntimeError, match="comes first"):
        pour.send(b"overtaking")
    written = pour.written
    pour.resume()
    assert pour.is_held
    assert pour.written == written
    connection.read()
    connection.finish(pour)
    pour.send(b"the last")
    pour.close()
    assert unchunked(connection.end()) == text * sent + b"the last"


def test_nothing_is_no_chunk(connection: Connection) -> None:
    pour = connection.pour(chunked=True)
    connection.read()
    for text in (b"", b"a", b""):
        pour.send(text)
    pour.close()
    assert connection.end() == b"1\r\na\r\n"


def test_a_connection_ends_though_it_was_poured_into(connection: Connection) -> None:
    pour = connection.pour(chunked=False)
    connection.read()
    pour.send(b"a")
    connection.ours.close()
    pour.send(b"b")  # it is still open
    pour.close()
    connection._reading.join()
    assert pour.fileno() == -1
    with pytest.raises(OSError, match="connected"):
        pour.send(b"c")
    assert connection.received == b"ab"


def test_a_connection_that_is_gone_is_told_of(connection: Connection) -> None:
    pour = connection.pour(chunked=False)
    while not pour.is_held:
        pour.send(bytes(1 << 20))
    connection._theirs.close()
    select.select([], [pour], [])
    with pytest.raises(ConnectionError):
        pour.resume()


@pytest.mark.parametrize("number", [-1, 1 << 20])
def test_what_is_no_socket_is_refused(number: int) -> None:
    module = kernel().module
    assert module is not None
    with pytest.raises(OSError):  # noqa: PT011 - the system's own words
        module.Pour(number, True)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("is_read", ["at once", "late"])
def test_a_replay_that_is_poured_is_the_same(
    connection: Connection, is_read: str, *, chunked: bool
) -> None:
    with sample.history() as history:
        batches = list(replay_normalized_many([OPTIONS], history=history).batches())
        expected = b"".join(batch.data for batch in batches)
        if is_read == "at once":
            connection.read()
        pour = connection.pour(chunked=chunked)
        replay = replay_normalized_many([OPTIONS], history=history)
        assert replay.can_pour
        count = size = left = held = 0
        for chunk in replay.chunks(pour):
            if pour.is_held:
                assert not chunk.data
                if not held and is_read == "late":
                    connection.read()
                held += 1
                connection.finish(pour)
            pour.send(chunk.data)
            connection.finish(pour)
            left += len(chunk.data)
            messages, poured = pour.settle()
            count += chunk.count + messages
            size += len(chunk.data) + poured
            pour.is_open = True
        pour.close()
    received = connection.end()
    assert (unchunked(received) if chunked else received) == expected
    assert (count, size) == (sum(batch.count for batch in batches), len(expected))
    assert left < size / 2
    assert pour.written == len(received)
    if is_read == "late":
        assert held


def test_several_streams_are_not_poured() -> None:
    with sample.history() as history:
        several = [OPTIONS, OPTIONS]
        with replay_normalized_many(several, history=history) as replay:
            assert not replay.can_pour


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("already", [0, 1, 1 << 25])
def test_what_a_transport_has_yet_to_send_is_not_overtaken(loop: Any, already: int) -> None:
    """Of the answer before, on the same connection, something may be left."""

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        server = await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0
        )
        async with server:
            address = server.sockets[0].getsockname()
            reader, theirs = await asyncio.open_connection(*address, limit=1 << 16)
            ours = await accepted
            ours.write(b"a" * already)
            writer = SimpleNamespace(output_size=0, drain=ours.drain)
            request = SimpleNamespace(transport=ours.transport, writer=writer)
            outlet = Outlet(cast("Any", request), 300)
            pour = outlet.make_pour(chunked=False)
            assert pour is not None
            async with outlet.watched():
                sending = asyncio.ensure_future(outlet.pour_out(pour, b"b"))
                if already > 1:  # more than the socket takes
                    await asyncio.sleep(0.1)
                    assert not sending.done()
                    assert not pour.is_open
                reading = asyncio.ensure_future(reader.read(-1))
                await sending
                assert pour.is_open
                ours.write(b"c")
            ours.close()
            theirs.write_eof()
            received = await reading
            theirs.close()
            return received

    with asyncio.Runner(loop_factory=loop) as runner:
        received = runner.run(run())
    # Megabytes are not shown.
    assert len(received) == already + 2
    is_in_order = received == b"a" * already + b"bc"
    assert is_in_order
