"""The books of a bus: every journalled message is filtered, delivered, pending, dead or dropped."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from tardis_machine.journal import CursorState

_BATCH_SIZES: Final = (1, 10, 50, 100, 500, 1_000, 2_500, 5_000, 10_000, 50_000)
_LATENCIES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Account(msgspec.Struct):
    """What became of the messages in the journal, for one bus.

    journalled = filtered + accepted; accepted = delivered + pending + dead_lettered + dropped.
    A message that has not been looked at yet counts as accepted and pending.
    """

    journalled: int = 0
    filtered: int = 0
    delivered: int = 0
    duplicates: int = 0
    dead_lettered: int = 0
    dropped: int = 0

    @property
    def accepted(self) -> int:
        return self.journalled - self.filtered

    @property
    def pending(self) -> int:
        return self.accepted - self.delivered - self.dead_lettered - self.dropped

    def add(self, state: CursorState, journalled: int, skipped: int = 0) -> int:
        """Add one log: its cursor's counts, its length, and what lies skipped before the cursor.

        Gives how many messages are taken to be in it: a cursor ahead of a log that lost its tail to
        a power cut says what was journalled.
        """
        journalled = max(journalled, state.seen)
        self.journalled += journalled
        self.filtered += state.filtered
        self.delivered += state.delivered
        self.duplicates += state.duplicates
        self.dead_lettered += state.dead_lettered
        self.dropped += state.dropped + skipped
        return journalled

    def merge(self, other: "Account") -> None:
        """Add another account's counts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def counts(self) -> dict[str, int]:
        """Give every count by name, the sums included."""
        return {
            "journalled": self.journalled,
            "filtered": self.filtered,
            "accepted": self.accepted,
            "delivered": self.delivered,
            "duplicates": self.duplicates,
            "pending": self.pending,
            "dead_lettered": self.dead_lettered,
            "dropped": self.dropped,
        }


class Distribution(msgspec.Struct):
    """How often a value was at most each bound; the last place counts what is above all."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: Sequence[float]) -> "Distribution":
        return cls(tuple(bounds), [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _batches() -> Distribution:
    return Distribution.over(_BATCH_SIZES)


def _latency() -> Distribution:
    return Distribution.over(_LATENCIES_S)


class Statistics(msgspec.Struct):
    """Counted since the publisher process started.

    `held_back` are the records that wait now for destinations that fail, `deaths` the deliveries
    that died of an unexpected error. `last_error` is short: `bounded.shortened`.
    """

    healthy: bool = True
    last_error: str = ""
    deaths: int = 0
    delivered: int = 0
    retried: int = 0
    held_back: int = 0
    held_back_bytes: int = 0
    batches: Distribution = msgspec.field(default_factory=_batches)
    latency: Distribution = msgspec.field(default_factory=_latency)


class BusSnapshot(msgspec.Struct):
    """One bus at one moment; `ended` are the books of the logs whose writers are gone.

    `counted` says of each log that a server still writes how many of its messages are in them.
    """

    account: Account
    ended: Account
    statistics: Statistics
    journal_bytes: int = 0
    dead_letter_bytes: int = 0
    counted: dict[str, int] = msgspec.field(default_factory=dict)


class Snapshot(msgspec.Struct):
    """All buses at one moment, by a clock that all processes share.

    `final` is a publisher's last word, `standby` what another one says that is at work.
    `sync_failures` are those of the process that reports, in the log of its own server.
    """

    buses: dict[str, BusSnapshot]
    at: float
    aside_bytes: int = 0
    gave_way_s: float = 0.0
    log_dropped: int = 0
    final: bool = False
    standby: bool = False
    sync_failures: int = 0
    sync_error: str = ""

    @property
    def left(self) -> int:
        """Count what servers that are gone have left undelivered."""
        return sum(bus.ended.pending for bus in self.buses.values())

    def reach(self, log: str, messages: int, *, ended: bool = False) -> None:
        """Count the messages that a log holds by now: its writer knows that sooner.

        `ended`: in the books of the logs that have ended.
        """
        for bus in self.buses.values():
            counted = bus.counted.get(log, messages)
            if counted < messages:
                (bus.ended if ended else bus.account).journalled += messages - counted
                bus.counted[log] = messages

    def leave_to_others(self, buses: Iterable[str]) -> None:
        """Take what is left for these out of the books: others deliver and account for it."""
        for name in self.buses.keys() & set(buses):
            ended = self.buses[name].ended
            ended.journalled -= ended.pending


class BusReport(NamedTuple):
    """What became of the messages for one bus."""

    bus: str
    account: Account

    def counts(self) -> dict[str, str | int]:
        return {"bus": self.bus, **self.account.counts()}


class DrainReport(NamedTuple):
    """The last word on publishing, bus by bus."""

    buses: list[BusReport]

    @property
    def pending(self) -> int:
        """Count what is kept in the journal for another time."""
        return sum(bus.account.pending for bus in self.buses)
