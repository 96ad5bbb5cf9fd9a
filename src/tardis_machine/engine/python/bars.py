"""Trade bars by time, trades or volume."""

from math import floor, isnan, nan
from typing import Final

from tardis_machine.engine.datatypes import TradeBars, text_of
from tardis_machine.messages import times
from tardis_machine.messages.numbers import of_float

# What JavaScript's safe integers end with: highs and lows start from there.
_SAFE_MAX: Final = 9007199254740991.0


class Bar:
    """The bar in progress of one symbol, and the text of those it completes."""

    __slots__ = (
        "_bucket",
        "_buy",
        "_close",
        "_close_ms",
        "_close_time",
        "_head",
        "_high",
        "_interval",
        "_kind",
        "_low",
        "_open",
        "_open_time",
        "_sell",
        "_trades",
        "_volume",
        "_vwap",
    )

    def __init__(self, head: str, bars: TradeBars) -> None:
        self._head = (
            f'{head},"name":"{bars.name}","interval":{text_of(bars.interval)},'
            f'"kind":"{bars.kind}","open":'
        )
        self._kind = bars.kind
        self._interval = bars.interval
        self._reset()

    def _reset(self) -> None:
        self._trades = 0
        self._open = self._close = ""
        self._open_time = self._close_time = ""
        self._bucket = self._close_ms = 0
        self._high = -_SAFE_MAX
        self._low = _SAFE_MAX
        self._volume = self._buy = self._sell = self._vwap = 0.0

    def add(
        self,
        price: float,
        amount: float,
        side: str,
        price_text: str,
        ms: int,
        time: str,
        local: str,
    ) -> tuple[str, ...]:
        """Take a trade; returns the text of the bars it completes."""
        done: tuple[str, ...] = ()
        if self._kind == "time":
            bucket = floor(ms / self._interval)
            if bucket > self._bucket:
                done = self.close(local)
            if not self._trades:
                self._bucket = bucket
        self._update(price, amount, side, price_text, ms, time)
        if (self._kind == "tick" and self._trades >= self._interval) or (
            self._kind == "volume" and self._volume >= self._interval
        ):
            done = (self._text(self._close_time, local),)
            self._reset()
        return done

    def close(self, local: str) -> tuple[str, ...]:
        """End a time bar that has trades; returns its text."""
        if self._kind != "time" or not self._trades:
            return ()
        text = self._text(times.iso_ms(int((self._bucket + 1) * self._interval)), local)
        self._reset()
        return (text,)

    def _update(
        self, price: float, amount: float, side: str, price_text: str, ms: int, time: str
    ) -> None:
        if not self._trades:
            self._open = price_text
            self._open_time = time
        self._high = max(self._high, price)
        self._low = min(self._low, price)
        if not self._trades or ms >= self._close_ms:
            self._close = price_text
            self._close_time = time
            self._close_ms = ms
        if side == "buy":
            self._buy += amount
        elif side == "sell":
            self._sell += amount
        self._trades += 1
        volume = self._volume + amount
        # Zero volume makes the average undefined for the rest of the bar, as a NaN does in Node.
        self._vwap = (self._vwap * self._volume + price * amount) / volume if volume else nan
        self._volume = volume

    def _text(self, time: str, local: str) -> str:
        vwap = of_float(self._vwap) if not isnan(self._vwap) else "null"
        return (
            f'{self._head}{self._open},"high":{of_float(self._high)},"low":{of_float(self._low)},'
            f'"close":{self._close},"volume":{of_float(self._volume)},'
            f'"buyVolume":{of_float(self._buy)},"sellVolume":{of_float(self._sell)},'
            f'"trades":{self._trades},"vwap":{vwap},"openTimestamp":"{self._open_time}",'
            f'"closeTimestamp":"{self._close_time}","localTimestamp":"{local}",'
            f'"timestamp":"{time}"}}\n'
        )
