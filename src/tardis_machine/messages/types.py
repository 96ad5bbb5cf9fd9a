"""Normalized messages: one struct per type, and the types of their times."""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal, Self

import msgspec

from tardis_machine.errors import TardisMachineError
from tardis_machine.messages.times import END_MS, SECOND_TEXTS, SECONDS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Side = Literal["buy", "sell", "unknown"]
ErrorCode = Literal["WS_CONNECT", "WS_SEND", "SOURCE_AUTH", "SOURCE_RATE_LIMIT"]


class MessageError(TardisMachineError):
    """Text that is not a normalized message, or a message that has no JSON form.

    `field` is the JSON path of the invalid value, `line` its line number (from 0), if known.
    """

    def __init__(self, reason: str, *, field: str | None = None, line: int | None = None) -> None:
        self.reason = reason
        self.field = field
        self.line = line
        where = "" if line is None else f"line {line + 1}: "
        super().__init__(f"{where}not a normalized message: {reason}")


class Time(int):
    """A time in microseconds since 1970, printed with six fractional digits."""

    __slots__ = ()
    digits: ClassVar[int] = 6

    @staticmethod
    def parse(text: str) -> "Time":
        """Return a Milliseconds for ISO text with three fractional digits, a Time for six."""
        return read_time(Time, text)

    @classmethod
    def of(cls, microseconds: int) -> Self:
        """Return a time of this class, truncated to the digits that the class prints."""
        step: int = 10 ** (6 - cls.digits)
        return cls(microseconds // step * step)

    @property
    def datetime(self) -> datetime:
        """The time as a datetime in UTC."""
        return _EPOCH + timedelta(microseconds=self)

    def __str__(self) -> str:
        second, fraction = divmod(self, 1_000_000)
        return f"{SECOND_TEXTS[second]}{fraction:06d}Z"

    def __repr__(self) -> str:
        return f"<{self}>"


class Milliseconds(Time):
    """A time in microseconds since 1970 with millisecond precision, printed with three digits."""

    __slots__ = ()
    digits: ClassVar[int] = 3

    def __str__(self) -> str:
        second, fraction = divmod(self, 1_000_000)
        return f"{SECOND_TEXTS[second]}{fraction // 1000:03d}Z"


_MILLISECONDS: Final = {end[:3]: ms for end, ms in END_MS.items()}


class _Fields(msgspec.Struct, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """The base of all messages: keys in the order of the JSON text, without those that are None."""


class BookLevel(_Fields):
    """A price and the amount at it; an amount of 0 removes the level."""

    price: float
    amount: float


class BookSnapshotLevel(_Fields):
    """A level of a snapshot; price and amount are None if the book has fewer levels."""

    price: float | None = None
    amount: float | None = None


class Trade(_Fields, tag_field="type", tag="trade", kw_only=True):
    symbol: str
    exchange: str
    id: str | float | None = None
    price: float
    amount: float
    side: Side
    timestamp: Time
    local_timestamp: Time


class BookChange(_Fields, tag_field="type", tag="book_change", kw_only=True):
    symbol: str
    exchange: str
    is_snapshot: bool
    bids: list[BookLevel]
    asks: list[BookLevel]
    timestamp: Time
    local_timestamp: Time


class DerivativeTicker(_Fields, tag_field="type", tag="derivative_ticker", kw_only=True):
    symbol: str
    exchange: str
    last_price: float | None = None
    open_interest: float | None = None
    funding_rate: float | None = None
    funding_timestamp: Time | None = None
    predicted_funding_rate: float | None = None
    index_price: float | None = None
    mark_price: float | None = None
    timestamp: Time
    local_timestamp: Time


class BookTicker(_Fields, tag_field="type", tag="book_ticker", kw_only=True):
    symbol: str
    exchange: str
    ask_amount: float | None = None
    ask_price: float | None = None
    bid_price: float | None = None
    bid_amount: float | None = None
    timestamp: Time
    local_timestamp: Time


class Liquidation(_Fields, tag_field="type", tag="liquidation", kw_only=True):
    symbol: str
    exchange: str
    id: str | float | None = None
    price: float
    amount: float
    side: Side
    timestamp: Time
    local_timestamp: Time


class OptionSummary(_Fields, tag_field="type", tag="option_summary", kw_only=True):
    symbol: str
    exchange: str
    option_type: Literal["put", "call"]
    strike_price: float
    expiration_date: Time
    best_bid_price: float | None = None
    best_bid_amount: float | None = None
    best_bid_iv: float | None = msgspec.field(default=None, name="bestBidIV")
    best_ask_price: float | None = None
    best_ask_amount: float | None = None
    best_ask_iv: float | None = msgspec.field(default=None, name="bestAskIV")
    last_price: float | None = None
    open_interest: float | None = None
    mark_price: float | None = None
    mark_iv: float | None = msgspec.field(default=None, name="markIV")
    delta: float | None = None
    gamma: float | None = None
    vega: float | None = None
    theta: float | None = None
    rho: float | None = None
    underlying_price: float | None = None
    underlying_index: str | None = None
    timestamp: Time
    local_timestamp: Time


class BookSnapshot(_Fields, tag_field="type", tag="book_snapshot", kw_only=True):
    """A computed snapshot: grouped if `grouping` is set, a quote if its name says so."""

    symbol: str
    exchange: str
    name: str
    depth: int
    interval: float
    grouping: float | None = None
    bids: list[BookSnapshotLevel]
    asks: list[BookSnapshotLevel]
    timestamp: Time
    local_timestamp: Time


class TradeBar(_Fields, tag_field="type", tag="trade_bar", kw_only=True):
    symbol: str
    exchange: str
    name: str
    interval: float
    kind: Literal["time", "volume", "tick"]
    open: float
    high: float
    low: float
    close: float
    volume: float
    buy_volume: float
    sell_volume: float
    trades: int
    vwap: float | None
    """None if the first trade of the bar has an amount of 0: there is no average then."""
    open_timestamp: Time
    close_timestamp: Time
    local_timestamp: Time
    timestamp: Time


class Disconnect(_Fields, tag_field="type", tag="disconnect", kw_only=True):
    """A lost connection to the exchange; `reason` and `close_code` are sent to buses only."""

    exchange: str
    local_timestamp: Time
    symbols: list[str] | None = None
    reason: str | None = None
    close_code: int | None = None


class ErrorMessage(_Fields, tag_field="type", tag="error", kw_only=True):
    """An error while the server read from an exchange; `code` is sent to buses only."""

    exchange: str
    local_timestamp: Time
    details: str
    sub_sequent_errors_count: int
    code: ErrorCode | None = None


Message = (
    Trade
    | BookChange
    | DerivativeTicker
    | BookTicker
    | Liquidation
    | OptionSummary
    | BookSnapshot
    | TradeBar
    | Disconnect
    | ErrorMessage
)

PAYLOAD_CASES: Final = (
    "trade",
    "bookChange",
    "bookSnapshot",
    "quote",
    "derivativeTicker",
    "liquidation",
    "optionSummary",
    "bookTicker",
    "groupedBookSnapshot",
    "tradeBar",
    "error",
    "disconnect",
)
"""The message fields of a Bronze envelope, as settings name them; each envelope has one."""

CASES: Final = {
    "trade": "trade",
    "book_change": "bookChange",
    "derivative_ticker": "derivativeTicker",
    "book_ticker": "bookTicker",
    "liquidation": "liquidation",
    "option_summary": "optionSummary",
    "trade_bar": "tradeBar",
    "disconnect": "disconnect",
    "error": "error",
}
"""The payload case of each message type, without book_snapshot, which has three."""


def payload_case(message: Message) -> str:
    """Return the name of the Bronze envelope's field that holds a message: `bookChange`."""
    if isinstance(message, BookSnapshot):
        return snapshot_case(message.name, grouped=message.grouping is not None)
    return CASES[str(message.__struct_config__.tag)]


def snapshot_case(name: str, *, grouped: bool) -> str:
    """Return the payload case of a `book_snapshot` message: quote, grouped or plain snapshot."""
    if name.startswith("quote"):
        return "quote"
    return "groupedBookSnapshot" if grouped else "bookSnapshot"


def read_time(_: type[Any], text: Any) -> Time:
    """Return the time of ISO text with three or six fractional digits.

    msgspec's decoder calls this for each field of type Time, in the thread that decodes. Its
    ValueError becomes a msgspec.ValidationError with the field's path.
    """
    try:
        if len(text) == 27:
            ms = SECONDS[text[:20]] * 1000 + _MILLISECONDS[text[20:23]]
            return Time(ms * 1000 + END_MS[text[23:]])
        return Milliseconds((SECONDS[text[:20]] * 1000 + END_MS[text[20:]]) * 1000)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{str(text)[:40]!r} is not a time such as 2024-03-01T00:00:00.123Z "
            "or 2024-03-01T00:00:00.123456Z"
        ) from None
