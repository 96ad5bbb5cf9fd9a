"""A toy strategy on history or live, by one argument: the messages are the same.

    python examples/strategy.py              # the bundled sample, which is synthetic
    python examples/strategy.py --speed 10   # the same, as it happened, ten times as fast
    python examples/strategy.py --live       # what bitmex sends now

It buys when the price is above its average of the last bars, sells when it is below, and pays the
spread. That is no advice.
"""

import argparse
import asyncio
from collections import deque
from contextlib import aclosing

from tardis_machine import (
    NormalizedReplay,
    NormalizedStream,
    replay_normalized,
    stream_normalized,
)
from tardis_machine.messages import BookSnapshot, Message, TradeBar

BARS = 6
DATA_TYPES = ["trade_bar_5s", "quote"]


class Strategy:
    """Knows nothing of where its messages come from."""

    def __init__(self) -> None:
        self.position = 0
        self.cash = 0.0
        self.trades = 0
        self._closes: deque[float] = deque(maxlen=BARS)
        self._bid = self._ask = 0.0

    def on_quote(self, quote: BookSnapshot) -> None:
        if quote.bids[0].price is not None and quote.asks[0].price is not None:
            self._bid, self._ask = quote.bids[0].price, quote.asks[0].price

    def on_bar(self, bar: TradeBar) -> None:
        self._closes.append(bar.close)
        if len(self._closes) < BARS or not self._bid:
            return
        wanted = 1 if bar.close > sum(self._closes) / BARS else -1
        if wanted != self.position:
            change = wanted - self.position
            self.cash -= change * (self._ask if change > 0 else self._bid)
            self.position = wanted
            self.trades += 1
            side = "buy " if change > 0 else "sell"
            print(f"{bar.timestamp} {side} {abs(change)} at {bar.close:>9}, worth {self.worth:.1f}")

    @property
    def worth(self) -> float:
        return self.cash + self.position * (self._bid if self.position > 0 else self._ask)


def opened(
    *, live: bool, speed: float | None
) -> NormalizedStream[Message] | NormalizedReplay[Message]:
    """Only this differs."""
    if live:
        return stream_normalized(exchange="bitmex", symbols=["XBTUSD"], data_types=DATA_TYPES)
    return replay_normalized(
        exchange="bitmex",
        symbols=["XBTUSD"],
        data_types=DATA_TYPES,
        from_="2024-03-01T00:00",
        to="2024-03-01T00:05",
        speed=speed,
        sample=True,
    )


async def main(*, live: bool, speed: float | None, bars: int) -> None:
    strategy = Strategy()
    seen = 0
    async with aclosing(aiter(opened(live=live, speed=speed))) as messages:
        async for message in messages:
            if isinstance(message, BookSnapshot):
                strategy.on_quote(message)
            elif isinstance(message, TradeBar):
                strategy.on_bar(message)
                seen += 1
                if seen == bars:
                    break
    print(f"{seen} bars, {strategy.trades} trades, worth {strategy.worth:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--live", action="store_true", help="what the exchange sends now")
    parser.add_argument(
        "--speed", type=float, help="1: as it happened; as fast as possible if not given"
    )
    parser.add_argument("--bars", type=int, default=0, help="end after so many; 0: never")
    arguments = parser.parse_args()
    asyncio.run(main(live=arguments.live, speed=arguments.speed, bars=arguments.bars))
