"""Dead letters sent again, after what was wrong with them or with the bus has changed."""

import logging
import time
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tardis_machine.bronze import Encoder, Event, Rejected
from tardis_machine.config import ConfigError
from tardis_machine.publish.backoff import Backoff
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig, EventBus
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters, read
from tardis_machine.publish.record import Record

_log = logging.getLogger(__name__)

_IN_WORK: Final = ".resending"


class Resent:
    """What became of one bus's dead letters."""

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.delivered = 0
        self.filtered = 0
        self.refused = 0
        self.unsent = 0

    def counts(self) -> dict[str, str | int]:
        return dict(vars(self))


def resend(path: Path, buses: Mapping[str, BusConfig], config: PublishConfig) -> Iterator[Resent]:
    """Send the letters of a file, or of all files of a directory.

    A file is renamed while it is worked on, so that a publisher may write new letters meanwhile;
    what is refused again, or could not be sent, goes back to where it was.
    """
    for file in _files(path):
        work = file if file.name.endswith(_IN_WORK) else file.with_name(file.name + _IN_WORK)
        file.replace(work)
        for bus, letters in groupby(read(work), key=lambda letter: letter.bus):
            if bus not in buses:
                work.replace(work.with_name(work.name.removesuffix(_IN_WORK)))
                allowed = ", ".join(buses) or "none"
                raise ConfigError(
                    "--dead-letters", str(file), f"is for {bus}; buses configured: {allowed}"
                )
            yield _resend(letters, BUSES[bus](buses[bus]), DeadLetters(work.parent, bus), config)
        work.unlink()


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted([*path.glob("*.ndjson"), *path.glob(f"*.ndjson{_IN_WORK}")])
    if not path.exists():
        raise ConfigError("--dead-letters", str(path), "expected a file or a directory of them")
    return [path]


def _resend(
    letters: Iterator[DeadLetter], bus: EventBus[Any], back: DeadLetters, config: PublishConfig
) -> Resent:
    found = Resent(bus.name)
    router = bus.router()
    try:
        while batch := list(islice(letters, bus.limits.records)):
            waiting: list[_Waiting] = []
            for letter in batch:
                event = letter.event() or _encode(letter)
                if isinstance(event, Rejected):
                    back.add(letter)
                    found.refused += 1
                    continue
                router.context = letter.context
                records = router.route([event])
                waiting += [_Waiting(letter, record) for record in records]
                found.filtered += not records
            if not found.unsent:
                waiting = _send(waiting, bus, back, config, found)
            for letter, _ in waiting:
                back.add(letter)
            found.unsent += len(waiting)
    finally:
        bus.close()
    return found


class _Waiting(NamedTuple):
    letter: DeadLetter
    record: Record


def _encode(letter: DeadLetter) -> Event | Rejected:
    """Encode a line that could not be encoded before; it may be a newer encoder's turn."""
    [event] = Encoder(letter.context).encode_lines(letter.line.encode(), letter.position)
    return event


def _send(
    waiting: list[_Waiting],
    bus: EventBus[Any],
    back: DeadLetters,
    config: PublishConfig,
    found: Resent,
) -> list[_Waiting]:
    """Try as often as configured; gives what the bus did not take then."""
    backoff = Backoff(config.retry_min_ms / 1000, config.retry_max_s)
    while waiting:
        result = bus.send([each.record for each in waiting], config.send_timeout_s)
        found.delivered += result.delivered
        again = []
        for index, error in result.failures:
            if error.retriable:
                again.append(waiting[index])
            else:
                back.add(msgspec.structs.replace(waiting[index].letter, reason=str(error)))
                found.refused += 1
        waiting = again
        if waiting:
            pause_s = backoff.next_pause_s()
            reason = str(result.failures[0].error)
            _log.warning("retrying", extra={"bus": bus.name, "reason": reason})
            if backoff.failures >= config.retry_max:
                break
            time.sleep(pause_s)
    return waiting
