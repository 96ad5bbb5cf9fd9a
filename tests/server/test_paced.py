"""Replays by the clock, over real sockets: nothing early, nothing lost, nobody held."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import us_of
from tardis_machine.server import native, session
from tests.server.replays import OPTIONS
from tests.support.native import TRADES, connect, recorded, replayed
from tests.support.served import Served, Start
from tests.support.waiting import until


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Serve with the kernel that is there: what it makes is not in question."""


START_US = us_of("2024-03-01T00:00:00.000Z")
SPEED = 1200.0
MERGED = [
    {
        "exchange": name,
        "from": "2024-03-01",
        "to": "2024-03-01T00:02",
        "dataTypes": ["trade"],
        "speed": SPEED,
    }
    for name in ("deribit", "bitmex")
]
SLOW = OPTIONS | {"speed": 0.001}
"""Its messages come in hours."""


def is_early(line: str | bytes, began: float) -> bool:
    local = json.loads(line)["localTimestamp"]
    return time.monotonic() - began < (us_of(f"{local[:26]}Z") - START_US) / 1e6 / SPEED


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/replay-normalized", MERGED),
        (
            "/replay",
            {"exchange": "bitmex", "from": "2024-03-01", "to": "2024-03-01T00:02", "speed": SPEED},
        ),
    ],
)
async def test_over_http(served: Served, path: str, options: Any) -> None:
    given = options if isinstance(options, list) else [options]
    plain = [{key: each[key] for key in each if key != "speed"} for each in given]
    async with served.client.get(
        served.http(path, plain if isinstance(options, list) else plain[0])
    ) as response:
        expected = await response.read()
    began = time.monotonic()
    found = []
    async with served.client.get(served.http(path, options)) as response:
        async for line in response.content:
            assert not is_early(line, began)
            found.append(line)
    assert b"".join(found) == expected


async def test_over_websocket(served: Served) -> None:
    began = time.monotonic()
    found = []
    async with served.client.ws_connect(served.ws("/ws-replay-normalized", MERGED)) as socket:
        async for message in socket:
            assert not is_early(message.data, began)
            found.append(message.data)
        assert socket.close_code == 1000
    async with served.client.get(served.http("/replay-normalized", MERGED)) as response:
        assert "".join(f"{each}\n" for each in found) == await response.text()


async def test_native_sessions_have_one_speed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "START_AFTER_S", 3600.0)
    async with await connect(served, TRADES, session="s", speed="1200"):
        for other in ({"speed": "2"}, {}):
            _, code, reason = await replayed(await connect(served, TRADES, session="s", **other))
            assert code == 1011
            assert reason.startswith('invalid "speed": 1200 and ')


async def test_native_sessions_by_the_clock(served: Served) -> None:
    sockets = [await connect(served, TRADES, session="s", speed="1200") for _ in range(2)]
    began = time.monotonic()
    results = await asyncio.gather(*map(replayed, sockets))
    assert time.monotonic() - began > 119 / SPEED
    expected = recorded("bitmex", Filter("trade", ("XBTUSD",)))
    assert [(messages, code) for messages, code, _ in results] == [(expected, 1000)] * 2


@pytest.mark.parametrize("speed", ["0", "-1", "NaN", "Infinity", "fast", "", "1e400", "[", "2e6"])
async def test_a_speed_that_is_none(served: Served, speed: str) -> None:
    _, code, reason = await replayed(await connect(served, speed=speed))
    assert code == 1011
    assert reason.startswith('invalid "speed": ')


async def test_different_speeds_in_one_request(served: Served) -> None:
    options = [MERGED[0], MERGED[1] | {"speed": 2}]
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        assert response.status == 400
        assert 'invalid "speed": 1200 and 2' in (await response.json())["message"]


async def test_who_waits_for_the_next_message_is_pinged_and_does_not_stall(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PING_S", 0.05)
    served = await start(stall_timeout_s=0.1)
    async with served.client.ws_connect(
        served.ws("/ws-replay-normalized", SLOW), autoping=False
    ) as socket:
        pings = 0
        while pings < 10:
            said = (await socket.receive()).type
            assert said in {WSMsgType.PING, WSMsgType.TEXT}
            if said is WSMsgType.PING:
                pings += 1
                await socket.pong()
        stopping = asyncio.ensure_future(served.machine.stop())
        while (message := await socket.receive()).type in {WSMsgType.PING, WSMsgType.TEXT}:
            pass
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)
        await socket.close()
        await stopping


async def test_a_client_that_leaves_ends_its_replay(served: Served) -> None:
    def active(path: str) -> float:
        return served.machine.metrics.active.labels(path)._value.get()

    http, ws, native = "/replay-normalized", "/ws-replay-normalized", "/ws-replay"
    async with served.client.get(served.http(http, SLOW)) as response:
        assert response.status == 200
        assert active(http) == 1
        response.close()
    await until(lambda: active(http) == 0)
    async with (
        served.client.ws_connect(served.ws(ws, SLOW)),
        await connect(served, TRADES, speed="0.001"),
    ):
        await until(lambda: active(ws) == active(native) == 1)
    await until(lambda: active(ws) == active(native) == 0)


async def test_stopping_the_server_does_not_wait_for_what_is_not_due(start: Start) -> None:
    served = await start()
    async with served.client.get(served.http("/replay-normalized", SLOW)) as response:
        await served.machine.stop()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
