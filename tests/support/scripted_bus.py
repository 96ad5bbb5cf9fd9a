"""A bus that takes records in memory and fails as a script says: for what no broker can be told."""

from collections.abc import Callable, Mapping, Sequence

from tardis_machine.publish.buses.base import EventBus, Limits
from tardis_machine.publish.buses.errors import BusError, NotSentError
from tardis_machine.publish.buses.fates import Fates, SendResult
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.record import Record

Fail = Callable[[int, Sequence[Record]], dict[int, BusError]]


class ScriptedBus(EventBus[KafkaConfig]):
    """Keeps what it takes; `fail(batch, records)` says which records fail, and how.

    What comes behind a failed record of its key is held back, as every bus does.
    """

    name = "scripted"
    config_type = KafkaConfig
    noun = "topic"

    def __init__(
        self, fail: Fail, limits: Limits, *, routes: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(
            KafkaConfig(brokers=("unused",), topic="base", topic_routing=dict(routes or {}))
        )
        self._fail = fail
        self._limits = limits
        self.batches: list[list[str]] = []
        self.taken: list[Record] = []
        self.timeouts: list[tuple[set[str], float]] = []
        """For each attempt where to, and how long it might take."""

    @property
    def limits(self) -> Limits:
        return self._limits

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        self.timeouts.append(({record.destination for record in records}, timeout_s))
        return super().send(records, timeout_s)

    @property
    def _is_open(self) -> bool:
        return True

    def _open(self, timeout_s: float) -> None:
        """There is nothing to reach."""

    def _close(self) -> None:
        """There is nothing to let go of."""

    def _address(self) -> str:
        return "memory"

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        self.meanwhile()
        failed = self._fail(len(self.batches), records)
        self.batches.append([record.event.event_id for record in records])
        held = {
            (records[place].destination, records[place].key)
            for place, error in failed.items()
            if error.retriable
        }
        for place, record in enumerate(records):
            if place in failed:
                fates.fail([place], failed[place])
            elif (record.destination, record.key) in held:
                fates.fail([place], NotSentError(self.name, "held back"))
            else:
                fates.deliver([place])
                self.taken.append(record)
