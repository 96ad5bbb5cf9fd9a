"""A market whose true books are known at every update, on an exchange that keeps failing."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from aiohttp import web

from tests.support.live_messages import DEPTH
from tests.support.servers.exchange import Peer, ScriptedExchange

BASE_MS = 1_700_000_000_000
_KEPT = 20_000

Side = dict[str, str]
State = frozenset[tuple[float, float]]


class Market:
    """One symbol: an update changes some bids; every update's book is remembered for a while."""

    def __init__(self, symbol: str, chance: random.Random) -> None:
        self.symbol = symbol
        self.last_id = 1000
        self.book: Side = {str(price): "1" for price in range(100, 120)}
        self.states: dict[int, State] = {}
        self._chance = chance
        self._remember()

    def update(self) -> dict[str, Any]:
        """Change the book; give the message."""
        first, previous = self.last_id + 1, self.last_id
        self.last_id += self._chance.randint(1, 3)
        changes = []
        for _ in range(self._chance.randint(1, 4)):
            price = str(self._chance.randint(90, 130))
            amount = str(self._chance.randint(0, 5))
            changes.append([price, amount])
            if amount == "0":
                self.book.pop(price, None)
            else:
                self.book[price] = amount
        self._remember()
        stamp = BASE_MS + self.last_id
        data = {"e": "depthUpdate", "E": stamp, "T": stamp, "s": self.symbol, "U": first}
        data |= {"u": self.last_id, "pu": previous, "b": changes, "a": []}
        return {"stream": f"{self.symbol.lower()}@depth@0ms", "data": data}

    def snapshot(self) -> dict[str, Any]:
        """Return the book as the REST server does."""
        bids = [[price, amount] for price, amount in self.book.items()]
        stamp = BASE_MS + self.last_id
        return {"lastUpdateId": self.last_id, "T": stamp, "bids": bids, "asks": []}

    def _remember(self) -> None:
        self.states[self.last_id] = frozenset(
            (float(price), float(amount)) for price, amount in self.book.items()
        )
        if len(self.states) > _KEPT:
            del self.states[next(iter(self.states))]


class Simulator:
    """Trades until it is stopped, and fails in a way chosen by chance every now and then."""

    def __init__(self, exchange: ScriptedExchange, symbols: list[str], seed: int) -> None:
        self.chance = random.Random(seed)
        self.markets = {symbol: Market(symbol, self.chance) for symbol in symbols}
        self.faults: dict[str, int] = {}
        self._exchange = exchange
        self._peers: list[tuple[Peer, set[str]]] = []
        self._stalled_until = 0.0
        exchange.rest[DEPTH] = self._answer
        exchange.refuse = self._refuse

    async def run(self) -> None:
        """Go on for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._accept())
            tasks.create_task(self._trade())
            tasks.create_task(self._fail())

    async def _accept(self) -> None:
        while True:
            peer = await self._exchange.accepted()
            asyncio.get_running_loop().create_task(self._listen(peer))

    async def _listen(self, peer: Peer) -> None:
        subscribed: set[str] = set()
        self._peers.append((peer, subscribed))
        while not peer.ended.is_set():
            for message in peer.heard():
                subscribed.update(name.partition("@")[0].upper() for name in message["params"])
                await self._say(peer, {"result": None, "id": message["id"]})
            await asyncio.sleep(0.005)
        self._peers.remove((peer, subscribed))

    async def _trade(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            symbol = self.chance.choice(list(self.markets))
            update = self.markets[symbol].update()
            for peer, subscribed in tuple(self._peers):
                lost = self.chance.random() < 0.0005  # an update that never arrives
                if symbol in subscribed and not lost and loop.time() >= self._stalled_until:
                    await self._say(peer, update)
            await asyncio.sleep(0.001)

    async def _fail(self) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self._cut,
            self._close,
            self._garbage,
            self._stall,
            self._complain,
        ]
        while True:
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
            fault = self.chance.choice(faults)
            self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            await fault()

    async def _cut(self) -> None:
        for peer, _ in tuple(self._peers):
            peer.cut()

    async def _close(self) -> None:
        for peer, _ in tuple(self._peers):
            await peer.close(1012, "restart")

    async def _garbage(self) -> None:
        for peer, _ in tuple(self._peers):
            await self._say(peer, self.chance.choice(['{"stream":"', "\x00", "[[", "{}"]))

    async def _complain(self) -> None:
        for peer, _ in tuple(self._peers):
            await self._say(peer, {"error": {"code": 3, "msg": "overloaded"}})

    async def _stall(self) -> None:
        self._stalled_until = asyncio.get_running_loop().time() + self.chance.uniform(0.1, 1.0)

    async def _say(self, peer: Peer, message: object) -> None:
        try:
            await peer.send(message)
        except ConnectionError:
            return

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        chance = self.chance.random()
        if chance < 0.05:
            return web.Response(status=429, headers={"Retry-After": "0.1"})
        if chance < 0.1:
            return web.Response(status=500)
        if chance < 0.15:
            return web.Response(text="<html>")
        snapshot = self.markets[request.query["symbol"]].snapshot()
        if chance < 0.5:
            await asyncio.sleep(self.chance.uniform(0, 0.2))  # older than what is sent meanwhile
        return web.json_response(snapshot)

    def _refuse(self, _: web.Request) -> web.Response | None:
        return web.Response(status=503) if self.chance.random() < 0.1 else None


class Judge:
    """Follows the books of a stream and holds every state of them against the truth."""

    def __init__(self, markets: dict[str, Market]) -> None:
        self.judged = 0
        self.snapshots = 0
        self._markets = markets
        self._books: dict[str, dict[float, float]] = {}

    def disconnect(self) -> None:
        """Drop all books, as any client does."""
        self._books.clear()

    def judge(self, message: dict[str, Any]) -> None:
        """Apply a change and compare."""
        symbol = message["symbol"]
        book = self._books.get(symbol)
        if message["isSnapshot"]:
            book = self._books[symbol] = {}
            self.snapshots += 1
        assert book is not None, f"a change of {symbol} without a snapshot"
        for level in message["bids"]:
            if level["amount"]:
                book[level["price"]] = level["amount"]
            else:
                book.pop(level["price"], None)
        market = self._markets[symbol]
        state = frozenset(book.items())
        number = _ms(message["timestamp"]) - BASE_MS
        if message["isSnapshot"]:
            # Updates that were waiting are in it: any state since then is a true one.
            later = (market.states[n] for n in market.states if n >= number)
            assert state in later, f"a snapshot of {symbol} that never was"
        elif number in market.states:
            assert state == market.states[number], f"a wrong book of {symbol} at {number}"
        self.judged += 1


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
