"""What became of a batch: every record has exactly one fate, and the base refuses less."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tardis_machine.publish.buses.errors import BusError, FateError


class Failure(NamedTuple):
    """A record of a batch that was not delivered: its place in the batch, and why."""

    place: int
    error: BusError


class SendResult(NamedTuple):
    """What became of a batch: `delivered` counts duplicates too, failures are in order.

    len(batch) == delivered + len(failures), always.
    """

    delivered: int
    duplicates: int
    failures: Sequence[Failure]


class Fates:
    """Collects the fate of each record of one batch, by its place."""

    def __init__(self, bus: str, count: int) -> None:
        self._bus = bus
        self._settled = bytearray(count)
        self._failures: dict[int, BusError] = {}
        self._duplicates = 0

    def open(self) -> Sequence[int]:
        """Give the places of the records whose fate is not known yet, in order."""
        if 1 not in self._settled:
            return range(len(self._settled))
        if 0 not in self._settled:
            return ()
        return [place for place, settled in enumerate(self._settled) if not settled]

    def is_open(self, place: int) -> bool:
        return not self._settled[place]

    @property
    def any_failed(self) -> bool:
        return bool(self._failures)

    @property
    def to_be_retried(self) -> bool:
        """Tell whether a record has failed that will be sent again."""
        return any(error.retriable for error in self._failures.values())

    def deliver(self, places: Iterable[int], *, duplicates: int = 0) -> None:
        """Note what the bus has acknowledged, and how many of these it had already."""
        if places == range(len(self._settled)) and 1 not in self._settled:
            self._settled = bytearray(b"\x01") * len(self._settled)
        else:
            for place in places:
                self._settle(place)
        self._duplicates += duplicates

    def fail(self, places: Iterable[int], error: BusError) -> None:
        """Note what was not delivered, and why."""
        for place in places:
            self._settle(place)
            self._failures[place] = error

    def result(self) -> SendResult:
        """Sum up, once each record has its fate."""
        for place in self.open():
            raise FateError(self._bus, place)
        failures = [Failure(place, self._failures[place]) for place in sorted(self._failures)]
        return SendResult(len(self._settled) - len(failures), self._duplicates, failures)

    def _settle(self, place: int) -> None:
        if not 0 <= place < len(self._settled) or self._settled[place]:
            raise FateError(self._bus, place)
        self._settled[place] = 1
