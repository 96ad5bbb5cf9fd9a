"""Records sent until each is settled: delivered, refused for good, or given up on."""

import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tardis_machine.backoff import Backoff
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.fates import Failure
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.record import Record

_log = logging.getLogger(__name__)


class Settled(NamedTuple):
    """What became of records; places are those in what was given."""

    delivered: int
    refused: list[Failure]
    """What the bus will never accept."""
    unsent: list[Failure]
    """What it did not take however often it was asked, in order."""


def settle(bus: EventBus[Any], records: Sequence[Record], config: PublishConfig) -> Settled:
    """Send records, and what failed again in order, as often in a row as is configured."""
    backoff = Backoff(config.retry_min_ms / 1000, config.retry_max_s)
    delivered = 0
    refused: list[Failure] = []
    places: Sequence[int] = range(len(records))
    while places:
        result = bus.send([records[place] for place in places], config.send_timeout_s)
        delivered += result.delivered
        failures = [Failure(places[place], error) for place, error in result.failures]
        refused += [each for each in failures if not each.error.retriable]
        unsent = [each for each in failures if each.error.retriable]
        if not unsent:
            break
        if result.delivered:
            backoff.halve()
        pause_s = backoff.next_pause_s()
        reason = str(unsent[0].error)
        _log.warning("retrying", extra={"bus": bus.name, "reason": reason})
        if backoff.failures >= config.retry_max:
            return Settled(delivered, refused, unsent)
        time.sleep(pause_s)
        places = [each.place for each in unsent]
    return Settled(delivered, refused, [])
