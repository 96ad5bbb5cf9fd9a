"""What every bus fills in: connect, send a batch, check, close.

A bus knows its client and nothing else. It is given batches of records, in order, by one thread,
and answers for each record whether it was delivered. Retries with backoff, dead letters and
cursors are the publisher's: it asks an error whether it is retriable.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

from tardis_machine.config import ConfigError, Section, options
from tardis_machine.errors import TardisMachineError
from tardis_machine.extras import expect
from tardis_machine.publish.record import Record
from tardis_machine.publish.routing import Router, Routing


class BusError(TardisMachineError):
    """A bus did not take something: which bus, where to, why."""

    def __init__(self, bus: str, reason: str, *, destination: str | None = None) -> None:
        self.bus = bus
        self.reason = reason
        self.destination = destination
        where = bus if destination is None else f"{bus} {destination}"
        super().__init__(f"{where}: {reason}")


class BusUnavailableError(BusError):
    """The bus or its destination cannot be used now; it may be later."""

    retriable = True


class NotSentError(BusError):
    """A record held back because an earlier one of its key has not been delivered."""

    retriable = True


class RecordRejectedError(BusError):
    """The bus will never accept this record: a matter for the dead letters."""


class Limits(NamedTuple):
    """When a batch is full: so many records, so many bytes, or so long after its first record."""

    records: int
    bytes: int
    delay_s: float


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


class BusConfig(Section, ABC):
    """Settings of one bus. Everything is checked by `validate`, before anything starts."""

    needs: ClassVar[tuple[str, ...]]
    """The settings that turn the bus on: all of them, or nothing of the section."""
    client: ClassVar[tuple[str, str] | None] = None
    """The module of the bus's client, and the extra that brings it."""

    @property
    def enabled(self) -> bool:
        """Tell whether the bus is on."""
        return all(getattr(self, name) for name in self.needs)

    @abstractmethod
    def routing(self) -> Routing:
        """Give the checked rules for where events go; raises ConfigError."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """Give the size of the batches this bus wants."""

    def validate(self) -> None:
        """Refuse a bus that is half configured, and rules that cannot work."""
        given = [o for o in options(type(self)) if getattr(self, o.name) != o.default]
        missing = [name for name in self.needs if not getattr(self, name)]
        if given and missing:
            allowed = f"is missing, and {given[0].flag} is set: a bus needs both, or neither"
            raise ConfigError(self.flag(missing[0]), None, allowed)
        if self.enabled:
            self.routing()

    def expect_client(self) -> None:
        """Refuse a bus whose client is not installed; nothing is imported."""
        if self.client is not None:
            module, extra = self.client
            expect(module, extra=extra)

    def both_or_neither(self, one: str, other: str) -> None:
        """Refuse one of two settings without the other."""
        for given, missing in ((one, other), (other, one)):
            if getattr(self, given) is not None and getattr(self, missing) is None:
                raise ConfigError(
                    self.flag(missing), None, f"is missing, and {self.flag(given)} is set"
                )

    def warnings(self) -> list[str]:
        """Say which routes the allow-list leaves unused."""
        unused = self.routing().unused_routes if self.enabled else ()
        if not unused:
            return []
        flag = self.flag("include_payloads")
        return [f"{flag} leaves out {', '.join(unused)}, whose route is never used"]


C = TypeVar("C", bound=BusConfig)


class EventBus(ABC, Generic[C]):
    """One bus, used by one thread at a time."""

    name: ClassVar[str]
    config_type: ClassVar[type[BusConfig]]

    def __init__(self, config: C) -> None:
        self.config = config

    @property
    def limits(self) -> Limits:
        """Give the size of the batches `send` wants."""
        return self.config.limits

    def router(self) -> Router:
        """Give a new router with this bus's rules."""
        return Router(self.config.routing())

    @abstractmethod
    def connect(self) -> None:
        """Reach the bus and find its destinations; raises BusError."""

    @abstractmethod
    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        """Send a batch and wait until each record is acknowledged, has failed, or time is up.

        Trouble with the bus is an answer, not an exception. Once a record has failed retriably no
        later one of its destination and key is delivered, so sending the failed ones again, in
        order and before any new ones, keeps the order. Connects by itself after a failure.
        """

    @abstractmethod
    def check(self) -> str:
        """Reach the bus without sending anything; one line about it, or BusError."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection. What is unacknowledged has been reported by `send`."""
