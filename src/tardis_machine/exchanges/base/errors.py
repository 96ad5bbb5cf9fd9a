"""Errors of exchange names, data types, mappers and books."""

from collections.abc import Iterable

from tardis_machine.errors import TardisMachineError


class UnknownExchangeError(TardisMachineError, ValueError):
    """An exchange that does not exist, or does not support the request."""

    def __init__(self, exchange: str, allowed: Iterable[str], reason: str = "unknown exchange"):
        self.exchange = exchange
        self.allowed = tuple(allowed)
        super().__init__(f"{reason}: {exchange}; allowed: {', '.join(self.allowed)}")


class UnsupportedTypeError(TardisMachineError, ValueError):
    """A data type that this exchange does not have."""

    def __init__(self, exchange: str, data_type: str, allowed: Iterable[str]):
        self.exchange = exchange
        self.data_type = data_type
        self.allowed = tuple(allowed)
        super().__init__(f"{exchange} has no {data_type}; it has: {', '.join(self.allowed)}")


class MapperError(TardisMachineError, ValueError):
    """A malformed message: its channel and the reason."""

    def __init__(self, channel: str, reason: str):
        self.channel = channel
        self.reason = reason
        super().__init__(f"{channel}: {reason}")


class BookGapError(MapperError):
    """A book's REST snapshot and updates that do not join; another snapshot must be fetched."""

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
