"""A connection's life: what is subscribed, what arrives, how it ends and begins again."""

from tests.live.streams import streaming
from tests.servers.exchange import ScriptedExchange

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
