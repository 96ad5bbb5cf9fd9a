"""What is served is published; without a bus nothing of that exists."""

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType

from tardis_machine.bronze.decoder import decode
from tardis_machine.config import ConfigError
from tardis_machine.messages import decode_lines
from tardis_machine.publish.buses.file import FileConfig
from tardis_machine.server.app import TardisMachine
from tests.server.replays import OPTIONS, frames, library
from tests.support.hanging_disk import HangingDisk
from tests.support.live_messages import XBT, bitmex_trade
from tests.support.ports import free_port_pair
from tests.support.served import Served, Start
from tests.support.servers.exchange import ScriptedExchange
from tests.support.waiting import until


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def get(served: Served, options: Any) -> bytes:
    async with served.client.get(served.http("/replay-normalized", options)) as response:
        assert response.status == 200
        return await response.read()


async def test_both_flows_are_published(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    served = await start(
        event_bus={"provider": "file", "path": str(file)}, journal={"dir": tmp_path / "journal"}
    )
    over_http = await get(served, OPTIONS)
    over_ws, code, _ = await frames(served, OPTIONS)
    assert over_http == library(OPTIONS)
    assert code == 1000
    await get(served, OPTIONS | {"publish": False})
    report = await served.machine.stop()
    assert report is not None
    assert report.pending == 0
    assert len(events(file)) == len(over_http.splitlines()) + len(over_ws)


async def test_exact_responses_publish_what_they_send(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    served = await start(
        event_bus={"provider": "file", "path": str(file)}, journal={"dir": tmp_path / "journal"}
    )
    exact = OPTIONS | {"from": "2024-03-01T00:00:20.5Z", "to": "2024-03-01T00:00:40", "exact": True}
    over_http = await get(served, exact)
    over_ws, _, _ = await frames(served, exact)
    await served.machine.stop()
    assert over_http.decode().splitlines() == over_ws
    assert 0 < len(over_http) < len(library(OPTIONS))
    sent = [str(message) for message in decode_lines(over_http)]
    published = [str(decode(base64.b64decode(event["value"])).message) for event in events(file)]
    assert sorted(published) == sorted(sent * 2)


async def test_only_the_flows_asked_for(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    served = await start(
        event_bus=FileConfig(path=file),
        journal={"dir": tmp_path / "journal"},
        publish={"publish_flows": ["ws-replay"]},
    )
    await get(served, OPTIONS)
    over_ws, _, _ = await frames(served, OPTIONS)
    await served.machine.stop()
    assert len(events(file)) == len(over_ws)


async def test_a_bus_that_cannot_be_reached_degrades_the_health_check(
    start: Start, tmp_path: Path
) -> None:
    served = await start(
        nats={"servers": f"nats://127.0.0.1:{free_port_pair()}", "subject": "bronze"},
        journal={"dir": tmp_path / "journal"},
        publish={"retry_max": 1, "retry_min_ms": 10, "retry_max_s": 0.1, "drain_timeout_s": 0},
    )
    body = await get(served, OPTIONS)
    assert body == library(OPTIONS)
    while True:
        async with served.client.get(served.http("/health-check")) as response:
            assert response.status == 200
            health = await response.json()
        if health["status"] == "Degraded":
            break
        await asyncio.sleep(0.05)
    assert health["unhealthy"] == ["nats: unhealthy"]
    state = {"state": "unhealthy", "pending": body.count(b"\n"), "deadLettered": 0, "dropped": 0}
    assert health["publishing"] == {"publisher": "running", "buses": {"nats": state}}
    report = await served.machine.stop()
    assert report is not None
    assert report.pending == len(body.splitlines())


async def test_what_was_just_sent_is_pending_at_once(start: Start, tmp_path: Path) -> None:
    served = await start(
        nats={"servers": f"nats://127.0.0.1:{free_port_pair()}", "subject": "bronze"},
        journal={"dir": tmp_path / "journal"},
        publish={"drain_timeout_s": 0},
    )

    async def pending() -> int | None:
        async with served.client.get(served.http("/health-check")) as response:
            [bus] = (await response.json())["publishing"]["buses"].values()
        async with served.client.get(served.http("/metrics")) as response:
            text = await response.text()
        for name in ("journalled_total", "accepted", "pending") if "pending" in bus else ():
            count = bus["pending"]
            assert f'tardis_machine_publish_{name}{{bus="nats"}} {float(count)}\n' in text
        found: int | None = bus.get("pending")
        return found

    while True:
        if await pending() is not None:  # the publisher has said something
            break
        await asyncio.sleep(0.05)
    for times in range(1, 6):
        body = await get(served, OPTIONS)
        assert await pending() == times * body.count(b"\n")
    report = await served.machine.stop()
    assert report is not None
    assert report.pending == 5 * body.count(b"\n")


async def test_without_a_bus_there_is_no_trace_of_publishing(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from tardis_machine.server.app import TardisMachine

async def main():
    machine = TardisMachine(sample_data=True, journal={{"dir": {str(tmp_path / "journal")!r}}})
    await machine.start(0)
    await machine.stop()

asyncio.run(main())
loaded = [name for name in sys.modules if name.startswith(("confluent_kafka", "nats"))]
print(loaded, "tardis_machine.publish.outbox" in sys.modules)
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[] False\n"
    assert not (tmp_path / "journal").exists()


def meta(file: Path) -> list[tuple[str, str]]:
    """Give request and session of every event, as far as they differ."""
    found = []
    for event in events(file):
        context = decode(base64.b64decode(event["value"])).envelope.context
        found.append((context.request_id, context.session_id))
    return list(dict.fromkeys(found))


async def test_ids_of_requests_and_sessions_are_returned_logged_and_published(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "events.ndjson"
    served = await start(event_bus=FileConfig(path=file), journal={"dir": tmp_path / "journal"})
    told = []
    for _ in range(2):
        url = served.http("/replay-normalized", OPTIONS)
        async with served.client.get(url) as response:
            await response.read()
            told.append((response.headers["X-Request-Id"], response.headers["X-Session-Id"]))
    url = served.ws("/ws-replay-normalized", OPTIONS)
    async with served.client.ws_connect(url) as socket:
        headers = socket._response.headers
        told.append((headers["X-Request-Id"], headers["X-Session-Id"]))
        while (await socket.receive()).type is WSMsgType.TEXT:
            pass
    await served.machine.stop()
    assert len({each for pair in told for each in pair}) == 6
    assert meta(file) == told
    ended = [each for each in caplog.records if each.message == "response ended"]
    assert [(each.request_id, each.session_id) for each in ended] == told


async def test_an_answer_that_is_no_stream_has_its_ids_too(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    served = await start()
    async with served.client.get(served.http("/replay-normalized", "{")) as response:
        assert response.status == 400
        asked = response.headers["X-Request-Id"]
    [refused] = [each for each in caplog.records if each.message == "response refused"]
    assert refused.request_id == asked
    async with served.client.get(served.http("/nowhere")) as response:
        assert response.status == 404
        assert response.headers["X-Request-Id"] != asked


async def test_a_disk_that_hangs_holds_no_other_request(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = {"dir": tmp_path / "journal", "ring_bytes": 0}
    served = await start(event_bus=FileConfig(path=tmp_path / "events"), journal=journal)
    disk = HangingDisk(monkeypatch)
    replaying = asyncio.create_task(get(served, OPTIONS))
    await until(disk.reached.is_set)
    async with served.client.get(served.http("/health-check")) as response:
        assert response.status == 200
    assert await get(served, OPTIONS | {"publish": False}) == library(OPTIONS)
    assert not replaying.done()
    disk.free.set()
    assert await replaying == library(OPTIONS)


async def test_a_live_message_is_journalled_before_it_is_sent(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in order: what the exchange's errors say comes behind what it sent before them."""
    async with ScriptedExchange() as exchange:
        monkeypatch.setenv("WSS_URL_BITMEX", exchange.ws_url)
        journal = {"dir": tmp_path / "journal", "ring_bytes": 0}
        served = await start(event_bus=FileConfig(path=tmp_path / "events"), journal=journal)
        options = {"exchange": "bitmex", "symbols": [XBT], "dataTypes": ["trade"]}
        asked = options | {"withErrorMessages": True}
        url = served.ws("/ws-stream-normalized", asked)
        found: list[Any] = []

        async def collect() -> None:
            while (message := await socket.receive()).type is WSMsgType.TEXT:
                found.append(json.loads(message.data))

        async with served.client.ws_connect(url) as socket:
            collecting = asyncio.create_task(collect())
            peer = await exchange.accepted()
            disk = HangingDisk(monkeypatch)
            await peer.send(bitmex_trade(1))
            await until(disk.reached.is_set)
            await peer.send(bitmex_trade(2))
            await peer.send({"error": "The system is overloaded."})
            await asyncio.sleep(0.2)
            assert not found
            disk.free.set()
            await until(lambda: len(found) == 3)
        await collecting
    assert [(each["type"], each.get("price")) for each in found] == [
        ("trade", 1),
        ("trade", 2),
        ("error", None),
    ]


@pytest.mark.parametrize("ring_bytes", [0, 8 << 20])
async def test_live_messages_are_sent_in_order_while_the_disk_hangs(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring_bytes: int
) -> None:
    """Each of them is published later, or counted as not journalled."""
    async with ScriptedExchange() as exchange:
        monkeypatch.setenv("WSS_URL_BITMEX", exchange.ws_url)
        file = tmp_path / "events"
        journal = {"dir": tmp_path / "journal", "ring_bytes": ring_bytes}
        served = await start(event_bus=FileConfig(path=file), journal=journal)
        options = {"exchange": "bitmex", "symbols": [XBT], "dataTypes": ["trade"]}
        async with served.client.ws_connect(served.ws("/ws-stream-normalized", options)) as socket:
            peer = await exchange.accepted()
            disk = HangingDisk(monkeypatch, "statvfs" if ring_bytes else "writev")
            prices = []
            for number in range(1, 31):
                await peer.send(bitmex_trade(number))
                if number == 10:
                    prices.append(json.loads((await socket.receive()).data)["price"])
            while len(prices) < 30:
                prices.append(json.loads((await socket.receive()).data)["price"])
            assert prices == list(range(1, 31))
            async with served.client.get(served.http("/health-check")) as response:
                assert response.status == 200
            disk.free.set()
        report = await served.machine.stop()
    assert report is not None
    outbox = served.machine._outbox
    assert outbox is not None
    published = [decode(base64.b64decode(each["value"])).message for each in events(file)]
    assert len(published) == report.buses[0].account.journalled
    assert len(published) + outbox.scribe.lost == 30


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"event_bus": "kafka"}, "event_bus 'str': expected the settings of a bus"),
        ({"event_bus": {"topic": "x"}}, '"provider"'),
        ({"event_bus": {"provider": "kafak"}}, "kafak"),
        ({"event_bus": {"provider": "kafka"}}, "kafka"),
        ({"event_bus": {"provider": "kafka", "brokers": "a:1", "topics": "x"}}, "topics"),
        ({"redis": {"url": "x"}}, "--redis-stream"),
        ({"redis": {"stream": "s", "url": "x"}}, "--redis-url"),
        ({"event_bus": {"provider": "kinesis"}}, "kinesis"),
        ({"sqs": {"queueUrl": "bronze"}}, "the queue's URL"),
        ({"prot": 1}, "prot"),
        ({"port": "many"}, "whole number"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TardisMachine(**settings)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("bus", "settings"),
    [
        ("kafka", {"brokers": ["h:9092"], "topic": "t", "topicRouting": {"trade": "x"}}),
        ("nats", {"servers": ["nats://h"], "subject": "s"}),
        ("kinesis", {"stream": "s", "region": "eu-west-1", "partitionKeyTemplate": "{{symbol}}"}),
        ("sqs", {"queueUrl": "https://h/1/q", "staticAttributes": {"team": "quant"}}),
        ("redis", {"stream": "s", "maxLen": 1_000, "keyTemplate": "s:{{symbol}}"}),
    ],
)
@pytest.mark.parametrize("form", ["provider", "keyword"])
def test_each_bus_has_both_forms(bus: str, settings: dict[str, Any], form: str) -> None:
    given = {"event_bus": {"provider": bus, **settings}} if form == "provider" else {bus: settings}

    TardisMachine(sample_data=True, **given)


def test_two_buses_by_the_same_name_are_one_too_many(tmp_path: Path) -> None:
    bus = {"path": str(tmp_path / "events")}
    with pytest.raises(ConfigError, match="event_bus names file"):
        TardisMachine(event_bus={"provider": "file"} | bus, file=bus)
