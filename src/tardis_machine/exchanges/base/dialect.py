"""Live dialects: the particulars of each exchange's WebSocket and REST servers.

An exchange's module declares its dialect beside its mappers. `live/` connects, waits and retries,
and calls the functions of the dialect in the event loop's thread.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tardis_machine.errors import TardisMachineError
from tardis_machine.history.filters import Filter

T = TypeVar("T")

Outgoing = str | Mapping[str, Any] | Sequence[Any]
"""A message to the exchange: text is sent as it is, any other value as JSON."""

Predicate = Callable[[Any], bool]
"""A check of a decoded message, which may be any JSON value."""

DAY_S: Final = 86_400.0

Template = str | Callable[[str], str]
"""Text with {symbol} in it, or a function of the symbol for a URL with parts of the symbol."""

_UNKNOWN_SYMBOL: Final = re.compile(
    r"(unknown|invalid|expired|unsupported|illegal|wrong|bad)\W+(or expired )?"
    r"(symbol|market|instrument|product|pair|topic|channel|stream|table|coin|asset|contract)"
    r"|(symbol|market|instrument|product|pair|topic|channel|stream|contract)\w*\b.{0,60}"
    r"(not found|not exist|n't exist|not supported|unsupported|not valid|invalid|unknown|delisted)"
    r"|handler not found",
    re.IGNORECASE | re.DOTALL,
)
_ANSWER: Final = re.compile(r"<answer(\d?)((?:\.\w+)*)>")
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class DialectError(TardisMachineError, ValueError):
    """A live request that the exchange cannot serve; raised before a connection is made."""

    def __init__(self, exchange: str, reason: str) -> None:
        self.exchange = exchange
        self.reason = reason
        super().__init__(f"{exchange}: {reason}")


class AnswerError(TardisMachineError):
    """A REST answer without the requested data; `live/` may repeat the request."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The arguments of functions that build messages to an exchange; one for each connection.

    `stream` has all filters of the stream, those of its other connections included. `secrets` are
    the credentials in the order of `Secrets.names`, or empty.
    """

    now_ms: int
    stream: Sequence[Filter] = ()
    secrets: tuple[str, ...] = ()
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def seconds(self) -> int:
        """Time in seconds since 1970, as most signatures need it."""
        return self.now_ms // 1000

    def token(self) -> str:
        """Return 48 random hexadecimal digits."""
        return token_hex(24)

    def number(self) -> int:
        """Return a request number that is unique on this connection: 1, then 2, and so on."""
        return next(self._numbers)


class Subscribe(Protocol):
    """A function that returns the messages that subscribe one connection to `filters`.

    `live/` calls it after the connection is open and logged in. Filters are merged and sorted by
    channel, symbols are unique and sorted. Channels that are polled, or stand for a snapshot, are
    left out.
    """

    def __call__(
        self, filters: Sequence[Filter], session: ConnectionContext, /
    ) -> Iterable[Outgoing]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A WebSocket URL with its channels and symbols; None is all.

    A channel and symbol go to the first endpoint of the dialect that serves them. `name` is unique
    in the exchange and part of the variable that overrides the URL: WSS_URL_{EXCHANGE}_{NAME}.
    """

    url: str
    name: str = ""
    channels: frozenset[str] | None = None
    symbols: Callable[[str], bool] | None = None
    with_secrets: str = ""

    def serves(self, channel: str, symbol: str | None) -> bool:
        """Return whether a channel and symbol can be subscribed to at this URL."""
        if self.channels is not None and channel not in self.channels:
            return False
        return self.symbols is None or (symbol is not None and self.symbols(symbol))


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """A REST request before every connection; `use` returns the WebSocket URL from its answer."""

    url: str
    use: Callable[[Any, ConnectionContext], str]
    method: str = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Names of the environment variables with the credentials; all must be set, or none."""

    names: tuple[str, ...]
    optional: bool = True


Render = Callable[[str, Sequence[bytes]], Iterable[bytes]]
"""A function from a symbol and the answers of its URLs to raw messages as history has them.

AnswerError makes `live/` repeat the request.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """The request for a book's snapshot, where the subscription does not send one.

    - `deltas` is the channel with the book's updates.
    - `channel` is the channel that requests the snapshot in filters, if there is one.
    - `url` is fetched; it may contain {symbol}, {SYMBOL} in upper and {sym} in lower case.
    - `request` returns a message that is sent over the connection, instead of `url`.
    - `weight` counts against the `Budget`; `at_once` is the number of parallel requests.
    """

    deltas: str
    channel: str = ""
    url: str = ""
    render: Render | None = None
    request: Callable[[str], Outgoing] | None = None
    weight: int = 1
    at_once: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Poller:
    """A channel that is polled over REST every `every_s` seconds, for each symbol or once."""

    channel: str
    urls: tuple[Template, ...]
    render: Render
    every_s: float
    per_symbol: bool = True
    weight: int = 1
    at_once: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The request limit of a REST server per minute, for all requests to the exchange together.

    `header` is the answer's header with the weight used so far. `info` is a URL with the current
    limit, which `read` finds in the decoded answer.
    """

    per_minute: int
    reserve: int = 0
    header: str = ""
    info: str = ""
    read: Callable[[Any], int | None] | None = None


def _never(_: Any) -> bool:
    return False


def _no_reply(_: Any) -> None:
    return None


def as_is(frame: bytes) -> bytes:
    """Return a frame as the message."""
    return frame


def with_text_pong(frame: bytes) -> bytes:
    """Return a frame as the message, with JSON for the text `pong`, the answer to a ping."""
    return b'{"event":"pong"}' if frame == b"pong" else frame


def reads_as_unknown_symbol(message: Any) -> bool:
    """Return whether an error's text is about a symbol or channel, not about the connection."""
    return _UNKNOWN_SYMBOL.search(msgspec.json.encode(message).decode()) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The particulars of one exchange's live data."""

    endpoints: tuple[Endpoint, ...]
    subscribe: Subscribe
    """Function with the subscribe messages of a connection, in order; mostly a generator."""

    errors: Predicate
    """Check for messages that report an error."""

    refusals: Predicate = reads_as_unknown_symbol
    """Check for errors about single symbols or channels: the connection is kept."""

    salvage: Callable[[Any, Sequence[Outgoing]], Outgoing | None] | None = None
    """Function from a refusal and all subscribe messages to a new subscribe message.

    For exchanges that refuse a whole subscription because of one unknown symbol.
    """

    heartbeats: Predicate = _never
    """Check for messages that only show that the connection is alive, such as pongs."""

    acks: Predicate = _never
    """Check for messages that are neither data nor heartbeats nor errors; mappers ignore them."""

    data: tuple[bytes, ...] = ()
    """First bytes of messages that are data, which go to the mappers without other checks."""

    decode: Callable[[bytes], bytes] = as_is
    """Function from a frame to the message as history has it; any exception ends the connection."""

    without_symbols: frozenset[str] | None = frozenset()
    """Channels that can be subscribed to without symbols (None: all)."""

    discovery: Discovery | None = None
    secrets: Secrets | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the WebSocket handshake."""

    greet: Callable[[ConnectionContext], Iterable[Outgoing]] | None = None
    """Function with messages before the subscriptions, without waiting for an answer."""

    login: Callable[[ConnectionContext], Outgoing] | None = None
    """Function with the login message. Subscriptions wait for an answer that is `logged_in`."""

    logged_in: Predicate = _never
    unsubscribe: Subscribe | None = None
    """Function with unsubscribe messages; without it a lost update renews the connection."""

    ping: Callable[[ConnectionContext], Outgoing] | None = None
    """Function with the exchange's own ping; a WebSocket ping if None."""

    ping_s: float = 5.0
    reply: Callable[[Any], Outgoing | None] = _no_reply
    """Function from a decoded message to its answer, such as a pong; None if it needs none."""

    snapshots: tuple[SnapshotRequest, ...] = ()
    pollers: tuple[Poller, ...] = ()
    budget: Budget | None = None
    quiet: frozenset[str] = frozenset()
    """Channels that may be silent for long: a connection with only these is never stale."""

    max_streams: int | None = None
    """Limit of channels times symbols on one connection; more are split over several."""

    life_s: float | None = None
    """Lifetime of a connection in seconds; `live/` opens the next one before its end."""

    throttle_s: float = 0.0
    """Pause between messages to the exchange, in seconds."""

    max_messages_per_s: int | None = None

    def rest_channels(self) -> frozenset[str]:
        """Return the channels that come over REST, without a subscription."""
        polled = {poller.channel for poller in self.pollers}
        return frozenset(polled | {item.channel for item in self.snapshots if item.channel})


def at(message: Any, path: str) -> Any:
    """Return the field at a dotted path; None if there is none."""
    for key in path.split("."):
        if not isinstance(message, dict):
            return None
        message = message.get(key)
    return message


def present(path: str) -> Predicate:
    """Return a check whether a message has a field that is not null."""
    return lambda message: at(message, path) is not None


def absent(path: str) -> Predicate:
    """Return a check whether a message lacks a field, or has null in it."""
    return lambda message: at(message, path) is None


def null(field: str) -> Predicate:
    """Return a check whether a message has a field with null in it."""
    return lambda message: isinstance(message, dict) and message.get(field, field) is None


def equals(path: str, *values: object) -> Predicate:
    """Return a check whether a field has one of these values, of the same type: True is not 1."""
    kinds = {(value.__class__, value) for value in values}

    def is_equal(message: Any) -> bool:
        value = at(message, path)
        return value.__class__.__hash__ is not None and (value.__class__, value) in kinds

    return is_equal


def either(*predicates: Predicate) -> Predicate:
    """Return a check whether one of these holds."""
    return lambda message: any(holds(message) for holds in predicates)


def both(*predicates: Predicate) -> Predicate:
    """Return a check whether all of these hold."""
    return lambda message: all(holds(message) for holds in predicates)


def negated(predicate: Predicate) -> Predicate:
    """Return a check whether this does not hold."""
    return lambda message: not predicate(message)


def pairs(filters: Iterable[Filter]) -> Iterator[tuple[str, str]]:
    """Yield each channel with each of its symbols; skip channels without symbols."""
    for item in filters:
        for symbol in item.symbols or ():
            yield item.channel, symbol


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of a list with at most `size` items."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def spelled(template: Template, symbol: str) -> str:
    """Return a template with the symbol in place of {symbol}, {SYMBOL} and {sym}."""
    if not isinstance(template, str):
        return template(symbol)
    return (
        template.replace("{symbol}", symbol)
        .replace("{SYMBOL}", symbol.upper())
        .replace("{sym}", symbol.lower())
    )


def generated(template: str, valid: Predicate | None = None) -> Render:
    """Return a renderer that copies the JSON text of REST answers into one message.

    In the template <answer> stands for the first answer, <answer.data> for a field of it, and
    <answer2> for the second answer. The renderer raises AnswerError for an answer that is not
    `valid` or lacks the field.
    """
    parts = _ANSWER.split(template)

    def render(symbol: str, answers: Sequence[bytes]) -> Iterable[bytes]:
        if valid is not None:
            for answer in answers:
                if not valid(msgspec.json.decode(answer)):
                    raise AnswerError(f"refused: {answer[:200].decode(errors='replace')}")
        rendered = [spelled(parts[0], symbol).encode()]
        for number, path, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            rendered.append(_text_at(answers[int(number or 1) - 1], path))
            rendered.append(spelled(text, symbol).encode())
        return (b"".join(rendered),)

    return render


def _text_at(answer: bytes, path: str) -> bytes:
    for key in path.split(".")[1:]:
        try:
            answer = bytes(_fields(answer)[key])
        except (KeyError, msgspec.DecodeError):
            shown = answer[:200].decode(errors="replace")
            raise AnswerError(f"no {path[1:]} in the answer: {shown}") from None
    return answer.strip()
