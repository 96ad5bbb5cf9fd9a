"""`/ws-stream-normalized`: live streams of a scripted exchange, to clients and to a bus."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tests.support.live_messages import XBT, bitmex_book, bitmex_trade
from tests.support.served import Served, Start
from tests.support.servers.exchange import PATIENCE_S, ScriptedExchange
from tests.support.servers.tardis_api import Fault, TardisApi
from tests.support.waiting import until

TRADES = {"exchange": "bitmex", "symbols": [XBT], "dataTypes": ["trade"]}
BOOKS = {"exchange": "bitmex", "symbols": [XBT], "dataTypes": ["book_change"]}
QUICK = {"live_reconnect_s": 0.02, "live_reconnect_max_s": 0.04, "live_stable_s": 0.1}
PATH = "/ws-stream-normalized"

Socket = aiohttp.ClientWebSocketResponse[bool]


@pytest.fixture
async def exchange(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedExchange]:
    async with ScriptedExchange() as running:
        monkeypatch.setenv("WSS_URL_BITMEX", running.ws_url)
        yield running


async def publishing(start: Start, tmp_path: Path) -> tuple[Served, Path]:
    """Start a server with a bus; give the file that this writes."""
    file = tmp_path / "events.ndjson"
    served = await start(
        event_bus={"provider": "file", "path": str(file)},
        journal={"dir": tmp_path / "journal"},
        **QUICK,
    )
    return served, file


async def connect(served: Served, options: Any) -> Socket:
    return await served.client.ws_connect(served.ws(PATH, options), max_msg_size=0)


async def next_message(socket: Socket) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        found: dict[str, Any] = await socket.receive_json()
        return found


async def close_of(socket: Socket) -> tuple[int | None, str]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await socket.receive()
            if message.type is WSMsgType.CLOSE:
                return message.data, message.extra or ""
            assert message.type is WSMsgType.TEXT


async def test_messages_go_out_as_they_arrive(start: Start, exchange: ScriptedExchange) -> None:
    served = await start(**QUICK)
    socket = await connect(served, TRADES)
    peer = await exchange.accepted()
    await peer.send(bitmex_trade(5))
    message = await next_message(socket)
    assert list(message) == [
        *("type", "symbol", "exchange", "price", "amount", "side", "timestamp"),
        "localTimestamp",
    ]
    await socket.close()
    await peer.gone()
    assert peer.close_code == 1000


async def test_control_messages_go_to_clients_that_requested_them(
    start: Start, exchange: ScriptedExchange
) -> None:
    served = await start(**QUICK)
    plain = await connect(served, TRADES)
    told = await connect(
        served, TRADES | {"withDisconnectMessages": True, "withErrorMessages": True}
    )
    peer = await exchange.accepted()
    await peer.send(bitmex_trade(1))
    trade = await next_message(told)
    await peer.send({"error": "The system is overloaded."})
    error = await next_message(told)
    assert list(error) == ["type", "exchange", "localTimestamp", "details", "subSequentErrorsCount"]
    assert error["subSequentErrorsCount"] == 1
    disconnect = await next_message(told)
    assert disconnect == {
        "type": "disconnect",
        "exchange": "bitmex",
        "localTimestamp": trade["localTimestamp"],
        "symbols": [XBT],
    }
    peer = await exchange.accepted()
    await peer.send(bitmex_trade(2))
    assert [(await next_message(plain))["price"] for _ in range(2)] == [1, 2]
    assert exchange.waiting() == 0  # one connection for both


async def test_client_that_joins_later_gets_the_current_book(
    start: Start, exchange: ScriptedExchange
) -> None:
    served = await start(**QUICK)
    first = await connect(served, BOOKS)
    peer = await exchange.accepted()
    await peer.send(bitmex_book("partial", (1, 100, 5), (2, 99, 6)))
    await peer.send(bitmex_book("update", (1, 100, 7)))
    await peer.send(bitmex_book("delete", (2, 99, 0)))
    for _ in range(3):
        await next_message(first)
    second = await connect(served, BOOKS)
    book = await next_message(second)
    assert book["isSnapshot"]
    assert book["bids"] == [{"price": 100, "amount": 7}]
    await peer.send(bitmex_book("update", (1, 100, 8)))
    assert await next_message(first) == await next_message(second)
    assert exchange.waiting() == 0


async def test_slow_client_is_closed_and_delays_no_other(
    start: Start, exchange: ScriptedExchange
) -> None:
    served = await start(**QUICK)
    slow = await connect(served, TRADES)
    quick = await connect(served, TRADES)
    peer = await exchange.accepted()
    transport = slow._response.connection.transport  # type: ignore[union-attr]
    assert transport is not None
    transport.pause_reading()
    many = bitmex_trade(1)
    many["data"] = many["data"] * 500
    received = 0

    async def read() -> None:
        nonlocal received
        while True:
            await next_message(quick)
            received += 1

    reading = asyncio.create_task(read())
    sent = 0
    ended = served.machine.metrics.responses.labels(PATH, "failed")
    while ended._value.get() == 0:
        await peer.send(many)
        sent += 500
        await asyncio.sleep(0)
    await until(lambda: received == sent)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    transport.resume_reading()
    assert await close_of(slow) == (1008, "Too much backpressure")
    await quick.close()


async def test_fifty_errors_in_a_row_end_the_stream(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSS_URL_BITMEX", "ws://127.0.0.1:1")
    served = await start(live_reconnect_s=0.0, live_reconnect_max_s=0.0)
    socket = await connect(served, TRADES | {"withErrorMessages": True})
    counts = []
    async with asyncio.timeout(PATIENCE_S):
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            counts.append(json.loads(message.data)["subSequentErrorsCount"])
    assert counts == list(range(1, 51))
    reason = "Too many subsequent errors when connecting to  bitmex WS API"
    assert (message.data, message.extra) == (1011, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exchange": "bitmax", "dataTypes": ["trade"]}, 'invalid "exchange"'),
        ({"exchange": "bitmex", "dataTypes": ["option_summary"]}, "invalid data type"),
        ({"exchange": "deribit", "dataTypes": ["trade"]}, 'deribit: invalid "symbols": none'),
    ],
)
async def test_invalid_request_is_closed_at_once(
    start: Start, options: dict[str, Any], reason: str
) -> None:
    served = await start()
    code, text = await close_of(await connect(served, options))
    assert code == 1011
    assert text.startswith(reason)


async def test_stopping_server_closes_with_1001(start: Start, exchange: ScriptedExchange) -> None:
    served = await start(**QUICK)
    socket = await connect(served, TRADES)
    peer = await exchange.accepted()
    stopping = asyncio.create_task(served.machine.stop())
    assert (await close_of(socket))[0] == 1001
    await socket.close()
    await stopping
    await peer.gone()
    stopped = served.machine.metrics.responses.labels(PATH, "stopped")
    assert stopped._value.get() == 1


async def test_everything_live_reaches_the_buses_once(
    start: Start, exchange: ScriptedExchange, tmp_path: Path
) -> None:
    served, file = await publishing(start, tmp_path)
    clients = [await connect(served, TRADES) for _ in range(2)]
    unpublished = await connect(served, BOOKS | {"publish": False})
    peers = [await exchange.accepted(), await exchange.accepted()]
    trades, books = peers if "trade" in str(await peers[0].received()) else peers[::-1]
    await books.send(bitmex_book("partial", (1, 100, 5)))
    await next_message(unpublished)
    await trades.send(bitmex_trade(1))
    for client in clients:
        await next_message(client)
    await trades.close(1012, "maintenance")
    again = await exchange.accepted()
    await again.close(1001)
    await exchange.accepted()
    report = await served.machine.stop()
    assert report is not None
    assert report.pending == 0
    trade, disconnect, error = events(file)
    assert trade.trade.price_str == "1"
    assert {each.origin for each in (trade, disconnect, error)} == {pb.ORIGIN_REALTIME}
    assert [each.position for each in (trade, disconnect, error)] == [0, 1, 2]
    assert disconnect.disconnect.reason == "connection closed, code 1012: maintenance"
    assert disconnect.disconnect.close_code == 1012
    assert list(disconnect.disconnect.symbols.symbols) == [XBT]
    assert error.error.details == "connection closed, code 1001"
    assert error.error.code == pb.ERROR_CODE_WS_CONNECT
    assert error.error.subsequent_errors == 1


async def test_positions_are_counted_over_all_streams_of_a_response(
    start: Start, exchange: ScriptedExchange, tmp_path: Path
) -> None:
    served, file = await publishing(start, tmp_path)
    symbols = ("A", "B")
    client = await connect(served, [TRADES | {"symbols": [each]} for each in symbols])
    peers = [await exchange.accepted(), await exchange.accepted()]
    asked = [str(await peer.received()) for peer in peers]
    first = next(peer for peer, text in zip(peers, asked, strict=True) if "trade:A" in text)
    second = next(peer for peer in peers if peer is not first)
    for price in range(0, 4, 2):
        await first.send(bitmex_trade(price, "A"))
        await next_message(client)
        await second.send(bitmex_trade(price + 1, "B"))
        await next_message(client)
    await client.close()
    await served.machine.stop()
    found = [each for each in events(file) if each.WhichOneof("payload") == "trade"]
    assert [(each.position, each.trade.price_str) for each in found] == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
        (3, "3"),
    ]


async def test_errors_of_replays_reach_the_buses_too(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    file = tmp_path / "events.ndjson"
    served = await start(
        sample_data=False,
        endpoint=tardis_api.endpoint,
        cache_dir=tmp_path / "cache",
        event_bus={"provider": "file", "path": str(file)},
        journal={"dir": tmp_path / "journal"},
    )
    tardis_api.fail(*[Fault(status=401, body="no key")] * 4)
    options = TRADES | {"from": "2024-03-02", "to": "2024-03-02T00:02"}
    socket = await served.client.ws_connect(served.ws("/ws-replay-normalized", options))
    code, reason = await close_of(socket)
    assert code == 1011
    await served.machine.stop()
    (event,) = events(file)
    assert event.exchange == "bitmex"
    assert event.error.details.startswith(reason[:20])
    assert event.error.code == pb.ERROR_CODE_SOURCE_AUTH


def events(file: Path) -> list[pb.NormalizedEvent]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [pb.NormalizedEvent.FromString(b64decode(line["value"])) for line in lines]


async def test_stream_of_closed_exchange_is_refused_with_reason(start: Start) -> None:
    served = await start(**QUICK)
    asked = {"exchange": "ftx", "symbols": ["BTC-PERP"], "dataTypes": ["trade"]}
    socket = await connect(served, asked)
    assert await close_of(socket) == (
        1011,
        "ftx: no live data, the exchange has closed; history only, unless WSS_URL_FTX is set",
    )
