"""Every exchange's live data: it connects, subscribes as it should, and survives what happens."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tardis_machine import exchanges
from tardis_machine.live.hub import Hub
from tardis_machine.live.plan import plan
from tests.support.dialects import FACTS, LIVE
from tests.support.live_streams import QUICK, Reader, environ_of, streaming
from tests.support.servers.exchange import PATIENCE_S, Peer, ScriptedExchange
from tests.vectors.dialects import same_sources


def case_of(name: str) -> tuple[str, list[str] | None, list[dict[str, Any]]]:
    """Choose a type of the facts that is subscribed over a WebSocket, with what is expected."""
    for case in FACTS[name]["subscribes"]:
        sources = [each for each in case["sources"] if "polling" not in each]
        if sources:
            return case["type"], case["symbols"], sources
    raise AssertionError(f"{name} subscribes to nothing")


def hub_of(exchange: ScriptedExchange, name: str) -> Hub:
    secrets = exchanges.get(name).live.secrets  # type: ignore[union-attr]
    environ = environ_of(exchange, name)
    if secrets is not None and not secrets.optional:
        environ |= dict.fromkeys(secrets.names, "c2VjcmV0")
    return Hub(QUICK, environ=environ)


async def subscribed(exchange: ScriptedExchange, expected: list[dict[str, Any]]) -> list[Peer]:
    """Accept the connections that are expected, and compare what they subscribe to."""
    peers = [await exchange.accepted() for _ in expected]
    left = list(expected)
    for peer in peers:
        # Of an exchange with one endpoint the override is the whole URL.
        one = next((e for e in left if urlsplit(e["url"]).path in peer.path), left[0])
        left.remove(one)
        messages: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while not same_sources([{"url": "", "subscribe": messages}], [one | {"url": ""}]):
                messages.append(await peer.received())
                if messages[0] not in one["subscribe"] and len(messages) > len(one["subscribe"]):
                    messages.pop(0)  # a greeting
    return peers


@pytest.mark.parametrize("name", LIVE)
async def test_every_exchange_subscribes_and_survives(name: str) -> None:
    data_type, symbols, expected = case_of(name)
    async with ScriptedExchange() as exchange:
        hub = hub_of(exchange, name)
        try:
            async with streaming(exchange, name, [data_type], symbols, hub=hub) as reader:
                await _survives(exchange, expected, reader, hub)
        finally:
            await hub.close()


async def _survives(
    exchange: ScriptedExchange, expected: list[dict[str, Any]], reader: Reader, hub: Hub
) -> None:
    peers = await subscribed(exchange, expected)
    for peer in peers:
        peer.cut()
    await reader.until("disconnect")
    peers = await subscribed(exchange, expected)
    for peer in peers:
        await peer.close(1012, "restart")
    peers = await subscribed(exchange, expected)
    for peer in peers:
        await peer.send("{garbage")
    while "not a message" not in (await reader.until("error"))["details"]:
        pass
    refused = 0

    def busy(_: web.Request) -> web.Response | None:
        nonlocal refused
        refused += 1
        if refused > 2 * len(expected):
            return None
        return web.Response(status=429, headers={"Retry-After": "0.01"})

    exchange.refuse = busy
    await subscribed(exchange, expected)
    limited = sum(
        count
        for (_, code), count in hub.resources.statistics.errors.items()
        if code == "SOURCE_RATE_LIMIT"
    )
    assert limited >= 1


@pytest.mark.parametrize("name", LIVE)
async def test_a_stall_is_noticed_unless_the_channels_are_quiet(name: str) -> None:
    data_type, symbols, expected = case_of(name)
    async with ScriptedExchange() as exchange:
        hub = hub_of(exchange, name)
        planned = plan(exchanges.get(name), [data_type], symbols, hub.resources.environ)
        quiet = any(
            planned.dialect.quiet.issuperset(f.channel for f in each.filters)
            for each in planned.connections
        )
        try:
            more = {"timeoutIntervalMS": 400}
            async with streaming(exchange, name, [data_type], symbols, hub=hub, **more) as reader:
                peers = await subscribed(exchange, expected)
                if quiet:
                    await asyncio.sleep(1.0)
                    assert not all(peer.ended.is_set() for peer in peers)
                else:
                    await reader.until("disconnect")
                    await subscribed(exchange, expected)
        finally:
            await hub.close()
