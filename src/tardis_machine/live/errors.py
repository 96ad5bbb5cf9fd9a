"""Errors of live streams, each with its code in published error messages."""

from typing import ClassVar

from tardis_machine.errors import TardisMachineError
from tardis_machine.messages import ErrorCode


class LiveError(TardisMachineError):
    """A failure of one exchange's live data; the stream reports it and tries again.

    `close_code` is the WebSocket close code, 1006 without a close frame. `retry_after_s` is the
    shortest wait that the exchange demands, in seconds.
    """

    code: ClassVar[ErrorCode | None] = None
    close_code: int = 1006
    retry_after_s: float = 0.0


class ConnectError(LiveError):
    """A WebSocket connection that could not be established."""

    code: ClassVar[ErrorCode | None] = "WS_CONNECT"

    def __init__(self, host: str, reason: str, retry_after_s: float = 0.0) -> None:
        self.host = host
        self.reason = reason
        self.retry_after_s = retry_after_s
        super().__init__(f"cannot connect to {host}: {reason}")


class HandshakeLimitError(ConnectError):
    """A WebSocket handshake that the exchange refused because of its rate limit."""

    code = "SOURCE_RATE_LIMIT"


class SendError(LiveError):
    """A message that could not be sent to the exchange."""

    code = "WS_SEND"

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot send: {reason}")


class ClosedError(LiveError):
    """A connection that the exchange closed or that broke."""

    code = "WS_CONNECT"

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.reason = reason
        super().__init__(
            f"connection closed, code {close_code}" + (f": {reason}" if reason else "")
        )


class StaleError(LiveError):
    """An open connection without data, or without any frame, for longer than its limit."""

    code = "WS_CONNECT"

    def __init__(self, what: str, silence_s: float) -> None:
        self.silence_s = silence_s
        super().__init__(f"no {what} for {silence_s:.1f} s")


class GarbageError(LiveError):
    """A frame that cannot be decoded."""

    def __init__(self, reason: str, frame: bytes) -> None:
        super().__init__(f"not a message: {reason}: {frame[:200].decode(errors='replace')}")


class ExchangeError(LiveError):
    """An error message that the exchange sent."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the exchange says: {text[:1000]}")


class RefusedError(ExchangeError):
    """A refused subscription to some symbols or channels; the other subscriptions go on."""


class LoginError(LiveError):
    """A login that the exchange refused or did not answer in time."""

    code = "SOURCE_AUTH"


class RestError(LiveError):
    """A REST request that failed."""

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(f"{url}: {reason}")


class RateLimitError(RestError):
    """A REST request that the exchange refused because of its rate limit or a ban."""

    code = "SOURCE_RATE_LIMIT"

    def __init__(self, url: str, status: int, retry_after_s: float) -> None:
        super().__init__(url, f"status {status}, wait {retry_after_s:.0f} s", status)
        self.retry_after_s = retry_after_s


class BookError(LiveError):
    """A book with a missing update, or a snapshot that does not fit its updates; it is resynced."""


class MalformedError(LiveError):
    """A message that the mapper cannot read; the stream skips it."""


class TooManyErrorsError(TardisMachineError):
    """Too many errors of an exchange in a row; the streams of all its clients end."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        # The two spaces are in the text of tardis-machine for Node.js, which clients may compare.
        super().__init__(f"Too many subsequent errors when connecting to  {exchange} WS API")


class SlowConsumerError(TardisMachineError):
    """A consumer with more unread bytes of a live stream than the buffer may hold."""

    def __init__(self, unread: int, limit: int) -> None:
        self.unread = unread
        self.limit = limit
        super().__init__(f"{unread} bytes not consumed, more than the {limit} that are kept")
