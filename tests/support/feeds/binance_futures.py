"""Binance USDT futures, made up: depth updates in sequence, snapshots taken beside them."""

from collections.abc import Collection
from random import Random
from typing import Final

from tests.support.feeds.book import Change, Trade
from tests.support.feeds.feed import Feed, Market, next_funding

CHANNELS: Final = (
    "bookTicker",
    "depth",
    "depthSnapshot",
    "forceOrder",
    "markPrice",
    "openInterest",
    "ticker",
    "trade",
)
SYMBOLS: Final = ("btcusdt", "ethusdt")

_DAY_MS: Final = 24 * 3600 * 1000


class BinanceFuturesFeed(Feed):
    """BTCUSDT and ETHUSDT perpetuals."""

    def __init__(
        self, random: Random, channels: Collection[str] | None = None, depth: int = 60
    ) -> None:
        super().__init__(random, channels)
        self.markets = [
            Market(
                random,
                "BTCUSDT",
                price=61_150,
                tick=0.1,
                lot=0.001,
                mean_lots=900,
                depth=depth,
                weight=2,
            ),
            Market(
                random, "ETHUSDT", price=3340, tick=0.01, lot=0.001, mean_lots=14_000, depth=depth
            ),
        ]
        self._update_ids = {each.symbol: random.randrange(4 * 10**12) for each in self.markets}
        self._trade_ids = {each.symbol: random.randrange(4 * 10**9) for each in self.markets}

    def opening(self, now: int) -> list[str]:
        messages = []
        for market in self.markets:
            # The snapshot comes by another way than the updates: some overtake it.
            messages += self._depth(market, _changes(market, 3), now)
            snapshot = self._snapshot(market)
            messages += self._depth(market, _changes(market, 3), now)
            if self.has("depthSnapshot"):
                messages.append(snapshot)
        return messages + self._polled()

    def event(self, now: int) -> list[str]:
        market, draw = self.market(), self.random.random()
        top = market.book.best_bid, market.book.best_ask
        if draw < 0.35:
            trades = [market.book.trade() for _ in range(1 + (self.random.random() < 0.3))]
            messages = self._trades(market, trades, now)
            messages += self._depth(market, [each.change for each in trades], now)
        elif draw < 0.354 and self.has("forceOrder"):
            messages = [self._force_order(market, now)]
        else:
            count = 1 + int(self.random.expovariate(1 / 6))
            messages = self._depth(market, _changes(market, count), now)
        if self.has("bookTicker") and top != (market.book.best_bid, market.book.best_ask):
            messages.append(self._book_ticker(market, now))
        return messages

    def second(self, now: int) -> list[str]:
        messages = []
        for market in self.markets:
            if self.has("markPrice"):
                messages.append(self._mark_price(market, now))
            if self.has("ticker") and now // 1000 % 2:
                messages.append(self._ticker(market, now))
        return messages + (self._polled() if now // 1000 % 10 == 0 else [])

    def _depth(self, market: Market, changes: list[Change], now: int) -> list[str]:
        symbol = market.symbol
        previous = self._update_ids[symbol]
        first = previous + 1 + self.random.randrange(4)
        last = self._update_ids[symbol] = first + self.random.randrange(3 * len(changes))
        if not self.has("depth"):
            return []
        # Each level once, with its latest amount.
        bids = {each.tick: each.after for each in changes if each.is_bid}
        asks = {each.tick: each.after for each in changes if not each.is_bid}
        return [
            (
                f'{{"stream":"{symbol.lower()}@depth@0ms","data":{{"e":"depthUpdate","E":{now},'
                f'"T":{now - 3},"s":"{symbol}","U":{first},"u":{last},"pu":{previous},'
                f'"b":{_levels(market, bids)},"a":{_levels(market, asks)}}}}}'
            )
        ]

    def _snapshot(self, market: Market) -> str:
        book = market.book
        bids = dict(sorted(book.bids.items(), reverse=True)[:1000])
        asks = dict(sorted(book.asks.items())[:1000])
        return (
            f'{{"stream":"{market.symbol.lower()}@depthSnapshot","generated":true,'
            f'"data":{{"lastUpdateId":{self._update_ids[market.symbol]},'
            f'"bids":{_levels(market, bids)},"asks":{_levels(market, asks)}}}}}'
        )

    def _trades(self, market: Market, trades: list[Trade], now: int) -> list[str]:
        messages = []
        symbol = market.symbol
        for trade in trades:
            market.traded(trade.tick, trade.amount)
            self._trade_ids[symbol] += 1
            if self.has("trade"):
                messages.append(
                    f'{{"stream":"{symbol.lower()}@trade","data":{{"e":"trade","E":{now},'
                    f'"T":{now - 3},"s":"{symbol}","t":{self._trade_ids[symbol]},'
                    f'"p":"{market.fixed_price(trade.tick)}",'
                    f'"q":"{market.fixed_amount(trade.amount)}","X":"MARKET",'
                    f'"m":{"false" if trade.is_buy else "true"}}}}}'
                )
        return messages

    def _book_ticker(self, market: Market, now: int) -> str:
        book = market.book
        return (
            f'{{"stream":"{market.symbol.lower()}@bookTicker","data":{{"e":"bookTicker",'
            f'"u":{self._update_ids[market.symbol]},"s":"{market.symbol}",'
            f'"b":"{market.fixed_price(book.best_bid)}",'
            f'"B":"{market.fixed_amount(book.bids[book.best_bid])}",'
            f'"a":"{market.fixed_price(book.best_ask)}",'
            f'"A":"{market.fixed_amount(book.asks[book.best_ask])}","T":{now - 3},"E":{now}}}}}'
        )

    def _force_order(self, market: Market, now: int) -> str:
        buys = self.random.random() < 0.5
        amount = market.fixed_amount(1 + self.random.randrange(4000))
        limit = market.fixed_price(market.last + (300 if buys else -300))
        return (
            f'{{"stream":"{market.symbol.lower()}@forceOrder","data":{{"e":"forceOrder","E":{now},'
            f'"o":{{"s":"{market.symbol}","S":"{"BUY" if buys else "SELL"}","o":"LIMIT","f":"IOC",'
            f'"q":"{amount}","p":"{limit}","ap":"{market.fixed_price(market.last)}","X":"FILLED",'
            f'"l":"{amount}","z":"{amount}","T":{now - 4}}}}}}}'
        )

    def _mark_price(self, market: Market, now: int) -> str:
        middle = market.price(market.book.best_bid + market.book.best_ask) / 2
        return (
            f'{{"stream":"{market.symbol.lower()}@markPrice@1s","data":{{"e":"markPriceUpdate",'
            f'"E":{now},"s":"{market.symbol}","p":"{middle * 1.00003:.8f}",'
            f'"P":"{middle * 1.0001:.8f}","i":"{middle * 0.9997:.8f}",'
            f'"r":"{0.0003 + market.last % 89 / 1e7:.8f}","T":{next_funding(now)}}}}}'
        )

    def _ticker(self, market: Market, now: int) -> str:
        last, opened = market.price(market.last), market.opening_price * 0.98
        digits = len(market.fixed_price(0)) - 2
        return (
            f'{{"stream":"{market.symbol.lower()}@ticker","data":{{"e":"24hrTicker","E":{now},'
            f'"s":"{market.symbol}","p":"{last - opened:.{digits}f}",'
            f'"P":"{100 * (last / opened - 1):.3f}","w":"{(last + opened) / 2:.{digits}f}",'
            f'"c":"{market.fixed_price(market.last)}","Q":"{market.fixed_amount(7)}",'
            f'"o":"{opened:.{digits}f}","h":"{last * 1.01:.{digits}f}",'
            f'"l":"{opened * 0.99:.{digits}f}","v":"{market.fixed_amount(market.volume)}",'
            f'"q":"{market.volume * market.lot * last:.2f}","O":{now - _DAY_MS},"C":{now - 5},'
            f'"F":1,"L":{self._trade_ids[market.symbol]},"n":{self._trade_ids[market.symbol]}}}}}'
        )

    def _polled(self) -> list[str]:
        if not self.has("openInterest"):
            return []
        return [
            f'{{"stream":"{market.symbol.lower()}@openInterest","generated":true,'
            f'"data":{{"symbol":"{market.symbol}",'
            f'"openInterest":"{market.fixed_amount(81_234_567 + market.volume // 9)}"}}}}'
            for market in self.markets
        ]


def _changes(market: Market, count: int) -> list[Change]:
    return [market.book.change() for _ in range(count)]


def _levels(market: Market, levels: dict[int, int]) -> str:
    price, amount = market.fixed_price, market.fixed_amount
    texts = [f'["{price(tick)}","{amount(lots)}"]' for tick, lots in levels.items()]
    return f"[{','.join(texts)}]"
