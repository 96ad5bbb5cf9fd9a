"""The ticker of each derivative, put together from messages that carry parts of it."""

from tardis_machine.emit import Emitter
from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.times import milliseconds


class Ticker:
    """The latest value of every field of one symbol, sent whenever one has changed."""

    __slots__ = (
        "_changed",
        "_emitter",
        "_funding_rate",
        "_funding_timestamp",
        "_index_price",
        "_last_price",
        "_latest",
        "_mark_price",
        "_open_interest",
        "_predicted_funding_rate",
        "_symbol",
        "_timestamp",
    )

    def __init__(self, symbol: str, emitter: Emitter) -> None:
        self._symbol = symbol
        self._emitter = emitter
        self._changed = False
        self._timestamp: int | str | None = None
        self._latest = 0
        self._last_price: float | None = None
        self._open_interest: float | None = None
        self._funding_rate: float | None = None
        self._funding_timestamp: int | None = None
        self._predicted_funding_rate: float | None = None
        self._index_price: float | None = None
        self._mark_price: float | None = None

    def seen_at(self, timestamp: float | None, channel: str) -> None:
        """Note a message's time (ms): it never goes back, and one without a time keeps the last."""
        if not timestamp:
            if self._timestamp is None:
                raise MapperError(channel, f"no time for {self._symbol}")
        elif self._timestamp is None or timestamp >= self._latest:
            self._timestamp = self._latest = int(timestamp)

    def update(
        self,
        *,
        last_price: float | None = None,
        open_interest: float | None = None,
        funding_rate: float | None = None,
        funding_timestamp: int | None = None,
        predicted_funding_rate: float | None = None,
        index_price: float | None = None,
        mark_price: float | None = None,
    ) -> None:
        """Take over what is given; None leaves a field as it is."""
        if last_price is not None and last_price != self._last_price:
            self._last_price = last_price
            self._changed = True
        if open_interest is not None and open_interest != self._open_interest:
            self._open_interest = open_interest
            self._changed = True
        if funding_rate is not None and funding_rate != self._funding_rate:
            self._funding_rate = funding_rate
            self._changed = True
        if funding_timestamp is not None and funding_timestamp != self._funding_timestamp:
            self._funding_timestamp = funding_timestamp
            self._changed = True
        if (
            predicted_funding_rate is not None
            and predicted_funding_rate != self._predicted_funding_rate
        ):
            self._predicted_funding_rate = predicted_funding_rate
            self._changed = True
        if index_price is not None and index_price != self._index_price:
            self._index_price = index_price
            self._changed = True
        if mark_price is not None and mark_price != self._mark_price:
            self._mark_price = mark_price
            self._changed = True

    def send(self) -> None:
        """Emit the ticker if it has changed since it was sent last."""
        if not self._changed:
            return
        self._changed = False
        if self._timestamp is None:
            self._timestamp = self._emitter.local
            self._latest = milliseconds(self._emitter.local)
        self._emitter.derivative_ticker(
            self._symbol,
            self._timestamp,
            last_price=self._last_price,
            open_interest=self._open_interest,
            funding_rate=self._funding_rate,
            funding_timestamp=self._funding_timestamp,
            predicted_funding_rate=self._predicted_funding_rate,
            index_price=self._index_price,
            mark_price=self._mark_price,
        )


class Tickers(dict[str, Ticker]):
    """The tickers of an exchange by symbol, made when first asked for."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__()
        self._emitter = emitter

    def __missing__(self, symbol: str) -> Ticker:
        ticker = self[symbol] = Ticker(symbol, self._emitter)
        return ticker
