"""Deribit, made up: perpetuals, a future, and options with their greeks."""

from collections.abc import Collection
from math import erf, exp, log, pi, sqrt
from random import Random
from typing import Final

from tests.support.feeds.book import Change
from tests.support.feeds.feed import Feed, Market

CHANNELS: Final = ("book", "ticker", "trades")

_STRIKES: Final = (58_000, 62_000, 66_000)
_EXPIRY: Final = "29MAR24"
_YEARS: Final = 28.33 / 365
_VOLATILITY: Final = 0.74


class DeribitFeed(Feed):
    """BTC-PERPETUAL, ETH-PERPETUAL, a BTC future and six BTC options."""

    def __init__(
        self, random: Random, channels: Collection[str] | None = None, depth: int = 60
    ) -> None:
        super().__init__(random, channels)
        self.markets = [
            Market(
                random,
                "BTC-PERPETUAL",
                price=61_150,
                tick=0.5,
                lot=10,
                mean_lots=600,
                depth=depth,
                weight=3,
            ),
            Market(
                random,
                "ETH-PERPETUAL",
                price=3340,
                tick=0.05,
                lot=1,
                mean_lots=5000,
                depth=depth,
                weight=2,
            ),
            Market(
                random,
                f"BTC-{_EXPIRY}",
                price=62_240,
                tick=2.5,
                lot=10,
                mean_lots=400,
                depth=depth,
                weight=1,
            ),
        ]
        self._perpetual = self.markets[0]
        for strike in _STRIKES:
            for kind in "CP":
                price = max(0.004, _greeks(61_150, strike, kind)["price"])
                self.markets.append(
                    Market(
                        random,
                        f"BTC-{_EXPIRY}-{strike}-{kind}",
                        price=price,
                        tick=0.0005,
                        lot=0.1,
                        mean_lots=120,
                        depth=8,
                        weight=0.15,
                    )
                )
        self._change_ids = {each.symbol: random.randrange(6 * 10**10) for each in self.markets}
        self._trade_id = 290_000_000
        self._sequence = {each.symbol: random.randrange(10**8) for each in self.markets}

    def opening(self, now: int) -> list[str]:
        messages = []
        for market in self.markets:
            if self.has("book"):
                book = market.book
                messages.append(
                    _message(
                        "book",
                        market,
                        f'{{"type":"snapshot","timestamp":{now},'
                        f'"instrument_name":"{market.symbol}",'
                        f'"change_id":{self._change_ids[market.symbol]},'
                        f'"bids":{_new(market, sorted(book.bids.items(), reverse=True))},'
                        f'"asks":{_new(market, sorted(book.asks.items()))}}}',
                    )
                )
            if self.has("ticker"):
                messages.append(self._ticker(market, now))
        return messages

    def event(self, now: int) -> list[str]:
        market, draw = self.market(), self.random.random()
        if draw < 0.1:
            return self._trades(market, now)
        if draw < 0.18 and self.has("ticker"):
            return [self._ticker(market, now)]
        count = 1 + (self.random.random() < 0.4) + (self.random.random() < 0.2)
        return self._book(market, [market.book.change() for _ in range(count)], now)

    def second(self, now: int) -> list[str]:
        if not self.has("ticker"):
            return []
        return [self._ticker(self._perpetual, now)]

    def _trades(self, market: Market, now: int) -> list[str]:
        trades = [market.book.trade() for _ in range(1 + (self.random.random() < 0.25))]
        rows = []
        for trade in trades:
            direction = market.traded(trade.tick, trade.amount)
            self._trade_id += 1
            self._sequence[market.symbol] += 1
            forced = '"liquidation":"T",' if self.random.random() < 0.02 else ""
            ticks = ("PlusTick", "ZeroPlusTick", "MinusTick", "ZeroMinusTick").index(direction)
            rows.append(
                f'{{"trade_seq":{self._sequence[market.symbol]},"trade_id":"{self._trade_id}",'
                f'"timestamp":{now},"tick_direction":{ticks},'
                f'"price":{market.plain_price(trade.tick)},'
                f'"mark_price":{self._mark(market)},{forced}'
                f'"instrument_name":"{market.symbol}","index_price":{self._index(market)},'
                f'"direction":"{"buy" if trade.is_buy else "sell"}",'
                f'"amount":{market.plain_amount(trade.amount)}}}'
            )
        messages = [_message("trades", market, f"[{','.join(rows)}]")] if self.has("trades") else []
        return messages + self._book(market, [trade.change for trade in trades], now)

    def _book(self, market: Market, changes: list[Change], now: int) -> list[str]:
        previous = self._change_ids[market.symbol]
        current = self._change_ids[market.symbol] = previous + 1 + self.random.randrange(40)
        if not self.has("book"):
            return []
        sides: dict[bool, dict[int, str]] = {True: {}, False: {}}
        for is_bid, tick, before, after in changes:
            action = "delete" if not after else "change" if before else "new"
            level = f'["{action}",{market.plain_price(tick)},{market.plain_amount(after)}]'
            sides[is_bid][tick] = level
        return [
            _message(
                "book",
                market,
                f'{{"type":"change","timestamp":{now},"prev_change_id":{previous},'
                f'"instrument_name":"{market.symbol}","change_id":{current},'
                f'"bids":[{",".join(sides[True].values())}],'
                f'"asks":[{",".join(sides[False].values())}]}}',
            )
        ]

    def _ticker(self, market: Market, now: int) -> str:
        book = market.book
        best = (
            f'"best_bid_price":{market.plain_price(book.best_bid)},'
            f'"best_bid_amount":{market.plain_amount(book.bids[book.best_bid])},'
            f'"best_ask_price":{market.plain_price(book.best_ask)},'
            f'"best_ask_amount":{market.plain_amount(book.asks[book.best_ask])}'
        )
        last = market.plain_price(market.last) if market.volume else "null"
        low, high = max(1, market.last * 97 // 100), market.last * 103 // 100
        common = (
            f'"state":"open","settlement_price":{market.opening_price:.4f},'
            f'"min_price":{market.plain_price(low)},"max_price":{market.plain_price(high)},'
            f'"open_interest":{market.plain_amount(66_128 + market.volume // 5)},'
            f'"mark_price":{self._mark(market)},"last_price":{last},'
            f'"instrument_name":"{market.symbol}","index_price":{self._index(market)},'
        )
        stats = '"stats":{"volume":2461.5,"price_change":1.42,"low":null,"high":null},'
        if market.symbol[-2:] in {"-C", "-P"}:
            data = self._option(market, now, stats + common, best)
        elif market is self.markets[2]:
            delivery = f'"estimated_delivery_price":{self._index(market)},'
            data = f'{{"timestamp":{now},{stats}{common}{delivery}{best}}}'
        else:
            funding = f"{(market.last % 41 - 12) / 1e6:.6f}"
            data = (
                f'{{"timestamp":{now},{stats}{common}"funding_8h":{funding},'
                f'"current_funding":{funding},{best}}}'
            )
        return _message("ticker", market, data)

    def _option(self, market: Market, now: int, common: str, best: str) -> str:
        underlying = self.markets[2].price(self.markets[2].last)
        _, _, strike, kind = market.symbol.split("-")
        greeks = _greeks(underlying, int(strike), kind)
        texts = ",".join(
            f'"{name}":{greeks[name]:.5f}' for name in ("vega", "theta", "rho", "gamma", "delta")
        )
        return (
            f'{{"underlying_price":{underlying},"underlying_index":"BTC-{_EXPIRY}",'
            f'"timestamp":{now},{common}"mark_iv":{100 * _VOLATILITY:.2f},"interest_rate":0.0,'
            f'"greeks":{{{texts}}},"estimated_delivery_price":{self._index(market)},'
            f'"bid_iv":{100 * _VOLATILITY - 1.4:.2f},{best},'
            f'"ask_iv":{100 * _VOLATILITY + 1.6:.2f}}}'
        )

    def _index(self, market: Market) -> str:
        source = self.markets[1] if market.symbol.startswith("ETH") else self._perpetual
        return str(round(source.price(source.last) * 0.99992, 2))

    def _mark(self, market: Market) -> str:
        digits = 4 if market.tick < 0.01 else 2
        middle = (market.price(market.book.best_bid) + market.price(market.book.best_ask)) / 2
        return f"{middle:.{digits}f}"


def _message(channel: str, market: Market, data: str) -> str:
    return (
        f'{{"jsonrpc":"2.0","method":"subscription","params":'
        f'{{"channel":"{channel}.{market.symbol}.raw","data":{data}}}}}'
    )


def _new(market: Market, levels: list[tuple[int, int]]) -> str:
    texts = [
        f'["new",{market.plain_price(tick)},{market.plain_amount(lots)}]' for tick, lots in levels
    ]
    return f"[{','.join(texts)}]"


def _greeks(underlying: float, strike: float, kind: str) -> dict[str, float]:
    """Black's formula: near enough to pass for the exchange's own figures."""
    root = _VOLATILITY * sqrt(_YEARS)
    d1 = (log(underlying / strike) + root * root / 2) / root
    density = exp(-d1 * d1 / 2) / sqrt(2 * pi)
    above, reached = (0.5 * (1 + erf(x / sqrt(2))) for x in (d1, d1 - root))
    call = (underlying * above - strike * reached) / underlying
    return {
        "price": call if kind == "C" else call - 1 + strike / underlying,
        "delta": above if kind == "C" else above - 1,
        "gamma": density / (underlying * root),
        "vega": underlying * density * sqrt(_YEARS) / 100,
        "theta": -underlying * density * _VOLATILITY / (2 * sqrt(_YEARS)) / 365,
        "rho": 0.0,
    }
