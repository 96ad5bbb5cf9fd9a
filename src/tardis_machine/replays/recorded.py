"""Raw messages of replays, decoded for Python programs."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from tardis_machine.errors import TardisMachineError
from tardis_machine.messages import Time
from tardis_machine.messages.times import SECONDS

_SHOWN: Final = 100


class RawMessage(NamedTuple):
    """A message as the exchange sent it, decoded from JSON, with its local time in microseconds."""

    local_timestamp: Time
    message: Any


class RawMessageError(TardisMachineError):
    """A recorded message that is not JSON; `batches()` yields it undecoded."""

    def __init__(self, line: bytes, reason: str) -> None:
        shown = line[:_SHOWN].decode(errors="replace")
        super().__init__(f"not JSON: {reason}: {shown}; batches() gives lines as they are")
        self.line = line
        self.reason = reason


class _Line(msgspec.Struct, rename="camel", gc=False):
    local_timestamp: str
    message: Any


_DECODER: Final = msgspec.json.Decoder(_Line)


def decode_recorded(ndjson: bytes) -> Iterable[RawMessage | None]:
    """Return the decoded lines of a raw replay; None stands for an empty line, a disconnect."""
    if b"\n\n" not in ndjson and not ndjson.startswith(b"\n"):
        try:
            return [_message(line) for line in _DECODER.decode_lines(ndjson)]
        except (msgspec.MsgspecError, ValueError):
            pass
    return _one_by_one(ndjson)


def _one_by_one(ndjson: bytes) -> Iterator[RawMessage | None]:
    for line in ndjson.split(b"\n")[:-1]:
        if not line:
            yield None
            continue
        try:
            message = _message(_DECODER.decode(line))
        except (msgspec.MsgspecError, ValueError) as error:
            raise RawMessageError(line, str(error)) from None
        yield message


def _message(line: _Line) -> RawMessage:
    text = line.local_timestamp
    return RawMessage(Time(SECONDS[text[:20]] * 1_000_000 + int(text[20:26])), line.message)
