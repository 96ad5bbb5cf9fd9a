"""JSON text of errors and disconnects; some of their fields are sent to buses only."""

from collections.abc import Sequence

import msgspec

from tardis_machine.messages import ErrorCode


class _Disconnect(msgspec.Struct, tag_field="type", tag="disconnect", omit_defaults=True):
    exchange: str
    local_timestamp: str = msgspec.field(name="localTimestamp")
    symbols: Sequence[str] | None = None
    reason: str | None = None
    close_code: int | None = msgspec.field(name="closeCode", default=None)


class _Error(msgspec.Struct, tag_field="type", tag="error", omit_defaults=True):
    exchange: str
    local_timestamp: str = msgspec.field(name="localTimestamp")
    details: str
    count: int = msgspec.field(name="subSequentErrorsCount")
    code: ErrorCode | None = None


def disconnect_line(
    exchange: str,
    local: str,
    symbols: Sequence[str] | None,
    *,
    reason: str | None = None,
    close_code: int | None = None,
) -> bytes:
    """Return a disconnect as a JSON line; `reason` and `close_code` are for buses only."""
    message = _Disconnect(exchange, local, symbols, reason or None, close_code or None)
    return msgspec.json.encode(message) + b"\n"


def error_line(
    exchange: str, local: str, details: str, count: int, *, code: ErrorCode | None = None
) -> bytes:
    """Return an error as a JSON line; `code` is for buses only."""
    return msgspec.json.encode(_Error(exchange, local, details, count, code)) + b"\n"
