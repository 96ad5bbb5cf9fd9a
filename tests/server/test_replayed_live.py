"""Our own /ws-replay as the exchange: a live stream of it is the replay of the same data."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tardis_machine.history import History
from tardis_machine.history.recorded_lines import MESSAGE
from tardis_machine.history.sample import SAMPLE
from tardis_machine.live.addresses import variable
from tardis_machine.live.hub import Hub
from tardis_machine.replays import replay_normalized
from tardis_machine.replays.requests import parse_time
from tests.support.live_messages import DEPTH
from tests.support.live_streams import QUICK, streaming
from tests.support.served import Served
from tests.support.servers.exchange import Peer, ScriptedExchange

FROM, TO = "2024-03-01T00:00", "2024-03-01T00:01"
PATIENT = replace(QUICK, live_silence_s=0.0)
"""No limit of silence: `/ws-replay` sends nothing until it has waited for subscriptions."""

Book = dict[tuple[str, str], dict[float, float]]


def replay_url(served: Served, name: str) -> str:
    query = urlencode({"exchange": name, "from": FROM, "to": TO})
    return f"ws://127.0.0.1:{served.port + 1}/ws-replay?{query}"


def replayed(name: str, types: list[str], symbols: list[str]) -> list[dict[str, Any]]:
    replay = replay_normalized(
        exchange=name, from_=FROM, to=TO, symbols=symbols, data_types=types, sample=True
    )
    return [
        msgspec.json.decode(line) for each in replay.batches() for line in each.data.splitlines()
    ]


def timeless(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop local times, and what stands in for a time that the exchange does not tell."""
    found = []
    for message in messages:
        local = message.pop("localTimestamp")
        if message["timestamp"][:23] == local[:23]:
            del message["timestamp"]
        found.append(message)
    return found


async def streamed(
    hub: Hub, name: str, types: list[str], symbols: list[str]
) -> list[dict[str, Any]]:
    """Stream until the exchange has replayed everything and closes its only connection."""
    found = []
    async with streaming(None, name, types, symbols, hub=hub) as reader:
        while (message := await reader.next())["type"] != "disconnect":
            assert message["type"] != "error", message
            found.append(message)
    await hub.close()
    return found


@pytest.mark.parametrize(
    ("name", "types", "symbols"),
    [
        ("bitmex", ["trade", "book_change", "derivative_ticker", "book_ticker"], ["XBTUSD"]),
        ("bitmex", ["book_snapshot_5_1s", "trade_bar_10s", "quote"], ["XBTUSD"]),
        ("deribit", ["trade", "book_change", "derivative_ticker"], ["BTC-PERPETUAL"]),
        ("deribit", ["book_ticker", "liquidation", "option_summary"], ["BTC-PERPETUAL"]),
    ],
)
async def test_a_live_stream_equals_the_replay_of_its_data(
    served: Served, name: str, types: list[str], symbols: list[str]
) -> None:
    hub = Hub(PATIENT, environ={variable("WSS_URL", name): replay_url(served, name)})
    found = await streamed(hub, name, types, symbols)
    expected = replayed(name, types, symbols)
    assert timeless(found) == timeless(expected)
    assert found


def folded(messages: Iterable[dict[str, Any]]) -> Book:
    books: Book = {}
    for message in messages:
        for side in ("bids", "asks"):
            key = (message["symbol"], side)
            if message["isSnapshot"]:
                books[key] = {}
            for level in message[side]:
                books[key][level["price"]] = level["amount"]
    return {
        key: {price: amount for price, amount in levels.items() if amount}
        for key, levels in books.items()
    }


CHANNELS = {"/public/stream": 3, "/market/stream": 1}
"""Subscriptions that binance-futures gets at each endpoint: one message a channel."""


async def relay(peer: Peer, url: str) -> None:
    """Replay the client's subscriptions to it, and leave the connection open."""
    subscriptions = [await peer.received() for _ in range(CHANNELS[peer.path])]
    async with aiohttp.ClientSession() as http, http.ws_connect(url, max_msg_size=0) as replay:
        for subscription in subscriptions:
            await replay.send_json(subscription)
        async for message in replay:
            await peer.send(message.data)


async def test_books_started_by_rest_equal_those_of_the_replay(served: Served) -> None:
    name, symbols = "binance-futures", ["BTCUSDT"]
    from_, to = parse_time(FROM, "from"), parse_time(TO, "to")
    with History(source=SAMPLE) as history:
        lines = b"".join(history.read(name, (), from_, to)).splitlines()
    snapshot = next(
        msgspec.json.decode(line[MESSAGE:]) for line in lines if b'"btcusdt@depthSnapshot"' in line
    )
    types = ["trade", "book_change", "book_ticker", "liquidation"]
    messages: list[dict[str, Any]] = []
    async with ScriptedExchange() as exchange:
        exchange.rest[DEPTH] = lambda _: web.json_response(snapshot["data"])
        async with streaming(exchange, name, types, symbols, config=PATIENT) as reader:
            url = replay_url(served, name)
            peers = [await exchange.accepted() for _ in CHANNELS]
            await asyncio.gather(*(relay(peer, url) for peer in peers))
            # The replay may end before the REST answer arrives: a connection that is closed by then
            # never gets its book.
            while not (messages and messages[-1].get("isSnapshot")):
                messages.append(await reader.next())
            # The book's connection ends last: a new one would ask for the snapshot again.
            for peer in sorted(peers, key=lambda peer: peer.path):
                await peer.close()
                while messages[-1]["type"] != "disconnect":
                    messages.append(await reader.next())
                messages.pop()
    assert {message["type"] for message in messages} == set(types)
    expected = replayed(name, types, symbols)
    for kind in ("trade", "book_ticker", "liquidation"):
        of_kind = [m for m in messages if m["type"] == kind]
        assert timeless(of_kind) == timeless(m for m in expected if m["type"] == kind)
    changes = [m for m in messages if m["type"] == "book_change"]
    assert changes[0]["isSnapshot"]
    assert folded(changes) == folded(m for m in expected if m["type"] == "book_change")
