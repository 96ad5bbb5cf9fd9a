"""What a bus says of what it did not take; each error tells whether to try again."""

from tardis_machine.bounded import shortened
from tardis_machine.errors import TardisMachineError


class BusError(TardisMachineError):
    """A bus did not take something: which bus, where to, why."""

    def __init__(self, bus: str, reason: str, *, destination: str | None = None) -> None:
        self.bus = bus
        self.reason = shortened(reason)
        self.destination = destination
        where = bus if destination is None else f"{bus} {destination}"
        super().__init__(f"{where}: {self.reason}")


class BusUnavailableError(BusError):
    """The bus, or the destination that is named, cannot be used now; it may be later."""

    retriable = True


class MissingError(BusUnavailableError):
    """The destination is not there any more."""


class ThrottledError(BusUnavailableError):
    """The destination takes less than it was given."""


class NotSentError(BusError):
    """A record held back because an earlier one has not been delivered."""

    retriable = True


class RecordRejectedError(BusError):
    """The bus will never accept this record: a matter for the dead letters."""


class FateError(TardisMachineError):
    """A bus told the fate of a record twice, or never: a bug, and no word on the record itself."""

    def __init__(self, bus: str, place: int) -> None:
        self.bus = bus
        self.place = place
        super().__init__(f"{bus}: record {place} of the batch has not exactly one fate")
