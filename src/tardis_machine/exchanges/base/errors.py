"""What can go wrong between an exchange's name, its messages and their normalized form."""

from collections.abc import Iterable

from tardis_machine.errors import TardisMachineError


class UnknownExchangeError(TardisMachineError, ValueError):
    """An exchange that does not exist, or that cannot do what was asked."""

    def __init__(self, exchange: str, allowed: Iterable[str], reason: str = "unknown exchange"):
        self.exchange = exchange
        self.allowed = tuple(allowed)
        super().__init__(f"{reason}: {exchange}; allowed: {', '.join(self.allowed)}")


class UnsupportedTypeError(TardisMachineError, ValueError):
    """A normalized type that this exchange does not have."""

    def __init__(self, exchange: str, data_type: str, allowed: Iterable[str]):
        self.exchange = exchange
        self.data_type = data_type
        self.allowed = tuple(allowed)
        super().__init__(f"{exchange} has no {data_type}; it has: {', '.join(self.allowed)}")


class MapperError(TardisMachineError, ValueError):
    """A message that the exchange's mapper cannot make sense of: where, and what is wrong."""

    def __init__(self, channel: str, reason: str):
        self.channel = channel
        self.reason = reason
        super().__init__(f"{channel}: {reason}")


class BookGapError(MapperError):
    """A book's REST snapshot and its updates do not join: the book has to be fetched again."""

    def __init__(self, channel: str, symbol: str, snapshot_id: float, update_ids: str):
        self.symbol = symbol
        self.snapshot_id = snapshot_id
        super().__init__(
            channel,
            f"the snapshot of {symbol} (last update {snapshot_id}) does not join its first update"
            f" ({update_ids})",
        )


class LostUpdateError(BookGapError):
    """An update of a live book that does not follow the one before it."""

    def __init__(self, channel: str, symbol: str, last_id: object, update_id: object):
        self.symbol = symbol
        self.last_id = last_id
        MapperError.__init__(
            self, channel, f"an update of {symbol} follows {update_id}, the last was {last_id}"
        )
