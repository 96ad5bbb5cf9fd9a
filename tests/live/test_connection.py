"""A connection's life: what is subscribed, what arrives, how it ends and begins again."""

import asyncio
import gc
from dataclasses import replace

import aiohttp
import pytest

from tardis_machine import stream_normalized
from tardis_machine.config import ConfigError
from tardis_machine.live.errors import ClosedError, SlowConsumerError
from tardis_machine.live.hub import Hub
from tardis_machine.live.settings import LiveConfig
from tardis_machine.live.stream import StreamEndedError
from tests.support.live_streams import QUICK, environ_of, streaming
from tests.support.servers.exchange import PATIENCE_S, ScriptedExchange

XBT = "XBTUSD"


def trade(price: float, **more: object) -> dict[str, object]:
    row = {"timestamp": "2024-03-01T00:00:00.500Z", "symbol": XBT, "side": "Buy", "size": 1}
    return {"table": "trade", "action": "insert", "data": [{**row, "price": price, **more}]}


async def test_messages_arrive_normalized() -> None:
    async with ScriptedExchange() as exchange, streaming(exchange, "bitmex", ["trade"]) as reader:
        peer = await exchange.accepted()
        assert await peer.received() == {"op": "subscribe", "args": ["trade"]}
        await peer.send({"info": "Welcome"})
        await peer.send(trade(61130.5))
        message = await reader.next()
    assert message["price"] == 61130.5
    assert len(message["localTimestamp"]) == 27
    await peer.gone()
    assert peer.close_code == 1000


async def test_stream_with_64_mib_unread_fails() -> None:
    async with stream_normalized("bitmex", data_types="trade") as stream:
        stream.send(bytes(64 << 20), 1)
        with pytest.raises(
            SlowConsumerError, match=r"^67108865 bytes .* the 67108864 that are kept$"
        ):
            stream.send(b"\n", 1)


async def test_empty_symbols_are_subscribed_as_all_symbols() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], []) as reader,
    ):
        peer = await exchange.accepted()
        assert await peer.received() == {"op": "subscribe", "args": ["trade"]}
        await peer.send({"info": "Welcome"})
        await peer.send(trade(61130.5))
        assert (await reader.next())["symbol"] == XBT


@pytest.mark.parametrize(
    ("config", "agent"),
    [(QUICK, "Mozilla/5.0 "), (replace(QUICK, live_user_agent="desk/1.0"), "desk/1.0")],
)
async def test_handshake_carries_the_user_agent_of_the_settings(
    config: LiveConfig, agent: str
) -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], config=config),
    ):
        peer = await exchange.accepted()
    assert peer.headers["User-Agent"].startswith(agent)


@pytest.mark.parametrize("agent", ["", " ", "desk\r\nX-Evil: 1", "d\xe9sk"])
def test_user_agent_that_no_header_can_hold_is_refused(agent: str) -> None:
    with pytest.raises(ConfigError, match="--live-user-agent"):
        LiveConfig(live_user_agent=agent).validate()


async def test_messages_before_a_close_are_sent_before_the_disconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tardis_machine.live.inbox._STEP_S", 0.0)  # a frame a step: a busy machine
    count = 500
    async with ScriptedExchange() as exchange, streaming(exchange, "bitmex", ["trade"]) as reader:
        peer = await exchange.accepted()
        await peer.received()
        for price in range(count):
            await peer.send(trade(price + 1.0))
        await peer.close()
        found = [await reader.next() for _ in range(count + 1)]
    assert [each["type"] for each in found] == ["trade"] * count + ["disconnect"]


async def test_failed_ping_or_pong_loses_no_message_before_the_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def too_late(*_: object) -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    for kind in ("ping", "pong"):
        monkeypatch.setattr(aiohttp.ClientWebSocketResponse, kind, too_late)
    async with ScriptedExchange() as exchange, streaming(exchange, "bitmex", ["trade"]) as reader:
        peer = await exchange.accepted()
        await peer.received()
        await peer.ping()
        await peer.send(trade(1.0))
        await peer.close(1012, "restart")
        found = [await reader.next() for _ in range(2)]
    assert [each["type"] for each in found] == ["trade", "disconnect"]
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], timeoutIntervalMS=3000) as reader,
    ):
        await exchange.accepted()
        assert (await reader.next())["details"] == "cannot send: Cannot write to closing transport"
    assert not [each for each in caplog.records if each.exc_info]


async def test_pings_with_a_tiny_timeout_keep_their_least_interval() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["liquidation"], ["BTCUSDT"], timeoutIntervalMS=1),
    ):
        peer = await exchange.accepted()
        await asyncio.sleep(0.5)
        assert peer.pings < 3
        assert exchange.waiting() == 0  # of a channel that is quiet by nature


async def test_connection_that_answers_pings_is_not_stale() -> None:
    impatient = LiveConfig(live_silence_s=0.4)
    async with (
        ScriptedExchange() as exchange,
        streaming(
            exchange, "binance-futures", ["liquidation"], ["BTCUSDT"], config=impatient
        ) as reader,
    ):
        peer = await exchange.accepted()
        async with asyncio.timeout(PATIENCE_S):
            while peer.pings < 4:
                await asyncio.sleep(0.05)
                assert not reader.lines
        peer.answers_pings = False
        assert "no sign of life" in (await reader.next())["details"]


@pytest.mark.parametrize(
    ("name", "symbol"), [("okex-swap", "BTC-USDT-SWAP"), ("bitget", "BTCUSDT")]
)
async def test_text_pings_are_sent_and_their_answers_count_as_signs_of_life(
    name: str, symbol: str
) -> None:
    config = LiveConfig(live_silence_s=1.0)
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, name, ["book_ticker"], [symbol], config=config) as reader,
    ):
        peer = await exchange.accepted()
        assert (await peer.received())["op"] == "subscribe"
        for _ in range(4):
            assert await peer.received() == "ping"
            assert not reader.lines
            await peer.send("pong")
        assert peer.pings == 0
        assert "no sign of life" in (await reader.next())["details"]


def test_stream_left_at_the_end_of_its_event_loop_leaves_no_socket_open(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave() -> None:
        async with ScriptedExchange() as exchange:
            monkeypatch.setenv("WSS_URL_BITMEX", exchange.ws_url)
            stream = stream_normalized("bitmex", data_types=["trade"])
            reading = asyncio.ensure_future(anext(aiter(stream)))
            peer = await exchange.accepted()
            await peer.received()
            await peer.send(trade(1.0))
            await reading

    asyncio.run(leave())
    gc.collect()
    assert not [each for each in caplog.records if "Unclosed" in each.getMessage()]


async def test_second_loop_over_a_stream_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedExchange() as exchange:
        monkeypatch.setenv("WSS_URL_BITMEX", exchange.ws_url)
        async with (
            asyncio.timeout(PATIENCE_S),
            stream_normalized("bitmex", data_types=["trade"]) as stream,
        ):
            reading = asyncio.ensure_future(anext(aiter(stream)))
            peer = await exchange.accepted()
            await peer.received()
            with pytest.raises(StreamEndedError, match="is being read, or was left"):
                await anext(stream.batches())
            await peer.send(trade(1.0))
            assert (await reading).price == 1.0
            with pytest.raises(StreamEndedError, match="was left"):
                await anext(aiter(stream))
        with pytest.raises(StreamEndedError, match="was closed"):
            await anext(aiter(stream))


@pytest.mark.parametrize("turns", range(8))
async def test_stream_stopped_while_a_connection_ends_leaves_no_socket_open(turns: int) -> None:
    async with ScriptedExchange() as exchange:
        hub = Hub(QUICK, environ=environ_of(exchange, "bitmex"))
        async with streaming(None, "bitmex", ["trade"], hub=hub):
            peer = await exchange.accepted()
            await peer.received()
            [feed] = hub._feeds.values()
            [connection] = feed._connections
            connection.fail(ClosedError(1006, ""))
            for _ in range(turns):
                await asyncio.sleep(0)
            await feed.stop()
            assert hub.resources.statistics.connections == {"bitmex": 0}
            await peer.gone()
        await hub.close()
