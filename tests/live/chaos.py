"""A server that streams from a failing exchange to a client and to a bus, and what became of it."""

import asyncio
import gc
import json
import os
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import aiohttp

from tardis_machine.server.app import TardisMachine
from tests.live.simulator import Judge, Simulator
from tests.support.servers.exchange import ScriptedExchange
from tests.support.waiting import until

SYMBOLS = ["BTCUSDT", "ETHUSDT", "SOLUSDT"]
_SETTINGS = {"live_reconnect_s": 0.05, "live_reconnect_max_s": 0.5, "live_stable_s": 1.0}


class Report(NamedTuple):
    """What happened, and what it cost."""

    messages: int
    judged: int
    snapshots: int
    faults: dict[str, int]
    disconnects: int
    errors: int
    grown_mb: float


async def endure(seconds: float, folder: Path, seed: int) -> Report:
    """Stream for so long; assert that every book was right and nothing is left over."""
    async with ScriptedExchange() as exchange:
        simulator = Simulator(exchange, SYMBOLS, seed)
        os.environ["WSS_URL_BINANCE_FUTURES"] = exchange.ws_url
        os.environ["REST_URL_BINANCE_FUTURES"] = exchange.rest_url
        simulating = asyncio.create_task(simulator.run())
        try:
            return await _watch(simulator, seconds, folder)
        finally:
            simulating.cancel()
            await asyncio.gather(simulating, return_exceptions=True)
            del os.environ["WSS_URL_BINANCE_FUTURES"], os.environ["REST_URL_BINANCE_FUTURES"]


async def _watch(simulator: Simulator, seconds: float, folder: Path) -> Report:
    file = folder / "events.ndjson"
    machine = TardisMachine(
        sample_data=True,
        event_bus={"provider": "file", "path": str(file)},
        journal={"dir": folder / "journal"},
        **_SETTINGS,
    )
    await machine.start(0)
    options = {
        "exchange": "binance-futures",
        "symbols": SYMBOLS,
        "dataTypes": ["book_change"],
        "withDisconnectMessages": True,
        "withErrorMessages": True,
        "timeoutIntervalMS": 500,
    }
    address = f"127.0.0.1:{machine.port + 1}"
    url = f"ws://{address}/ws-stream-normalized?options={quote(json.dumps(options))}"
    judge = Judge(simulator.markets)
    counts = {"book_change": 0, "disconnect": 0, "error": 0}
    async with aiohttp.ClientSession() as client:
        socket = await client.ws_connect(url)
        tasks, began = 0, time.monotonic()
        first_mb = 0.0
        while (elapsed := time.monotonic() - began) < seconds:
            async with asyncio.timeout(60):
                message = await socket.receive()
            assert message.type is aiohttp.WSMsgType.TEXT, message
            found = json.loads(message.data)
            counts[found["type"]] += 1
            if found["type"] == "disconnect":
                judge.disconnect()
            elif found["type"] == "book_change":
                judge.judge(found)
            if not first_mb and elapsed > seconds / 4:
                gc.collect()
                first_mb, tasks = _resident_mb(), len(asyncio.all_tasks())
        gc.collect()
        grown_mb = _resident_mb() - first_mb
        assert len(asyncio.all_tasks()) < tasks + 20
        await socket.close()
    value = machine.metrics.registry.get_sample_value
    await until(lambda: not value("tardis_machine_live_clients", {"exchange": "binance-futures"}))
    report = await machine.stop()
    assert report is not None
    assert report.pending == 0
    # The bus has all that the client has, and perhaps what came after it left.
    published = len(file.read_bytes().splitlines())
    assert published >= sum(counts.values())
    await until(
        lambda: not value("tardis_machine_live_connections", {"exchange": "binance-futures"})
    )
    left = [task for task in asyncio.all_tasks() if "live" in repr(task.get_coro())]
    assert [task for task in left if "tardis_machine" in repr(task)] == []
    return Report(
        messages=sum(counts.values()),
        judged=judge.judged,
        snapshots=judge.snapshots,
        faults=simulator.faults,
        disconnects=counts["disconnect"],
        errors=counts["error"],
        grown_mb=round(grown_mb, 1),
    )


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
