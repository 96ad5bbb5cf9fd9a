"""What the kernel writes to a socket by itself: all of it, in order, however slowly it is read."""

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
import uvloop

from tardis_machine.engine.choice import kernel
from tardis_machine.history import sample
from tardis_machine.messages import Message
from tardis_machine.messages.times import us_of
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.normalizer import Framing, Pour
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.kernel.outlets import UNFRAMED, connected, unchunked, unframed

pytestmark = pytest.mark.slow

START = us_of("2024-03-01T00:00:00.000Z")
MINUTE = 60_000_000
OPTIONS = ReplayNormalizedOptions(
    exchange="bitmex",
    from_=START,
    to=START + 5 * MINUTE,
    data_types=("trade", "book_change", "book_snapshot_50_0ms"),
)


class Connection:
    """Both ends of a connection; ours does not block."""

    def __init__(self, ours: socket.socket, theirs: socket.socket) -> None:
        self.ours = ours
        self.received = bytearray()
        self._theirs = theirs
        self._reading = threading.Thread(target=self._read)

    def pour(self, framing: Framing) -> Pour:
        module = kernel().module
        assert module is not None
        pour: Pour = module.Pour(self.ours.fileno(), framing)
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


def test_what_a_socket_does_not_take_is_held_and_nothing_overtakes_it(
    connection: Connection,
) -> None:
    pour = connection.pour("chunks")
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
    pour = connection.pour("chunks")
    connection.read()
    for text in (b"", b"a", b""):
        pour.send(text)
    pour.close()
    assert connection.end() == b"1\r\na\r\n"


# Lengths around those at which a frame's header grows, and more frames than one call takes.
MESSAGES = b"".join(
    b"x" * length + b"\n" for length in (0, 1, 125, 126, 127, 65535, 65536, *range(2000))
)


@pytest.mark.parametrize("framing", get_args(Framing))
def test_a_socket_may_take_as_little_as_it_likes(framing: Framing) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        connection = Connection(ours, theirs)
        pour = connection.pour(framing)
        pour.send(MESSAGES)
        cuts = 0
        while pour.is_held:
            cuts += 1
            connection.received += theirs.recv(1 + 13 * cuts % 9973)
            pour.resume()
        connection.read()
        pour.close()
        received = connection.end()
    assert UNFRAMED[framing](received) == MESSAGES
    assert pour.written == len(received)
    assert cuts > 100


@pytest.mark.parametrize("framing", get_args(Framing))
@pytest.mark.parametrize("more", [0, 1, 12345, 1 << 20])
def test_what_is_spilled_ends_what_was_begun(
    connection: Connection, framing: Framing, more: int
) -> None:
    pour = connection.pour(framing)
    sent = 0
    while not pour.is_held:
        pour.send(MESSAGES)
        sent += 1
    received = b""
    while len(received) < more:
        received += connection._theirs.recv(more - len(received))
        pour.resume()
    rest = pour.spill()
    assert pour.spill() == b""
    pour.send(b"")  # there is nothing that would come first
    connection.received += received
    connection.read()
    pour.close()
    received = connection.end()
    assert len(received) == pour.written
    assert UNFRAMED[framing](received + rest) == MESSAGES * sent


def test_a_connection_ends_though_it_was_poured_into(connection: Connection) -> None:
    pour = connection.pour("nothing")
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
    pour = connection.pour("nothing")
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
        module.Pour(number, "chunks")


@pytest.mark.parametrize("framing", get_args(Framing))
@pytest.mark.parametrize("is_read", ["at once", "late"])
def test_a_replay_that_is_poured_is_the_same(
    connection: Connection, is_read: str, framing: Framing
) -> None:
    with sample.sample_history() as history:
        batches = list(NormalizedReplay([OPTIONS], history=history).batches())
        expected = b"".join(batch.data for batch in batches)
        if is_read == "at once":
            connection.read()
        pour = connection.pour(framing)
        replay = NormalizedReplay[Message]([OPTIONS], history=history)
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
    assert UNFRAMED[framing](received) == expected
    assert (count, size) == (sum(batch.count for batch in batches), len(expected))
    assert left < size / 2
    assert pour.written == len(received)
    if is_read == "late":
        assert held


def test_a_framing_that_there_is_not_is_refused(connection: Connection) -> None:
    with pytest.raises(ValueError, match="framing"):
        connection.pour(cast("Framing", "envelopes"))


def test_several_streams_are_not_poured() -> None:
    with sample.sample_history() as history:
        several = [OPTIONS, OPTIONS]
        with NormalizedReplay[Message](several, history=history) as replay:
            assert not replay.can_pour


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("already", [0, 1, 1 << 25])
def test_what_a_transport_has_yet_to_send_is_not_overtaken(loop: Any, already: int) -> None:
    """Of the answer before, on the same connection, something may be left."""

    async def run() -> bytes:
        async with connected(b"a" * already) as (outlet, reader):
            pour = outlet.make_pour("nothing")
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
                outlet.write(b"c")
            outlet._require_connection().close()
            return await reading

    with asyncio.Runner(loop_factory=loop) as runner:
        received = runner.run(run())
    # Megabytes are not shown.
    assert len(received) == already + 2
    is_in_order = received == b"a" * already + b"bc"
    assert is_in_order


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("is_full", [False, True])
def test_a_control_frame_comes_between_others(loop: Any, *, is_full: bool) -> None:
    pong = b"\x8a\x04pong"
    text = MESSAGES * 8

    async def run() -> tuple[bytes, int]:
        async with connected() as (outlet, reader):
            pour = outlet.make_pour("frames")
            assert pour is not None
            received = b""
            sending = asyncio.ensure_future(outlet.pour_out(pour, MESSAGES))
            sent = len(MESSAGES)
            await sending
            while is_full and not pour.is_held:
                sending = asyncio.ensure_future(outlet.pour_out(pour, text))
                sent += len(text)
                await asyncio.sleep(0)
            outlet.interject(pong)
            outlet.interject(pong)
            assert not pour.is_open
            while not sending.done():
                received += await reader.read(1 << 16)
            # What was spilled is more than the socket has taken since.
            assert not pour.is_open
            reading = asyncio.ensure_future(reader.read(-1))
            for _ in range(3):
                await outlet.pour_out(pour, MESSAGES)
                sent += len(MESSAGES)
                assert pour.is_open
            outlet.interject(pong)
            outlet.end_pour()
            written = outlet.written
            outlet._require_connection().close()
            received += await reading
            assert len(received) == written + 3 * len(pong)
            return received, sent

    with asyncio.Runner(loop_factory=loop) as runner:
        received, sent = runner.run(run())
    assert received.endswith(pong)
    before, both, after = received[: -len(pong)].partition(2 * pong)
    assert both
    assert unframed(before) + unframed(after) == MESSAGES * (sent // len(MESSAGES))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_was_begun_is_ended_though_nobody_pours_any_more(loop: Any) -> None:
    goodbye = b"\x88\x00"

    async def run() -> tuple[bytes, int]:
        async with connected() as (outlet, reader):
            pour = outlet.make_pour("frames")
            assert pour is not None
            sent = 0
            while not pour.is_held:
                sending = asyncio.ensure_future(outlet.pour_out(pour, MESSAGES))
                sent += 1
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait((sending,))
            outlet.end_pour()
            outlet.interject(goodbye)
            outlet._require_connection().close()
            return await reader.read(-1), sent

    with asyncio.Runner(loop_factory=loop) as runner:
        received, sent = runner.run(run())
    assert received.endswith(goodbye)
    assert unframed(received.removesuffix(goodbye)) == MESSAGES * sent


async def test_a_client_that_is_out_of_reach_has_gone() -> None:
    """The system calls that a timeout, or no route, which is no ConnectionError to Python."""

    def lost(_: bytes) -> None:
        raise TimeoutError(110, "Connection timed out")

    async with connected() as (outlet, _):
        pour = SimpleNamespace(is_held=False, is_open=True, send=lost)
        with pytest.raises(ConnectionError, match="timed out"):
            await outlet.pour_out(cast("Pour", pour), b"a")
        outlet._require_connection().close()
