"""Replay over the WebSocket API: one frame is one normalized message.

Start a server first, such as: tardis-machine --sample-data (which is synthetic, generated data)
"""

import argparse
import asyncio
import json
from urllib.parse import quote

import aiohttp


async def replay(url: str, options: dict[str, object]) -> int:
    """Print trades and bars as they come; give the number of messages."""
    received = 0
    address = f"{url}/ws-replay-normalized?options={quote(json.dumps(options))}"
    async with aiohttp.ClientSession() as client, client.ws_connect(address) as websocket:
        async for frame in websocket:
            message = json.loads(frame.data)
            received += 1
            if message["type"] == "trade_bar":
                print(
                    f"{message['timestamp']} {message['symbol']:<10} close {message['close']:<10} "
                    f"volume {message['volume']:.3f} in {message['trades']} trades"
                )
    if websocket.close_code != 1000:  # anything else means that it was cut short
        raise SystemExit(f"the replay ended early: close code {websocket.close_code}")
    return received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="ws://localhost:8001", help="the server's HTTP port + 1")
    parser.add_argument("--exchange", default="binance-futures")
    parser.add_argument("--symbol", default="BTCUSDT")
    arguments = parser.parse_args()
    options: dict[str, object] = {
        "exchange": arguments.exchange,
        "symbols": [arguments.symbol],
        "from": "2024-03-01T00:00",
        "to": "2024-03-01T00:02",
        "dataTypes": ["trade", "trade_bar_10s"],
    }
    print(f"{asyncio.run(replay(arguments.url, options))} messages")


if __name__ == "__main__":
    main()
