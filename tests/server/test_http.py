"""The HTTP port, byte for byte, over real sockets."""

import asyncio
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import Counter

from tardis_machine.history import sample
from tardis_machine.history.blocks import read_blocks
from tardis_machine.history.cache import Cache
from tardis_machine.history.filters import Filter, cache_keys
from tests.server.replays import OPTIONS, library
from tests.support.bitmex import bitmex_trades
from tests.support.requests import query
from tests.support.served import Served, Start
from tests.support.servers.tardis_api import Fault, TardisApi
from tests.support.waiting import until

RAW: dict[str, Any] = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:01",
    "filters": [{"channel": "trade"}],
}


async def stands_still(sent: Counter) -> float:
    """Wait until the server sends no more; gives how much it has sent."""
    before = -1.0
    while (now := sent._value.get()) != before or not now:
        before = now
        await asyncio.sleep(0.3)
    return before


async def test_a_normalized_replay_is_the_library_s_bytes(served: Served) -> None:
    async with served.client.get(served.http("/replay-normalized", OPTIONS)) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/x-json-stream"
        assert response.headers["Transfer-Encoding"] == "chunked"
        body = await response.read()
    assert body == library(OPTIONS)
    assert {json.loads(line)["type"] for line in body.splitlines()} == {"trade", "book_change"}


class Sparse(type(sample.SAMPLE)):  # type: ignore[misc]
    """A minute with two trades, among lines that take long and become nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        minute = int(sample.START.timestamp()) // 60
        trades = bitmex_trades("bitmex", minute).splitlines()[:600:300]
        broken = [
            b"2024-03-01T00:00:%02d.%07dZ %b" % (second, part, b'{"table":"trade",')
            for second in range(60)
            for part in range(1, 4_000)
        ]
        path = Cache(directory).path("bitmex", cache_keys([])[0], minute, 1, "gz")
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(b"\n".join((*sorted((*trades, *broken)), b"")), 1))

    def selection(self, exchange: str, filters: Sequence[Filter]) -> None:
        del exchange, filters


async def test_messages_of_a_sparse_replay_come_long_before_its_last_line_is_read(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tardis_machine.server.app.SAMPLE", Sparse(tmp_path))
    count = 0

    def counted(path: Path) -> Iterator[bytes]:
        nonlocal count
        for block in read_blocks(path):
            count += 1
            yield block

    monkeypatch.setattr("tardis_machine.history.reader.read_blocks", counted)
    served = await start()
    options = OPTIONS | {"to": "2024-03-01T00:01", "dataTypes": ["trade"]}
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        body = await response.content.readline() + await response.content.readline()
        count_then = count
        body += await response.read()
    assert len(body.splitlines()) == 2
    assert count_then < count * 0.9


async def test_exact_answers_have_the_lines_between_from_and_to(served: Served) -> None:
    border = {"from": "2024-03-01T00:00:10.250001Z", "to": "2024-03-01T00:01:30.75Z"}
    for path, options in (("/replay-normalized", OPTIONS), ("/replay", RAW)):
        minutes = {"from": "2024-03-01", "to": "2024-03-01T00:02"}
        async with served.client.get(served.http(path, options | minutes)) as response:
            whole = (await response.read()).splitlines()
        async with served.client.get(
            served.http(path, options | border | {"exact": True})
        ) as response:
            exact = (await response.read()).splitlines()
        times = [json.loads(line)["localTimestamp"] for line in whole]
        assert exact == [
            line
            for line, time in zip(whole, times, strict=True)
            if border["from"] <= time < "2024-03-01T00:01:30.750000Z"
        ]
        assert 0 < len(exact) < len(whole)


async def test_several_options_are_merged(served: Served) -> None:
    several = [OPTIONS, OPTIONS | {"exchange": "deribit"}]
    async with served.client.get(served.http("/replay-normalized", several)) as response:
        body = await response.read()
    assert body == library(several)
    times = [json.loads(line)["localTimestamp"] for line in body.splitlines()]
    assert times == sorted(times)


async def test_a_raw_replay_keeps_messages_as_they_are(served: Served) -> None:
    async with served.client.get(served.http("/replay", RAW)) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "application/x-json-stream"
        lines = (await response.read()).splitlines()
    first = json.loads(lines[0])
    assert list(first) == ["localTimestamp", "message"]
    assert len(first["localTimestamp"]) == len("2019-06-01T00:00:00.1234567Z")
    assert {json.loads(line)["message"]["table"] for line in lines} == {"trade"}


async def test_range_of_no_length_has_an_empty_answer(served: Served) -> None:
    """Also of exchanges and times that the source does not have."""
    empty = {"from": "2025-01-01", "to": "2025-01-01"}
    for path, asked in (
        ("/replay-normalized", OPTIONS | empty),
        ("/replay-normalized", OPTIONS | empty | {"exchange": "kraken", "speed": 1}),
        ("/replay", RAW | empty),
    ):
        async with served.client.get(served.http(path, asked)) as response:
            assert (response.status, await response.read()) == (200, b"")


async def test_range_of_no_length_fails_no_others_of_its_array(served: Served) -> None:
    empty = OPTIONS | {"exchange": "deribit", "from": "2020/09/01", "to": "2020-9-1 "}
    for speed in (None, 600):
        several = [OPTIONS | {"speed": speed}, empty | {"speed": speed}]
        async with served.client.get(served.http("/replay-normalized", several)) as response:
            assert response.status == 200
            body = await response.read()
        assert body == library(OPTIONS)


async def test_empty_symbols_answer_all_symbols(served: Served) -> None:
    empty = [{"channel": "trade", "symbols": []}]
    for path, asked, changed in (
        ("/replay-normalized", OPTIONS, OPTIONS | {"symbols": []}),
        ("/replay", RAW, RAW | {"filters": empty}),
    ):
        bodies = []
        for options in (asked, changed):
            async with served.client.get(served.http(path, options)) as response:
                assert response.status == 200
                bodies.append(await response.read())
        assert bodies[0]
        assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    ("path", "options", "part"),
    [
        ("/replay-normalized", None, "options"),
        ("/replay-normalized", "{", "not JSON"),
        ("/replay-normalized", OPTIONS | {"exchange": "x"}, "bitmex"),
        ("/replay-normalized", OPTIONS | {"dataTypes": ["x"]}, "invalid data type: x"),
        ("/replay-normalized", OPTIONS | {"from": "x"}, "ISO 8601"),
        ("/replay-normalized", OPTIONS | {"to": "2024-03-01T00:00:30Z"}, "minute"),
        ("/replay", [RAW, RAW], "invalid options: a raw replay takes one object, not an array"),
        ("/replay", RAW | {"exchange": "x"}, "bitmex"),
        ("/replay", RAW | {"filters": [{"channel": "x"}]}, "orderBookL2"),
    ],
)
async def test_bad_options_answer_400(served: Served, path: str, options: Any, part: str) -> None:
    async with served.client.get(served.http(path, options)) as response:
        assert response.status == 400
        assert response.content_type == "application/json"
        assert part in (await response.json())["message"]


async def test_what_the_sample_does_not_have_is_404(served: Served) -> None:
    other = {"from": "2025-01-01", "to": "2025-01-02"}
    for path, asked in (("/replay-normalized", OPTIONS | other), ("/replay", RAW | other)):
        async with served.client.get(served.http(path, asked)) as response:
            assert response.status == 404
            assert "synthetic sample data" in (await response.json())["message"]


async def test_a_whole_day_of_the_sample_is_what_there_is_of_it(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """NautilusTrader asks for days only."""
    day = {"from": "2024-03-01", "to": "2024-03-02"}
    for path, asked in (("/replay-normalized", OPTIONS), ("/replay", RAW)):
        found = []
        for span in ({"to": "2024-03-01T00:05"}, day):
            async with served.client.get(served.http(path, asked | span)) as response:
                described = response.headers["X-Sample-Data"]
                assert described.startswith("synthetic sample data of bitmex")
                assert described.endswith("00:00Z to 00:05Z")
                found.append(await response.read())
        assert found[0] == found[1] != b""
    message = "request goes beyond the available data, minutes outside of it have no messages"
    assert [record.message for record in caplog.records].count(message) == 1


async def test_unknown_options_are_refused_when_strict(start: Start) -> None:
    strict = await start(strict=True)
    odd = OPTIONS | {"odd": 1}
    async with strict.client.get(strict.http("/replay-normalized", odd)) as response:
        assert response.status == 400
        assert "odd" in (await response.json())["message"]
    lenient = await start()
    async with lenient.client.get(lenient.http("/replay-normalized", odd)) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nothing"),
        ("GET", "/Replay"),
        ("POST", "/replay"),
        ("HEAD", "/replay"),
    ],
)
async def test_anything_else_is_404(served: Served, method: str, path: str) -> None:
    async with served.client.request(method, served.http(path)) as response:
        assert response.status == 404


async def test_a_trailing_slash_is_fine(served: Served) -> None:
    for path in ("/replay-normalized/", "/health-check/"):
        async with served.client.get(served.http(path, OPTIONS)) as response:
            assert response.status == 200
            await response.read()


async def test_health_check(served: Served) -> None:
    async with served.client.get(served.http("/health-check")) as response:
        body = await response.json()
    assert list(body) == ["status", "uptimeHours", "timestampMs", "memoryInfo"]
    assert body["status"] == "Healthy"
    assert 1 < body["memoryInfo"]["rssMB"] <= body["memoryInfo"]["peakRssMB"] + 1


async def test_metrics(served: Served) -> None:
    async with served.client.get(served.http("/replay-normalized", OPTIONS)) as response:
        sent = len((await response.read()).splitlines())
    async with served.client.get(served.http("/metrics")) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        lines = (await response.text()).splitlines()
    route = 'route="/replay-normalized"'
    assert f"tardis_machine_messages_total{{{route}}} {float(sent)}" in lines
    assert f'tardis_machine_responses_total{{outcome="finished",{route}}} 1.0' in lines
    assert f"tardis_machine_active_responses{{{route}}} 0.0" in lines


async def test_20_000_bytes_of_headers_pass_and_no_more(served: Served) -> None:
    padded = OPTIONS | {"symbols": [f"S{number:06}" for number in range(950)]}
    url = served.http("/replay-normalized", padded)
    assert 17_000 < len(url) < 20_000
    async with served.client.get(url) as response:
        assert response.status == 200
    for headers in ({"X": "x" * 25_000}, {f"X{i}": "x" * 1000 for i in range(25)}):
        async with served.client.get(served.http("/health-check"), headers=headers) as response:
            assert response.status == 431
    async with served.client.get(served.http("/replay", "x" * 21_000)) as response:
        assert response.status == 431


async def test_a_token_is_asked_for(start: Start) -> None:
    served = await start(auth_token="s3cret")
    url = served.http("/replay-normalized", OPTIONS)
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
        async with served.client.get(url, headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
    async with served.client.get(url, headers={"Authorization": "Bearer s3cret"}) as response:
        assert response.status == 200
    async with served.client.get(served.http("/health-check")) as response:
        assert response.status == 200


async def test_foreign_origins_are_refused_unless_named(start: Start) -> None:
    served = await start(allow_origin=("https://here.example",))
    url = served.http("/replay-normalized", OPTIONS)
    async with served.client.get(url, headers={"Origin": "https://evil.example"}) as response:
        assert response.status == 403
        assert "https://evil.example" in (await response.json())["message"]
    async with served.client.get(url, headers={"Origin": "https://here.example"}) as response:
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Origin"] == "https://here.example"
    ask = {"Origin": "https://here.example", "Access-Control-Request-Method": "GET"}
    async with served.client.options(url, headers=ask) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Headers"] == "Authorization"


def cached_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("feeds/**/*.json.zst"))


@pytest.mark.parametrize("bound", [None, 1 << 20])
async def test_metric_of_the_cache_s_bytes(
    start: Start, tardis_api: TardisApi, tmp_path: Path, bound: int | None
) -> None:
    endpoint = {"endpoint": tardis_api.endpoint, "cache_dir": tmp_path, "cache_max_bytes": bound}
    served = await start(sample_data=False, **endpoint)
    async with served.client.get(served.http("/replay-normalized", OPTIONS)) as response:
        await response.read()
    text, size = "", cached_bytes(tmp_path)
    assert size > 0
    while "tardis_machine_cache_bytes" not in text:
        async with served.client.get(served.http("/metrics")) as response:
            text = await response.text()
    assert f"\ntardis_machine_cache_bytes {float(size)}\n" in text


async def test_upstream_errors_keep_their_status(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.fail(*[Fault(status=401, body='{"message":"no such key"}')] * 2)
    async with served.client.get(served.http("/replay-normalized", OPTIONS)) as response:
        assert response.status == 401
        assert "no such key" in (await response.json())["message"]


async def test_an_error_after_the_first_byte_cuts_the_response(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.lines = bitmex_trades
    tardis_api.fail_at(1_709_251_200 // 60 + 3, Fault(status=403, body="not yours"))
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["trade"]}
    received = bytearray()

    async def read(response: aiohttp.ClientResponse) -> None:
        async for piece in response.content.iter_any():
            received.extend(piece)

    async with served.client.get(served.http("/replay-normalized", options)) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(response)
    assert received.endswith(b"\n")
    # The last local timestamp may have gone on in the minute that is missing.
    assert len(received.splitlines()) in {2999, 3000}
    assert b"not yours" not in received


async def test_an_early_error_does_not_swallow_what_preceded_it(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.lines = lambda exchange, minute: b"".join(
        bitmex_trades(exchange, minute).splitlines(keepends=True)[:5]
    )
    tardis_api.fail_at(1_709_251_200 // 60 + 2, Fault(status=403, body="not yours"))
    options = OPTIONS | {"to": "2024-03-01T00:04", "dataTypes": ["trade"]}
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        assert response.status == 200
        first = await response.content.readline()
        assert json.loads(first)["id"] == f"{1_709_251_200 // 60}-0"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_http_1_0_sees_a_cut_as_well(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.lines = bitmex_trades
    tardis_api.fail_at(1_709_251_200 // 60 + 2, Fault(status=403, body="not yours"))
    options = OPTIONS | {"to": "2024-03-01T00:04", "dataTypes": ["trade"]}
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"GET /replay-normalized{query(options)} HTTP/1.0\r\n\r\n".encode())
    with pytest.raises(ConnectionResetError):
        await reader.read(-1)
    writer.close()


async def test_http_1_0_sees_the_end_even_if_it_would_keep_the_connection(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    asked = f"GET /replay-normalized{query(OPTIONS)} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    writer.write(asked.encode())
    async with asyncio.timeout(30):
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    assert b"keep-alive" not in head.lower()
    assert body == library(OPTIONS)
    writer.close()


async def test_stopping_the_server_cuts_what_is_under_way(start: Start) -> None:
    served = await start()
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        await response.content.readline()
        await served.machine.stop()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    outcomes = served.machine.metrics.responses.labels("/replay-normalized", "stopped")
    assert outcomes._value.get() == 1


async def test_stopping_the_server_refuses_what_has_not_begun(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.fail(*[Fault(wait_for=threading.Event())] * 2)
    asking = asyncio.ensure_future(served.client.get(served.http("/replay-normalized", OPTIONS)))
    gauge = served.machine.metrics.active.labels("/replay-normalized")
    await until(lambda: gauge._value.get() == 1)
    await served.machine.stop()
    async with await asking as response:
        assert response.status == 503
        assert "shutting down" in (await response.json())["message"]


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/replay", RAW),
        ("/replay-normalized", OPTIONS | {"dataTypes": ["trade"]}),
        ("/replay-normalized", [OPTIONS | {"dataTypes": ["trade"]}] * 2),
    ],
)
async def test_others_are_served_while_a_slice_is_waited_for(
    start: Start, tardis_api: TardisApi, tmp_path: Path, path: str, options: Any
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.lines = bitmex_trades
    hold = threading.Event()
    too_late = threading.Timer(5, hold.set)
    too_late.start()
    tardis_api.fail_at(1_709_251_200 // 60 + 1, *[Fault(wait_for=hold)] * 2)
    several = options if isinstance(options, list) else [options]
    asked = [each | {"to": "2024-03-01T00:03"} for each in several]
    url = served.http(path, asked if isinstance(options, list) else asked[0])
    async with served.client.get(url) as response:
        await response.content.readline()
        async with served.client.get(served.http("/health-check")) as other:
            assert other.status == 200
        assert not hold.is_set()
        hold.set()
        rest = await response.read()
    too_late.cancel()
    assert 1 + len(rest.splitlines()) == 3000 * len(asked)


async def test_a_client_that_stalls_is_cut(start: Start) -> None:
    served = await start(stall_timeout_s=0.4)
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    outcomes = served.machine.metrics.responses.labels("/replay-normalized", "stalled")
    with socket.create_connection(("127.0.0.1", served.port)) as stalled:
        request = f"GET /replay-normalized{query(options)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        stalled.sendall(request.encode())
        await until(lambda: outcomes._value.get() == 1)
    assert served.machine.metrics.active.labels("/replay-normalized")._value.get() == 0


async def test_http_1_0_sees_that_it_was_cut_when_it_goes_on_too_late(start: Start) -> None:
    served = await start(stall_timeout_s=0.4)
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    stalled = served.machine.metrics.responses.labels("/replay-normalized", "stalled")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
    writer.write(f"GET /replay-normalized{query(options)} HTTP/1.0\r\n\r\n".encode())
    await until(lambda: stalled._value.get() == 1)
    with pytest.raises(ConnectionResetError):
        await reader.read(-1)
    writer.close()


async def test_a_client_that_goes_on_in_time_is_not_cut(start: Start) -> None:
    served = await start(stall_timeout_s=3)
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        total = 0
        while piece := await response.content.read(1 << 23):
            total += len(piece)
            await asyncio.sleep(0.1)
    assert total == len(library(options))


@pytest.mark.parametrize(
    ("path", "options", "bad"),
    [
        ("/replay", RAW | {"filters": []}, b"neither a time nor a message\n"),
        (
            "/replay-normalized",
            OPTIONS | {"to": "2024-03-01T00:01", "dataTypes": ["trade"]},
            b'2024-03-01T00:00:59.9999999Z {"table":"trade","action":"insert","data":[{}]}\n',
        ),
    ],
)
async def test_bad_lines_are_left_out_or_end_the_replay(
    start: Start,
    tardis_api: TardisApi,
    tmp_path: Path,
    path: str,
    options: dict[str, Any],
    bad: bytes,
) -> None:
    tardis_api.lines = lambda exchange, minute: bitmex_trades(exchange, minute) + bad
    where = {"sample_data": False, "endpoint": tardis_api.endpoint, "cache_dir": tmp_path}
    lenient = await start(**where)
    async with lenient.client.get(lenient.http(path, options)) as response:
        assert len((await response.read()).splitlines()) == 1000
    assert lenient.machine.metrics.malformed.labels(path)._value.get() == 1
    strict = await start(strict=True, **where)
    async with strict.client.get(strict.http(path, options)) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_client_that_leaves_stops_the_work(served: Served) -> None:
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    gauge = served.machine.metrics.active.labels("/replay-normalized")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        f"GET /replay-normalized{query(options)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    await reader.readexactly(1000)
    assert gauge._value.get() == 1
    writer.transport.abort()
    await until(lambda: gauge._value.get() == 0)
    outcomes = served.machine.metrics.responses.labels("/replay-normalized", "disconnected")
    assert outcomes._value.get() == 1


async def test_what_a_client_got_before_it_left_is_counted(served: Served) -> None:
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    metrics = served.machine.metrics
    sent = metrics.bytes.labels("/replay-normalized")
    received = 0
    with socket.create_connection(("127.0.0.1", served.port)) as leaving:
        request = f"GET /replay-normalized{query(options)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        leaving.sendall(request.encode())
        await stands_still(sent)
        leaving.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # that is all there is before the server goes on
            while True:
                received += len(leaving.recv(1 << 20))
    await until(lambda: metrics.active.labels("/replay-normalized")._value.get() == 0)
    in_hand = 1 << 20  # what was being sent just then
    assert received > 2 * in_hand
    assert sent._value.get() >= received - in_hand
    assert metrics.messages.labels("/replay-normalized")._value.get() > received / 10_000


async def test_a_client_that_says_it_is_done_and_reads_no_more_stops_the_work(
    start: Start,
) -> None:
    served = await start(stall_timeout_s=2)
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    gauge = served.machine.metrics.active.labels("/replay-normalized")
    with socket.create_connection(("127.0.0.1", served.port)) as done:
        request = f"GET /replay-normalized{query(options)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        done.sendall(request.encode())
        await stands_still(served.machine.metrics.bytes.labels("/replay-normalized"))
        assert gauge._value.get() == 1
        done.shutdown(socket.SHUT_WR)
        await until(lambda: gauge._value.get() == 0)


async def test_a_slow_client_is_waited_for(served: Served) -> None:
    options = OPTIONS | {"to": "2024-03-01T00:05", "dataTypes": ["book_snapshot_50_0ms"]}
    sent = served.machine.metrics.bytes.labels("/replay-normalized")
    with socket.create_connection(("127.0.0.1", served.port)) as slow:
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        request = f"GET /replay-normalized{query(options)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await loop.sock_sendall(slow, request.encode())
        before = await stands_still(sent)
        total = len(library(options))
        assert before < total / 2
        received = 0
        while received < total:
            received += len(await loop.sock_recv(slow, 1 << 20))


async def test_what_is_more_than_a_socket_takes_arrives_whole_and_is_counted(
    served: Served,
) -> None:
    options = OPTIONS | {"dataTypes": ["trade", "book_snapshot_50_0ms"]}
    expected = library(options)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    # The connection serves other requests after it, and before.
    for asked, wanted in ((OPTIONS, library(OPTIONS)), (options, expected), (options, expected)):
        writer.write(
            f"GET /replay-normalized{query(asked)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        body = bytearray()
        while length := int(await reader.readline(), 16):
            body += await reader.readexactly(length)
            assert await reader.readexactly(2) == b"\r\n"
        assert await reader.readexactly(2) == b"\r\n"
        assert body == wanted
    writer.close()
    metrics = served.machine.metrics
    finished = metrics.responses.labels("/replay-normalized", "finished")
    await until(lambda: finished._value.get() == 3)
    sent = library(OPTIONS) + 2 * expected
    assert metrics.bytes.labels("/replay-normalized")._value.get() == len(sent)
    assert metrics.messages.labels("/replay-normalized")._value.get() == sent.count(b"\n")


async def test_eight_clients_get_the_same(served: Served) -> None:
    async def body() -> bytes:
        async with served.client.get(served.http("/replay-normalized", OPTIONS)) as response:
            return await response.read()

    bodies = await asyncio.gather(*(body() for _ in range(8)))
    assert len(set(bodies)) == 1
    assert bodies[0] == library(OPTIONS)
