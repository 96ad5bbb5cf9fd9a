"""One readable line per event, for debugging."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from tardis_machine.config import setting
from tardis_machine.publish.buses.base import (
    BusConfig,
    BusUnavailableError,
    EventBus,
    Failure,
    Limits,
    SendResult,
)
from tardis_machine.publish.record import Record
from tardis_machine.publish.routing import DEFAULT_KEY, Routing, Template, payload_cases


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig(BusConfig, section="console", title="Console"):
    """Where events are printed, and which."""

    needs = ("output",)

    output: str | None = setting(
        None, choices=("stdout", "stderr"), help="print one line per event, for debugging"
    )
    include_payloads: tuple[str, ...] = setting(
        (), help="payload cases to print; all if empty", metavar="CASE,…"
    )

    def routing(self) -> Routing:
        """Everything goes to the one stream."""
        return Routing(
            base=self.output or "",
            routes={},
            include=payload_cases(self.include_payloads, self.flag("include_payloads")),
            key=Template(DEFAULT_KEY, "key"),
        )

    @property
    def limits(self) -> Limits:
        """Small batches: somebody is watching."""
        return Limits(records=1_000, bytes=1 << 20, delay_s=0.1)


class ConsoleEventBus(EventBus[ConsoleConfig]):
    """Prints local time, what it is, its id, and the message as clients see it."""

    name = "console"
    config_type = ConsoleConfig

    def connect(self) -> None:
        """Nothing to reach."""

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        """Print the batch."""
        try:
            stream = self._stream()
            stream.write("".join(map(_line, records)))
            stream.flush()
        except (OSError, ValueError) as error:
            reason = BusUnavailableError(self.name, str(error), destination=self.config.output)
            return SendResult(0, 0, [Failure(i, reason) for i in range(len(records))])
        return SendResult(len(records), 0, [])

    def check(self) -> str:
        """Say where lines go."""
        return f"prints to {self.config.output}"

    def close(self) -> None:
        """Leave the streams open: they are the process's."""

    def _stream(self) -> TextIO:
        return sys.stderr if self.config.output == "stderr" else sys.stdout


def _line(record: Record) -> str:
    from tardis_machine.bronze import decode  # noqa: PLC0415 - a server without buses needs none
    from tardis_machine.messages import encode_line  # noqa: PLC0415

    message, _ = decode(record.value)
    text = encode_line(message).decode().rstrip("\n")
    return f"{record.event.payload_case} {record.key} {record.event.event_id} {text}\n"
