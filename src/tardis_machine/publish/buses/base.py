"""What all buses share, so that a bus is about its client alone.

A bus is given batches of records, in order, by one thread, and answers for each record whether it
was delivered. The base finds the destinations, turns away what is too heavy, and takes nothing
less than a fate for every record. Retries with backoff, dead letters and cursors are the
publisher's: it asks an error whether it is retriable.
"""

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from tardis_machine.config import ConfigError, Section, options, readable_by_others, setting
from tardis_machine.config.section import split_url
from tardis_machine.extras import require_installed
from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    MissingError,
    RecordRejectedError,
)
from tardis_machine.publish.buses.fates import Fates, SendResult
from tardis_machine.publish.record import Headers, Record, Records, Target
from tardis_machine.publish.routing import Router, Routing, Template, payload_cases, routes

_CONNECT_TIMEOUT_S: Final = 10.0
_SHORTEST_CONNECT_S: Final = 1.0
_BATCH_BYTES: Final = 8 << 20

_log = logging.getLogger(__name__)


class Order(StrEnum):
    """How strong the order is that a bus keeps."""

    PER_KEY = "per key"
    BETWEEN_CALLS = "per key between calls"
    NONE = "none"


class Limits(NamedTuple):
    """When a batch is full: so many records, so many bytes, or so long after its first record."""

    records: int
    bytes: int
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class BusConfig(Section, ABC):
    """Settings of one bus. Everything is checked by `validate`, before anything starts."""

    needs: ClassVar[tuple[str, ...]]
    """The settings that turn the bus on: all of them, or nothing of the section."""
    service: ClassVar[tuple[str, ...]] = ()
    """Further settings that say which service it is: a journal belongs to that, and to `needs`."""
    client: ClassVar[tuple[str, str] | None] = None
    """The module of the bus's client, and the extra that brings it."""
    files: ClassVar[tuple[str, ...]] = ()
    """The settings that name files the client will read."""
    secret_files: ClassVar[tuple[str, ...]] = ()
    """Those of them that nobody else should be able to read."""

    include_payloads: tuple[str, ...] = setting(
        (), help="payload cases to publish; all if empty", metavar="CASE,…"
    )

    @property
    def enabled(self) -> bool:
        """Tell whether the bus is on."""
        return all(getattr(self, name) for name in self.needs)

    def in_force(self, name: str) -> Any:
        """Give a setting as it takes effect: the client may find elsewhere what is not set."""
        return getattr(self, name)

    @property
    def may_create(self) -> bool:
        """Tell whether destinations that are missing are to be created."""
        return False

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
        for name in self.files:
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(self.flag(name), str(path), "expected a file that is there")

    def expect_client(self) -> None:
        """Refuse a bus whose client is not installed; nothing is imported."""
        if self.client is not None:
            module, extra = self.client
            require_installed(module, extra=extra)

    def both_or_neither(self, one: str, other: str) -> None:
        """Refuse one of two settings without the other."""
        self.together(one, other)
        self.together(other, one)

    def together(self, given: str, needed: str) -> None:
        """Refuse a setting without another that it needs."""
        if getattr(self, given) is not None and getattr(self, needed) is None:
            raise ConfigError(self.flag(needed), None, f"is missing, and {self.flag(given)} is set")

    def check_port(self, name: str, allowed: str) -> None:
        """Refuse an address whose host or port nobody could make sense of."""
        address = str(getattr(self, name))
        if split_url(address) is None:
            raise ConfigError(self.flag(name), address, allowed)

    def warnings(self) -> list[str]:
        """Say which routes the allow-list leaves unused, and which secrets lie open."""
        found = []
        unused = self.routing().unused_routes if self.enabled else ()
        if unused:
            flag = self.flag("include_payloads")
            found.append(f"{flag} leaves out {', '.join(unused)}, whose route is never used")
        for name in self.secret_files:
            path = getattr(self, name)
            if path is not None and readable_by_others(path):
                found.append(f"{self.flag(name)} {path} can be read by others: chmod 600 it")
        return found

    def _check_template(
        self, made: Template, name: str, check: Callable[[str, str], object] | None
    ) -> None:
        """Refuse a template that makes bad destinations of good values."""
        if check is not None:
            try:
                check(made.render(lambda _: "x"), self.flag(name))
            except ConfigError as error:
                raise ConfigError(error.flag, made.text, error.allowed) from None

    def rules(
        self,
        destination: str,
        *,
        routing: str | None = None,
        check: Callable[[str, str], object] | None = None,
        template: str | None = None,
        key: str | None = None,
        headers: Headers = (),
        header_templates: Sequence[tuple[str, Template]] = (),
        meta_headers_prefix: str | None = None,
        clean: Callable[[str], str] = str,
        clean_header: Callable[[str], str] = str,
        fit_key: Callable[[str], str] = str,
    ) -> Routing:
        """Check and join what these settings say; the rest are the names of settings.

        `destination` has its routes in the setting `…_routing`, unless another one is named;
        `check(name, flag)` refuses a bad one, and what `template` makes of some value.
        """
        base = str(getattr(self, destination))
        routing = routing or f"{destination}_routing"
        given: Mapping[str, str] = getattr(self, routing, {})
        made = None
        if check is not None:
            check(base, self.flag(destination))
        if template is not None and getattr(self, template) is not None:
            made = Template(getattr(self, template), self.flag(template))
            self._check_template(made, template, check)
        return Routing(
            base=base,
            routes=routes(given, self.flag(routing), check),
            include=payload_cases(self.include_payloads, self.flag("include_payloads")),
            destination=made,
            key=None if key is None else Template(getattr(self, key), self.flag(key)),
            headers=headers,
            header_templates=header_templates,
            meta_headers_prefix=meta_headers_prefix,
            clean=clean,
            clean_header=clean_header,
            fit_key=fit_key,
        )


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(BusConfig):
    """Settings of a bus that is a service, reached over the network in batches."""

    max_batch_size: int = setting(
        5_000, minimum=1, maximum=100_000, help="records handed over at once"
    )
    max_batch_delay_ms: int = setting(
        20, minimum=0, maximum=60_000, help="longest wait for a batch to fill"
    )

    @property
    def limits(self) -> Limits:
        """Batches as configured; what they weigh is bounded too."""
        return Limits(self.max_batch_size, _BATCH_BYTES, self.max_batch_delay_ms / 1000)


C = TypeVar("C", bound=BusConfig)


def _do_nothing() -> None:
    """Do the housekeeping of a bus that only sends."""


class EventBus(ABC, Generic[C]):
    """One bus, used by one thread at a time. A bus fills in what begins with an underscore."""

    name: ClassVar[str]
    config_type: ClassVar[type[BusConfig]]
    noun: ClassVar[str]
    """What the bus calls a destination."""

    def __init__(self, config: C) -> None:
        self.config = config
        self.meanwhile: Callable[[], None] = _do_nothing
        """Called by `send` where there is nothing to do but wait; whoever sends may set it."""
        self._unusable: dict[str, BusError] = {}

    @property
    def limits(self) -> Limits:
        """Give the size of the batches `send` wants."""
        return self.config.limits

    @property
    def order(self) -> Order:
        """Declare how strong an order the bus keeps, as it is configured."""
        return Order.PER_KEY

    def destinations(self) -> tuple[str, ...]:
        """Name the destinations that are known before the first event."""
        return self.config.routing().destinations

    def router(self) -> Router:
        """Give a new router with this bus's rules."""
        return Router(self.config.routing(), self.overhead, self.weigh)

    def overhead(self, target: Target) -> int:
        """Count what the service counts of each record to a target, besides its value."""
        return 0

    def weigh(self, size: int) -> int:
        """Count what the service counts of a value of so many bytes."""
        return size

    def connect(self, timeout_s: float = _CONNECT_TIMEOUT_S) -> Mapping[str, BusError]:
        """Reach the bus and find or create its destinations; raises BusError.

        Gives the destinations that cannot be used yet, and why, if there are others that can.
        """
        self.close()
        try:
            self._unusable = self._begin(timeout_s)
        except BaseException:
            self._close()
            raise
        return self._unusable

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        """Send a batch and wait until each record is acknowledged, has failed, or time is up.

        Trouble with the bus is an answer, not an exception. Once a record has failed retriably no
        later one of its destination and key is delivered (as far as `order` promises), so sending
        the failed ones again, in order and before any new ones, keeps the order. Connects by
        itself after a failure.
        """
        deadline = time.monotonic() + timeout_s
        fates = Fates(self.name, len(records))
        columns = Records.of(records)
        try:
            self._be_ready(columns, timeout_s)
            self._turn_away(columns, fates)
            self._deliver(columns, fates, deadline)
        except BusError as error:
            fates.fail(fates.open(), error)
        except Exception as error:  # noqa: BLE001 - a bug in one bus must not stop it for good
            _log.exception("bus failed unexpectedly", extra={"bus": self.name})
            reason = f"{type(error).__name__}: {error}"
            fates.fail(fates.open(), BusUnavailableError(self.name, reason))
            self._close()  # nobody knows what the connection has yet to say
        forgotten = fates.open()
        if forgotten:
            # Nobody knows what became of these: twice is allowed, lost is not.
            _log.error("bus forgot records", extra={"bus": self.name, "records": len(forgotten)})
            reason = "the bus did not say what became of the record"
            fates.fail(forgotten, BusUnavailableError(self.name, reason))
        result = fates.result()
        if self.config.may_create and any(isinstance(e, MissingError) for _, e in result.failures):
            self._close()  # to look again what is missing, and create it
        return result

    def check(self) -> str:
        """Reach the bus without sending or creating anything; one line about it, or BusError."""
        self.close()
        try:
            self._open(_CONNECT_TIMEOUT_S)
            destinations = self.destinations()
            missing = self._missing(destinations)
            for destination, error in missing.items():
                if error is not None or not self.config.may_create:
                    raise error or self._lacking(destination)
            said = f"{self._address()}, {self.noun}s {', '.join(destinations)}"
            if missing:
                said += f" (will be created: {', '.join(missing)})"
            return said + "".join(f", {each}" for each in self._remarks(missing))
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the connection. What is unacknowledged has been reported by `send`."""
        self._close()
        self._unusable = {}

    @abstractmethod
    def _open(self, timeout_s: float) -> None:
        """Reach the bus; raises BusError."""

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """Tell whether it needs to be reached before sending."""

    @abstractmethod
    def _close(self) -> None:
        """Let go of the connection, if there is one."""

    @abstractmethod
    def _address(self) -> str:
        """Name where it is, for `check`."""

    def _remarks(self, missing: Collection[str]) -> Sequence[str]:
        """Say what else there is to say about a bus, for `check`; raises BusError."""
        return ()

    def _missing(self, destinations: Sequence[str]) -> Mapping[str, BusError | None]:
        """Name the destinations that are not there, or why they cannot be used; raises BusError."""
        return {}

    def _create(self, destination: str) -> None:
        """Create a destination; raises BusError."""
        raise NotImplementedError(destination)

    def _prepare(self, destinations: Sequence[str]) -> None:
        """Do what is needed before the first record goes to these; raises BusError."""

    def _heaviest(self, destination: str) -> int:
        """Give the weight of the heaviest record that a destination takes."""
        return sys.maxsize

    @abstractmethod
    def _deliver(self, records: Records, fates: Fates, deadline: float) -> None:
        """Send the records whose fate is open, and tell `fates` what became of each.

        What is raised, or left open, fails retriably.
        """

    def _begin(self, timeout_s: float) -> dict[str, BusError]:
        self._open(timeout_s)
        destinations = self.destinations()
        unusable = self._look(destinations)
        if len(unusable) == len(destinations):
            raise unusable[destinations[0]]
        self._prepare([each for each in destinations if each not in unusable])
        return unusable

    def _be_ready(self, records: Records, timeout_s: float) -> None:
        """Connect if need be, and look again for destinations that were missing."""
        wanted = self._unusable and not self._unusable.keys().isdisjoint(_destinations(records))
        if not self._is_open or wanted:
            self.connect(max(_SHORTEST_CONNECT_S, min(_CONNECT_TIMEOUT_S, timeout_s)))

    def _turn_away(self, records: Records, fates: Fates) -> None:
        """Settle what cannot be sent: too heavy for good, its destination missing for now."""
        wanted = _destinations(records)
        # What cannot be reached cannot be asked for its bound either.
        bounds = {each: self._heaviest(each) for each in wanted.difference(self._unusable)}
        heaviest = max(records.weights, default=0)
        if len(bounds) == len(wanted) and heaviest <= min(bounds.values(), default=0):
            return
        for place, record in enumerate(records):
            destination = record.destination
            if destination in self._unusable:
                fates.fail([place], self._unusable[destination])
                continue
            bound = bounds[destination]
            if record.weight > bound:
                reason = f"{record.weight} bytes, and the {self.noun} takes {bound} at most"
                fates.fail([place], self._rejected(record, reason))

    def _look(self, destinations: Sequence[str]) -> dict[str, BusError]:
        """Find what is missing, and create it if that is wanted; give what cannot be used."""
        unusable: dict[str, BusError] = {}
        for destination, error in self._missing(destinations).items():
            if error is not None or not self.config.may_create:
                unusable[destination] = error or self._lacking(destination)
                continue
            try:
                self._create(destination)
            except BusError as refusal:
                unusable[destination] = refusal
            else:
                _log.info("destination created", extra={"bus": self.name, self.noun: destination})
        return unusable

    def _lacking(self, destination: str) -> BusUnavailableError:
        creating = "create" in {option.name for option in options(type(self.config))}
        hint = f", or set {self.config.flag('create')}" if creating else ""
        reason = f"{self.noun} does not exist: create it{hint}"
        return self._unavailable(reason, destination)

    def _unavailable(self, reason: str, destination: str | None = None) -> BusUnavailableError:
        return BusUnavailableError(self.name, reason, destination=destination)

    def _rejected(self, record: Record, reason: str) -> RecordRejectedError:
        return RecordRejectedError(self.name, reason, destination=record.destination)


def _destinations(records: Records) -> set[str]:
    return set(map(attrgetter("destination"), records.targets))
