"""One readable line per event, for debugging."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from tardis_machine.config import setting
from tardis_machine.publish.buses.base import BusConfig, EventBus, Limits
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import Record
from tardis_machine.publish.routing import DEFAULT_KEY, Routing, Template, payload_cases


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig(BusConfig, section="console", title="Console"):
    """Where events are printed, and which."""

    needs = ("output",)

    output: str | None = setting(
        None, choices=("stdout", "stderr"), help="print one line per event, for debugging"
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
    noun = "stream"

    @property
    def _is_open(self) -> bool:
        return True

    def _open(self, timeout_s: float) -> None:
        """Nothing to reach."""

    def _close(self) -> None:
        """Leave the streams open: they are the process's."""

    def _address(self) -> str:
        return "printed lines"

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        """Print the batch."""
        places = fates.open()
        try:
            stream = self._stream()
            stream.write(_showable("".join([_line(records[place]) for place in places]), stream))
            stream.flush()
        except (OSError, ValueError) as error:
            raise self._unavailable(str(error)) from error
        fates.deliver(places)

    def _stream(self) -> TextIO:
        return sys.stderr if self.config.output == "stderr" else sys.stdout


def _showable(text: str, stream: TextIO) -> str:
    """Write what a stream's encoding does not have as escapes: it would hold up the rest."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _line(record: Record) -> str:
    from tardis_machine.bronze import decode  # noqa: PLC0415 - a server without buses needs none
    from tardis_machine.messages import encode_line  # noqa: PLC0415

    message, _ = decode(record.value)
    text = encode_line(message).decode().rstrip("\n")
    return f"{record.event.payload_case} {record.key} {record.event.event_id} {text}\n"
