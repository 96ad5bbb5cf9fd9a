"""Watches trades with CCXT until the exchange hangs up, then prints them: NAME URL MARKET."""

import asyncio
import json
import sys

import ccxt.pro  # type: ignore[import-not-found]


async def main(name: str, url: str, market: str) -> None:
    exchange = getattr(ccxt.pro, name)({"options": {"tradesLimit": 1_000_000}})
    exchange.urls["api"]["ws"] = dict.fromkeys(exchange.urls["api"]["ws"], url)
    known = exchange.safe_market_structure(json.loads(market))
    exchange.set_markets([known])
    try:
        while True:
            await exchange.watch_trades(known["symbol"])
    except ccxt.NetworkError as error:
        print(error, file=sys.stderr)
    finally:
        await exchange.close()
    for trade in exchange.trades[known["symbol"]]:
        print(trade["id"], trade["price"], trade["amount"], trade["side"])


asyncio.run(main(*sys.argv[1:]))
