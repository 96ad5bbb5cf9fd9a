"""How a live stream can go wrong; each error knows its code on the buses."""

from typing import ClassVar

from tardis_machine.errors import TardisMachineError
from tardis_machine.messages import ErrorCode


class LiveError(TardisMachineError):
    """Something between an exchange and this process; streams report it and try again.

    `close_code` is the WebSocket's, 1006 where there was no close; `retry_after_s` is what the
    exchange asks to wait at least.
    """

    code: ClassVar[ErrorCode | None] = None
    close_code: int = 1006
    retry_after_s: float = 0.0


class ConnectError(LiveError):
    """A connection that could not be made."""

    code: ClassVar[ErrorCode | None] = "WS_CONNECT"

    def __init__(self, host: str, reason: str, retry_after_s: float = 0.0) -> None:
        self.host = host
        self.reason = reason
        self.retry_after_s = retry_after_s
        super().__init__(f"cannot connect to {host}: {reason}")


class HandshakeLimitError(ConnectError):
    """A handshake that was refused since there were too many."""

    code = "SOURCE_RATE_LIMIT"


class SendError(LiveError):
    """A message that could not be sent to the exchange."""

    code = "WS_SEND"

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot send: {reason}")


class ClosedError(LiveError):
    """A connection that ended, by the exchange's will or by accident."""

    code = "WS_CONNECT"

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.reason = reason
        super().__init__(
            f"connection closed, code {close_code}" + (f": {reason}" if reason else "")
        )


class StaleError(LiveError):
    """A connection that is open, but silent."""

    code = "WS_CONNECT"

    def __init__(self, what: str, silence_s: float) -> None:
        self.silence_s = silence_s
        super().__init__(f"no {what} for {silence_s:.1f} s")


class GarbageError(LiveError):
    """A frame that is no message."""

    def __init__(self, reason: str, frame: bytes) -> None:
        super().__init__(f"not a message: {reason}: {frame[:200].decode(errors='replace')}")


class ExchangeError(LiveError):
    """What the exchange itself calls an error."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the exchange says: {text[:1000]}")


class RefusedError(ExchangeError):
    """A subscription to single symbols or channels that was refused; the others go on."""


class LoginError(LiveError):
    """Credentials that were not accepted in time."""

    code = "SOURCE_AUTH"


class RestError(LiveError):
    """A REST request that failed."""

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(f"{url}: {reason}")


class RateLimitError(RestError):
    """A REST server that asks to wait."""

    code = "SOURCE_RATE_LIMIT"

    def __init__(self, url: str, status: int, retry_after_s: float) -> None:
        super().__init__(url, f"status {status}, wait {retry_after_s:.0f} s", status)
        self.retry_after_s = retry_after_s


class BookError(LiveError):
    """A book that lost an update, or whose snapshot does not join: it is fetched again."""


class MalformedError(LiveError):
    """A message that the mapper cannot make sense of; it is left out."""


class TooManyErrorsError(TardisMachineError):
    """An exchange that could not be streamed for long; the server ends its clients' streams."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        # The two spaces are what clients of this API know.
        super().__init__(f"Too many subsequent errors when connecting to  {exchange} WS API")


class SlowConsumerError(TardisMachineError):
    """A consumer that is too far behind a live stream: it would have to be kept for ever."""

    def __init__(self, unread: int, limit: int) -> None:
        self.unread = unread
        self.limit = limit
        super().__init__(f"{unread} bytes not consumed, more than the {limit} that are kept")
