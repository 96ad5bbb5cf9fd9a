"""The WebSocket port: frames, close codes, limits."""

import asyncio
import json
import logging
import socket
import threading
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import WSMsgType

from tardis_machine.replays.normalizer import Pour
from tardis_machine.server import session
from tardis_machine.server.outlet import Outlet
from tests.server.replays import OPTIONS, frames, library
from tests.support.bitmex import bitmex_trades
from tests.support.requests import query
from tests.support.served import Served, Start
from tests.support.servers.tardis_api import Fault, TardisApi
from tests.support.waiting import until

PONG, CLOSE = 0x8A, 0x88


class WayOut:
    """What the server does with a connection, as a test sees it that does not read."""

    def __init__(self) -> None:
        self.is_blocked = False
        """The server has had to wait for the client to read."""
        self.interjected: list[bytes] = []
        """Control frames that the server put between its messages."""

    @property
    def is_closing(self) -> bool:
        return any(frame[0] == CLOSE for frame in self.interjected)

    async def interjects(self) -> None:
        """Wait until the server has put another control frame between its messages."""
        count = len(self.interjected)
        await until(lambda: len(self.interjected) > count)


@pytest.fixture
def way_out(monkeypatch: pytest.MonkeyPatch) -> WayOut:
    seen = WayOut()
    drain, resume, interject = Outlet.drain, Outlet._resume, Outlet.interject

    async def draining(self: Outlet) -> None:
        transport = self._request.transport
        assert transport is not None
        seen.is_blocked |= (
            transport.get_write_buffer_size() > transport.get_write_buffer_limits()[1]
        )
        await drain(self)

    async def resuming(self: Outlet, pour: Pour) -> None:
        seen.is_blocked |= pour.is_held
        await resume(self, pour)

    def interjecting(self: Outlet, frame: bytes) -> None:
        seen.interjected.append(frame)
        interject(self, frame)

    monkeypatch.setattr(Outlet, "drain", draining)
    monkeypatch.setattr(Outlet, "_resume", resuming)
    monkeypatch.setattr(Outlet, "interject", interjecting)
    return seen


async def test_a_frame_per_message_then_1000(served: Served) -> None:
    found, code, reason = await frames(served, OPTIONS)
    assert "".join(f"{frame}\n" for frame in found).encode() == library(OPTIONS)
    assert (code, reason) == (1000, "WS replay-normalized finished")


async def test_large_messages(served: Served) -> None:
    options = OPTIONS | {"dataTypes": ["book_snapshot_2000_1m"]}
    found, code, _ = await frames(served, options)
    assert max(map(len, found)) > 65_536 // 8
    assert all(len(json.loads(frame)["bids"]) == 2000 for frame in found)
    assert code == 1000


async def test_paths_are_lower_cased(served: Served) -> None:
    url = served.ws("/WS-Replay-Normalized/", OPTIONS)
    async with served.client.ws_connect(url) as socket:
        assert (await socket.receive()).type is WSMsgType.TEXT


@pytest.mark.parametrize(
    ("path", "code", "part"),
    [
        ("/nothing", 1008, "unknown path"),
        ("/", 1008, "unknown path"),
    ],
)
async def test_other_paths_are_closed(served: Served, path: str, code: int, part: str) -> None:
    async with served.client.ws_connect(served.ws(path)) as socket:
        message = await socket.receive()
    assert message.type is WSMsgType.CLOSE
    assert message.data == code
    assert part in str(message.extra)


async def test_a_plain_request_gets_426(served: Served) -> None:
    for method in ("GET", "POST"):
        async with served.client.request(method, served.ws("/ws-replay-normalized")) as response:
            assert response.status == 426
            assert response.headers["Upgrade"] == "websocket"


async def test_a_header_that_is_no_text_gets_426(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port + 1)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: \xb1\x9e\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 426 ")
    writer.close()
    await writer.wait_closed()


async def test_bad_options_close_1011_with_a_reason_that_fits(served: Served) -> None:
    _, code, reason = await frames(served, OPTIONS | {"exchange": "ünknown" * 9})
    assert code == 1011
    assert 100 < len(reason.encode()) <= 123
    assert "ünknown" in reason


async def test_an_error_on_the_way_closes_1011(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.lines = bitmex_trades
    tardis_api.fail_at(1_709_251_200 // 60 + 3, Fault(status=403, body="not yours"))
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["trade"]}
    found, code, reason = await frames(served, options)
    # The last local timestamp may have gone on in the minute that is missing.
    assert len(found) in {2999, 3000}
    assert code == 1011
    assert "not yours" in reason


async def test_long_options_pass(served: Served) -> None:
    symbols = [f"S{number:06}" for number in range(950)]
    _, code, _ = await frames(served, OPTIONS | {"symbols": symbols})
    assert code == 1000


async def test_headers_beyond_20_000_bytes_get_431(served: Served) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await served.client.ws_connect(
            served.ws("/ws-replay-normalized"), headers={"X": "x" * 25_000}
        )
    assert caught.value.status == 431


async def test_512_kib_pass_and_no_more(served: Served) -> None:
    url = served.ws("/ws-replay-normalized", OPTIONS | {"dataTypes": ["book_snapshot_50_0ms"]})
    async with served.client.ws_connect(url) as socket:
        await socket.send_str("x" * 512 * 1024)
        assert (await socket.receive()).type is WSMsgType.TEXT
        await socket.send_str("x" * (512 * 1024 + 1))
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            pass
        assert message.type is WSMsgType.CLOSE
        assert message.data == 1009


async def test_nothing_is_compressed(served: Served) -> None:
    url = served.ws("/ws-replay-normalized", OPTIONS)
    async with served.client.ws_connect(url, compress=15) as socket:
        assert socket.compress == 0


async def test_of_the_protocols_a_client_offers_it_is_told_the_first(served: Served) -> None:
    """As the Node server does; clients go that offer some and are told none."""
    url = served.ws("/ws-replay-normalized", OPTIONS)
    async with served.client.ws_connect(url, protocols=("first", "second")) as socket:
        assert socket.protocol == "first"
        assert (await socket.receive()).type is WSMsgType.TEXT


async def test_a_client_that_goes_within_its_handshake_is_no_error(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def begin(self: session.Session) -> None:
        self.outlet.cut("as if by itself")
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    monkeypatch.setattr(session.Session, "begin", begin)
    with pytest.raises(aiohttp.ClientError):
        await served.client.ws_connect(served.ws("/ws-replay-normalized", OPTIONS))
    await until(lambda: not served.machine._listeners[1].connections)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_pings_of_a_client_that_reads_nothing_are_not_answered_without_end(
    start: Start, tardis_api: TardisApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_BACKLOG_BYTES", 100_000)
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.fail(Fault(wait_for=threading.Event()))
    handshake = (
        f"GET /ws-replay-normalized{query(OPTIONS)} HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port + 1))
        client.setblocking(False)
        client.send(handshake.encode())
        await until(lambda: len(served.machine._listeners[1].connections) == 1)
        ping = b"\x89\xfd" + bytes(4) + bytes(125)
        sent, most, refused_at = 0, 64 << 20, 0.0
        while sent < most:
            try:
                sent += client.send(ping * 1000)
                refused_at = 0.0
            except BlockingIOError:
                refused_at = refused_at or time.monotonic()
                if time.monotonic() - refused_at > 1.0:
                    break
            await asyncio.sleep(0)
        assert sent < most
        [connection] = served.machine._listeners[1].connections
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 1_000_000


async def test_pings_are_answered(served: Served) -> None:
    url = served.ws("/ws-replay-normalized", OPTIONS | {"dataTypes": ["book_snapshot_50_0ms"]})
    async with served.client.ws_connect(url, autoping=False) as socket:
        await socket.ping(b"there?")
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            pass
        assert message.type is WSMsgType.PONG
        assert message.data == b"there?"


async def test_pongs_come_between_messages_however_slowly_they_are_read(
    served: Served, way_out: WayOut
) -> None:
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    url = served.ws("/ws-replay-normalized", options)
    found: list[bytes] = []
    pongs: list[bytes] = []
    async with served.client.ws_connect(url, autoping=False, max_msg_size=0) as socket:
        await until(lambda: way_out.is_blocked)
        while True:
            if len(found) % 50 == 0 and len(way_out.interjected) < 40 and not way_out.is_closing:
                number = len(way_out.interjected)
                await socket.ping(bytes([number]) * number)
                await way_out.interjects()
            message = await socket.receive()
            if message.type is WSMsgType.CLOSE:
                break
            if message.type is WSMsgType.PONG:
                pongs.append(message.data)
            elif message.type is WSMsgType.TEXT:
                found.append(message.data.encode())
    assert b"\n".join((*found, b"")) == library(options)
    assert pongs == [frame[2:] for frame in way_out.interjected if frame[0] == PONG]
    assert len(pongs) > 10


async def test_a_silent_client_is_pinged_then_cut(
    start: Start, tardis_api: TardisApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PING_S", 0.1)
    monkeypatch.setattr(session, "SILENCE_S", 0.25)
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.fail(*[Fault(wait_for=threading.Event())] * 2)
    url = served.ws("/ws-replay-normalized", OPTIONS)
    async with served.client.ws_connect(url, autoping=False) as socket:
        kinds = [(await socket.receive()).type for _ in range(3)]
    assert kinds == [WSMsgType.PING, WSMsgType.PING, WSMsgType.CLOSED]


async def test_a_client_that_answers_pings_stays(
    start: Start, tardis_api: TardisApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PING_S", 0.1)
    monkeypatch.setattr(session, "SILENCE_S", 0.25)
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.fail(*[Fault(wait_for=threading.Event())] * 2)
    url = served.ws("/ws-replay-normalized", OPTIONS)
    async with served.client.ws_connect(url, autoping=False) as socket:
        for _ in range(6):
            message = await socket.receive()
            assert message.type is WSMsgType.PING
            await socket.pong(message.data)


async def test_a_token_is_asked_for_at_the_handshake(start: Start) -> None:
    served = await start(auth_token="s3cret")
    url = served.ws("/ws-replay-normalized", OPTIONS)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await served.client.ws_connect(url)
    assert caught.value.status == 401
    async with served.client.ws_connect(url, headers={"Authorization": "Bearer s3cret"}) as socket:
        assert (await socket.receive()).type is WSMsgType.TEXT


async def test_foreign_origins_are_refused_at_the_handshake(start: Start) -> None:
    served = await start(allow_origin=("https://here.example",))
    url = served.ws("/ws-replay-normalized", OPTIONS)
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await served.client.ws_connect(url, origin="https://evil.example")
    assert caught.value.status == 403
    async with served.client.ws_connect(url, origin="https://here.example") as socket:
        assert (await socket.receive()).type is WSMsgType.TEXT


async def test_a_client_that_leaves_stops_the_work(served: Served) -> None:
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    gauge = served.machine.metrics.active.labels("/ws-replay-normalized")
    socket = await served.client.ws_connect(served.ws("/ws-replay-normalized", options))
    assert (await socket.receive()).type is WSMsgType.TEXT
    assert gauge._value.get() == 1
    await socket.close()
    await until(lambda: gauge._value.get() == 0)


async def test_stopping_the_server_says_so(start: Start) -> None:
    served = await start()
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    async with served.client.ws_connect(served.ws("/ws-replay-normalized", options)) as socket:
        assert (await socket.receive()).type is WSMsgType.TEXT
        stopping = asyncio.ensure_future(served.machine.stop())
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            pass
        await stopping
    assert message.type is WSMsgType.CLOSE
    assert message.data == 1001


async def test_a_slow_client_gets_whole_messages_and_the_reason_when_the_server_stops(
    start: Start, way_out: WayOut
) -> None:
    served = await start()
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    found: list[bytes] = []
    url = served.ws("/ws-replay-normalized", options)
    async with served.client.ws_connect(url, max_msg_size=0) as socket:
        await until(lambda: way_out.is_blocked)
        stopping = asyncio.ensure_future(served.machine.stop())
        await until(lambda: way_out.is_closing)
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            found.append(message.data.encode())
        await stopping
    assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)
    expected = library(options)
    whole = b"\n".join((*found, b""))
    assert 0 < len(whole) < len(expected)
    assert expected.startswith(whole)


async def test_late_pongs_lose_nothing(
    start: Start, tardis_api: TardisApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PING_S", 0.02)
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.lines = bitmex_trades
    pinged = threading.Event()
    tardis_api.fail(*[Fault(wait_for=pinged)] * 2)
    finished = served.machine.metrics.responses.labels("/ws-replay-normalized", "finished")
    options = OPTIONS | {"dataTypes": ["trade"]}
    url = served.ws("/ws-replay-normalized", options)
    async with served.client.ws_connect(url, autoping=False) as socket:
        first = await socket.receive()
        assert first.type is WSMsgType.PING
        pinged.set()
        await until(lambda: finished._value.get() == 1)
        await socket.pong(first.data)
        await asyncio.sleep(0.1)  # time for a server that has hung up to answer with a reset
        kinds = []
        while (message := await socket.receive()).type is not WSMsgType.CLOSE:
            if message.type is WSMsgType.PING:
                await socket.pong(message.data)
            kinds.append(message.type)
    assert kinds.count(WSMsgType.TEXT) == 2000
    assert message.data == 1000


async def test_a_client_that_stalls_is_cut(start: Start) -> None:
    served = await start(stall_timeout_s=0.4)
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    stalled = served.machine.metrics.responses.labels("/ws-replay-normalized", "stalled")
    async with served.client.ws_connect(served.ws("/ws-replay-normalized", options)):
        await until(lambda: stalled._value.get() == 1)


async def test_nobody_waits_for_ever_for_an_answer_to_a_close(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PING_S", 0.1)
    monkeypatch.setattr(session, "IDLE_S", 0.2)
    async with served.client.ws_connect(served.ws("/nothing"), autoclose=False) as socket:
        assert (await socket.receive()).data == 1008
        connections = served.machine._listeners[1].connections
        assert len(connections) == 1
        await until(lambda: not served.machine._listeners[1].connections)
