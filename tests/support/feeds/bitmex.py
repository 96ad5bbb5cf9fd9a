"""BitMEX, made up: tables with partials, inserts, updates and deletes; book rows known by id."""

from collections.abc import Collection
from random import Random
from typing import Final
from uuid import UUID

from tests.support.feeds.book import Change
from tests.support.feeds.feed import Feed, Market, iso_ms, next_funding

CHANNELS: Final = ("instrument", "liquidation", "orderBookL2", "quote", "trade")
SYMBOLS: Final = ("ETHUSD", "XBTUSD")

_ID_BASE: Final = {"XBTUSD": 8_800_000_000, "ETHUSD": 29_700_000_000}
_ID_STEP: Final = {"XBTUSD": 50, "ETHUSD": 5}
_ACTIONS: Final = ("delete", "update", "insert")


class BitmexFeed(Feed):
    """XBTUSD and ETHUSD perpetuals."""

    def __init__(
        self, random: Random, channels: Collection[str] | None = None, depth: int = 60
    ) -> None:
        super().__init__(random, channels)
        self.markets = [
            Market(
                random,
                "XBTUSD",
                price=61_150,
                tick=0.5,
                lot=100,
                mean_lots=180,
                depth=depth,
                weight=2,
            ),
            Market(random, "ETHUSD", price=3340, tick=0.05, lot=1, mean_lots=9000, depth=depth),
        ]
        self._liquidations: list[tuple[str, str]] = []

    def opening(self, now: int) -> list[str]:
        messages = []
        time = iso_ms(now)
        for market in self.markets:
            symbol = market.symbol
            if self.has("instrument"):
                messages.append(_message("instrument", "partial", [self._instrument(market, now)]))
            if self.has("orderBookL2"):
                rows = [
                    _row(market, False, tick, lots, time)
                    for tick, lots in sorted(market.book.asks.items(), reverse=True)
                ] + [
                    _row(market, True, tick, lots, time)
                    for tick, lots in sorted(market.book.bids.items(), reverse=True)
                ]
                messages.append(_message("orderBookL2", "partial", rows))
            if self.has("liquidation"):
                messages.append(
                    f'{{"table":"liquidation","action":"partial","data":[],'
                    f'"filter":{{"symbol":"{symbol}"}}}}'
                )
        self._liquidations.clear()
        return messages

    def event(self, now: int) -> list[str]:
        market, draw = self.market(), self.random.random()
        time = iso_ms(now)
        top = market.book.best_bid, market.book.best_ask
        if draw < 0.12:
            messages = self._trades(market, time)
        elif draw < 0.125 and self.has("liquidation"):
            messages = self._liquidation(market)
        else:
            count = 1 + (self.random.random() < 0.35) + (self.random.random() < 0.15)
            messages = self._book(market, [market.book.change() for _ in range(count)], time)
        if self.has("quote") and top != (market.book.best_bid, market.book.best_ask):
            messages.append(_message("quote", "insert", [_quote(market, time)]))
        return messages

    def second(self, now: int) -> list[str]:
        if not self.has("instrument"):
            return []
        messages = []
        time = iso_ms(now)
        for market in self.markets:
            bid, ask = market.book.best_bid, market.book.best_ask
            mark = _mark(market)
            rows = [
                (
                    f'{{"symbol":"{market.symbol}","fairPrice":{mark},"markPrice":{mark},'
                    f'"indicativeSettlePrice":{_index(market)},"timestamp":"{time}"}}'
                )
            ]
            if self.random.random() < 0.4:
                rows.append(
                    f'{{"symbol":"{market.symbol}","lastPrice":{market.plain_price(market.last)},'
                    f'"lastTickDirection":"{market.direction}",'
                    f'"bidPrice":{market.plain_price(bid)},"askPrice":{market.plain_price(ask)},'
                    f'"timestamp":"{time}"}}'
                )
            if self.random.random() < 0.2:
                rows.append(
                    f'{{"symbol":"{market.symbol}","openInterest":{_open_interest(market)},'
                    f'"openValue":{_open_interest(market) * 1640},"timestamp":"{time}"}}'
                )
            if now // 1000 % 60 == 0:
                rows.append(
                    f'{{"symbol":"{market.symbol}",'
                    f'"indicativeFundingRate":{self._rate(market)},"timestamp":"{time}"}}'
                )
            messages += [_message("instrument", "update", [row]) for row in rows]
        return messages

    def _trades(self, market: Market, time: str) -> list[str]:
        trades = [market.book.trade() for _ in range(1 + (self.random.random() < 0.2))]
        rows = []
        for trade in trades:
            direction = market.traded(trade.tick, trade.amount)
            size = int(trade.amount * market.lot)
            price = market.price(trade.tick)
            value = (
                round(size / price * 1e8)
                if market.symbol == "XBTUSD"
                else round(size * price * 100)
            )
            home = value / 1e8 if market.symbol == "XBTUSD" else value / 1e8 * 18.3
            foreign = size if market.symbol == "XBTUSD" else round(home * price, 4)
            rows.append(
                f'{{"timestamp":"{time}","symbol":"{market.symbol}",'
                f'"side":"{"Buy" if trade.is_buy else "Sell"}","size":{size},'
                f'"price":{market.plain_price(trade.tick)},"tickDirection":"{direction}",'
                f'"trdMatchID":"{self._uuid()}","grossValue":{value},'
                f'"homeNotional":{home:.8g},"foreignNotional":{foreign}}}'
            )
        messages = [_message("trade", "insert", rows)] if self.has("trade") else []
        return messages + self._book(market, [trade.change for trade in trades], time)

    def _book(self, market: Market, changes: list[Change], time: str) -> list[str]:
        if not self.has("orderBookL2"):
            return []
        rows: dict[str, list[str]] = {}
        for is_bid, tick, before, after in _merged(changes):
            if not after:
                row = _row(market, is_bid, tick, 0, time)
                rows.setdefault("delete", []).append(row)
            elif before:
                row = _row(market, is_bid, tick, after, time, priced=False)
                rows.setdefault("update", []).append(row)
            else:
                rows.setdefault("insert", []).append(_row(market, is_bid, tick, after, time))
        # Deletes first, so that the book is never crossed in between.
        return [
            _message("orderBookL2", action, rows[action]) for action in _ACTIONS if action in rows
        ]

    def _liquidation(self, market: Market) -> list[str]:
        if self._liquidations:
            order, symbol = self._liquidations.pop()
            row = f'{{"orderID":"{order}","symbol":"{symbol}"}}'
            return [_message("liquidation", "delete", [row])]
        order = self._uuid()
        self._liquidations.append((order, market.symbol))
        buys = self.random.random() < 0.5
        price = market.plain_price(market.last + (40 if buys else -40))
        return [
            _message(
                "liquidation",
                "insert",
                [
                    (
                        f'{{"orderID":"{order}","symbol":"{market.symbol}",'
                        f'"side":"{"Buy" if buys else "Sell"}","price":{price},'
                        f'"leavesQty":{100 * self.random.randrange(1, 400)}}}'
                    )
                ],
            )
        ]

    def _instrument(self, market: Market, now: int) -> str:
        root = market.symbol[:3]
        price = market.plain_price(market.last)
        return (
            f'{{"symbol":"{market.symbol}","rootSymbol":"{root}","state":"Open","typ":"FFWCSX",'
            f'"listing":"2018-08-02T08:00:00.000Z","front":"2018-08-02T08:00:00.000Z",'
            f'"expiry":null,"settle":null,"positionCurrency":"USD","underlying":"{root}",'
            f'"quoteCurrency":"USD","underlyingSymbol":"{root}=","reference":"BMEX",'
            f'"referenceSymbol":".B{root}","maxOrderQty":10000000,"maxPrice":1000000,'
            f'"lotSize":{market.plain_amount(1)},"tickSize":{market.plain_price(1)},'
            f'"settlCurrency":"XBt","isQuanto":{"false" if root == "XBT" else "true"},'
            f'"isInverse":{"true" if root == "XBT" else "false"},"initMargin":0.01,'
            f'"maintMargin":0.005,"makerFee":0.0002,"takerFee":0.00075,'
            f'"fundingTimestamp":"{iso_ms(next_funding(now))}",'
            f'"fundingInterval":"2000-01-01T08:00:00.000Z","fundingRate":{self._rate(market)},'
            f'"indicativeFundingRate":{self._rate(market)},"volume24h":184209300,'
            f'"lastPrice":{price},"lastTickDirection":"{market.direction}",'
            f'"bidPrice":{market.plain_price(market.book.best_bid)},'
            f'"askPrice":{market.plain_price(market.book.best_ask)},"hasLiquidity":true,'
            f'"openInterest":{_open_interest(market)},"fairMethod":"FundingRate",'
            f'"fairPrice":{_mark(market)},"markMethod":"FairPrice","markPrice":{_mark(market)},'
            f'"indicativeSettlePrice":{_index(market)},"settledPrice":null,'
            f'"timestamp":"{iso_ms(now)}"}}'
        )

    def _rate(self, market: Market) -> str:
        return f"{0.0001 + (market.last % 97) / 1e6:.6f}".rstrip("0")

    def _uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128)))


def _message(table: str, action: str, rows: list[str]) -> str:
    return f'{{"table":"{table}","action":"{action}","data":[{",".join(rows)}]}}'


def _row(
    market: Market, is_bid: bool, tick: int, lots: int, time: str, *, priced: bool = True
) -> str:
    symbol = market.symbol
    row = (
        f'{{"symbol":"{symbol}","id":{_ID_BASE[symbol] - tick * _ID_STEP[symbol]},'
        f'"side":"{"Buy" if is_bid else "Sell"}"'
    )
    if lots:
        row += f',"size":{market.plain_amount(lots)}'
        if priced:
            row += f',"price":{market.plain_price(tick)}'
    return f'{row},"timestamp":"{time}"}}'


def _quote(market: Market, time: str) -> str:
    book = market.book
    return (
        f'{{"timestamp":"{time}","symbol":"{market.symbol}",'
        f'"bidSize":{market.plain_amount(book.bids[book.best_bid])},'
        f'"bidPrice":{market.plain_price(book.best_bid)},'
        f'"askPrice":{market.plain_price(book.best_ask)},'
        f'"askSize":{market.plain_amount(book.asks[book.best_ask])}}}'
    )


def _merged(changes: list[Change]) -> list[Change]:
    """Changes of one level in one message become one, from its first to its last amount."""
    if len(changes) == 1:
        return changes
    merged: dict[tuple[bool, int], Change] = {}
    for change in changes:
        known = merged.pop(change[:2], change)
        merged[change[:2]] = Change(change.is_bid, change.tick, known.before, change.after)
    return [each for each in merged.values() if each.before != each.after]


def _mark(market: Market) -> str:
    middle = (market.price(market.book.best_bid) + market.price(market.book.best_ask)) / 2
    return f"{round(middle * 1.00004, 2):g}" if middle < 1e4 else f"{round(middle * 1.00004, 2)}"


def _index(market: Market) -> str:
    middle = (market.price(market.book.best_bid) + market.price(market.book.best_ask)) / 2
    return str(round(middle * 0.99991, 2))


def _open_interest(market: Market) -> int:
    return 412_000_000 + market.volume // 7 * 100
