"""The live dialect: how an exchange's own WebSocket and REST servers are spoken to.

An exchange states here what is particular to it, beside its mapper. Connecting, waiting, retrying
and everything else that is alike everywhere is in `live/`.
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
"""A message to the exchange: text as it is, anything else as JSON."""

Predicate = Callable[[Any], bool]
DAY_S: Final = 86_400.0
"""Asks something of a decoded message, whatever it is."""

Template = str | Callable[[str], str]
"""Text that names {symbol}; or a function of it, where a URL has a symbol's parts."""

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
    """A live request that the exchange cannot be asked: said before anything is connected."""

    def __init__(self, exchange: str, reason: str) -> None:
        self.exchange = exchange
        self.reason = reason
        super().__init__(f"{exchange}: {reason}")


class AnswerError(TardisMachineError):
    """A REST answer that is not what was asked for; it may be asked for again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """What messages to an exchange may need; made anew for every connection.

    `secrets` are the credentials in the order of their names; none, where none are set.
    """

    now_ms: int
    stream: Sequence[Filter] = ()
    secrets: tuple[str, ...] = ()
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def seconds(self) -> int:
        """The clock, as most signatures want it."""
        return self.now_ms // 1000

    def token(self) -> str:
        """48 random hexadecimal digits."""
        return token_hex(24)

    def number(self) -> int:
        """1, then 2, …: for requests that have to be told apart."""
        return next(self._numbers)


class Subscribe(Protocol):
    """Makes the messages that subscribe one connection to `filters`.

    Filters are merged and sorted by channel, symbols unique and sorted; channels that are polled
    or stand for a snapshot are not among them. `session.stream` has all filters of the stream,
    those of its other connections included.
    """

    def __call__(
        self, filters: Sequence[Filter], session: ConnectionContext, /
    ) -> Iterable[Outgoing]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A WebSocket URL and what goes over it; the first that takes a channel and symbol has it.

    `name` is what tells several of one exchange apart, also in the variable that overrides the
    URL: WSS_URL_{EXCHANGE}_{NAME}.
    """

    url: str
    name: str = ""
    channels: frozenset[str] | None = None
    symbols: Callable[[str], bool] | None = None
    with_secrets: str = ""

    def takes(self, channel: str, symbol: str | None) -> bool:
        if self.channels is not None and channel not in self.channels:
            return False
        return self.symbols is None or (symbol is not None and self.symbols(symbol))


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Where to connect is asked of a REST server, before every connection."""

    url: str
    use: Callable[[Any, ConnectionContext], str]
    method: str = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Credentials, by the environment variables that hold them; all of them or none."""

    names: tuple[str, ...]
    optional: bool = True


Render = Callable[[str, Sequence[bytes]], Iterable[bytes]]
"""Makes raw messages, as history has them, from a symbol and the answers of its URLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """How a book starts whose snapshot does not come by itself.

    Its channel is the one that stands for it in filters, if there is one; `deltas` is the channel
    whose updates it is joined with. It is fetched from `url`, or asked for over the connection by
    `request`. URLs name {symbol}, {SYMBOL} in upper and {sym} in lower case.
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
    """A channel that is asked for by REST, again and again; per symbol or, without any, once."""

    channel: str
    urls: tuple[Template, ...]
    render: Render
    every_s: float
    per_symbol: bool = True
    weight: int = 1
    at_once: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a REST server allows in a minute: all that is asked of the exchange counts together.

    `header` tells what is used already; `info` is where the allowance is found, by `read`.
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
    """Take a frame as the message."""
    return frame


def with_text_pong(frame: bytes) -> bytes:
    """Take a frame as the message; `pong`, the answer to a ping that is text, is no JSON."""
    return b'{"event":"pong"}' if frame == b"pong" else frame


def reads_as_unknown_symbol(message: Any) -> bool:
    """Tell whether an error's text speaks of one symbol or channel, not of the connection."""
    return _UNKNOWN_SYMBOL.search(msgspec.json.encode(message).decode()) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What is particular to one exchange's live data."""

    endpoints: tuple[Endpoint, ...]
    subscribe: Subscribe
    """Messages of a connection, in order; a generator function reads best."""

    errors: Predicate
    """Which messages say that something is wrong."""

    refusals: Predicate = reads_as_unknown_symbol
    """Which of these concern single symbols or channels: reported, the connection goes on."""

    salvage: Callable[[Any, Sequence[Outgoing]], Outgoing | None] | None = None
    """Where one bad symbol has a whole subscription refused: from a refusal, and all that was
    subscribed, to what to subscribe instead."""

    heartbeats: Predicate = _never
    """Which messages only show that the connection lives: answers to pings, too."""

    acks: Predicate = _never
    """Which messages are neither data nor heartbeats nor errors; the mappers ignore them."""

    data: tuple[bytes, ...] = ()
    """How messages begin that are data for sure: they are not looked at before the mappers."""

    decode: Callable[[bytes], bytes] = as_is
    """From a frame to the message of the historic feed; it may raise anything on garbage."""

    without_symbols: frozenset[str] | None = frozenset()
    """Channels that can be asked for without symbols (None: all can)."""

    discovery: Discovery | None = None
    secrets: Secrets | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the handshake."""

    greet: Callable[[ConnectionContext], Iterable[Outgoing]] | None = None
    """Messages before the subscriptions, to which no answer is awaited."""

    login: Callable[[ConnectionContext], Outgoing] | None = None
    """With credentials: a message whose answer, told by `logged_in`, precedes subscriptions."""

    logged_in: Predicate = _never
    unsubscribe: Subscribe | None = None
    """Where given, a book that lost an update is subscribed anew, else the connection is."""

    ping: Callable[[ConnectionContext], Outgoing] | None = None
    """The exchange's own ping; a protocol ping if there is none."""

    ping_s: float = 5.0
    reply: Callable[[Any], Outgoing | None] = _no_reply
    """The answer to a message that asks for one: the exchange's pings."""

    snapshots: tuple[SnapshotRequest, ...] = ()
    pollers: tuple[Poller, ...] = ()
    budget: Budget | None = None
    quiet: frozenset[str] = frozenset()
    """Channels that may be silent for long: a connection with no others is never called stale."""

    max_streams: int | None = None
    """Channels times symbols on one connection; more are split over several."""

    life_s: float | None = None
    """How long the exchange lets a connection live; before its end another one follows it."""

    throttle_s: float = 0.0
    """Pause between messages to the exchange."""

    max_messages_per_s: int | None = None

    def rest_channels(self) -> frozenset[str]:
        """Name the channels that nothing is subscribed for."""
        polled = {each.channel for each in self.pollers}
        return frozenset(polled | {each.channel for each in self.snapshots if each.channel})


def at(message: Any, path: str) -> Any:
    """Look up a field, the path's parts split by dots; None where there is none."""
    for key in path.split("."):
        if not isinstance(message, dict):
            return None
        message = message.get(key)
    return message


def present(path: str) -> Predicate:
    """Ask whether a message has a field that is not null."""
    return lambda message: at(message, path) is not None


def absent(path: str) -> Predicate:
    """Ask whether a message lacks a field, or has null in it."""
    return lambda message: at(message, path) is None


def null(field: str) -> Predicate:
    """Ask whether a message has a field with null in it."""
    return lambda message: isinstance(message, dict) and message.get(field, field) is None


def equals(path: str, *values: object) -> Predicate:
    """Ask whether a field has one of these values; True is not 1."""
    kinds = {(value.__class__, value) for value in values}

    def asks(message: Any) -> bool:
        value = at(message, path)
        return value.__class__.__hash__ is not None and (value.__class__, value) in kinds

    return asks


def either(*predicates: Predicate) -> Predicate:
    """Ask whether one of these holds."""
    return lambda message: any(holds(message) for holds in predicates)


def both(*predicates: Predicate) -> Predicate:
    """Ask whether all of these hold."""
    return lambda message: all(holds(message) for holds in predicates)


def negated(predicate: Predicate) -> Predicate:
    """Ask whether this does not hold."""
    return lambda message: not predicate(message)


def pairs(filters: Iterable[Filter]) -> Iterator[tuple[str, str]]:
    """Go through channels and their symbols; channels without symbols give none."""
    for each in filters:
        for symbol in each.symbols or ():
            yield each.channel, symbol


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a list into pieces of at most `size`."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def spelled(template: Template, symbol: str) -> str:
    """Put a symbol into a template that has {symbol}, {SYMBOL} or {sym} in it."""
    if not isinstance(template, str):
        return template(symbol)
    return (
        template.replace("{symbol}", symbol)
        .replace("{SYMBOL}", symbol.upper())
        .replace("{sym}", symbol.lower())
    )


def generated(template: str, valid: Predicate | None = None) -> Render:
    """Make a message from answers without touching their numbers.

    <answer> stands for the first answer's text, <answer.data> for that of a field, <answer2> for
    the second answer's. Answers that are not `valid`, and those without the field, are refused.
    """
    parts = _ANSWER.split(template)

    def render(symbol: str, answers: Sequence[bytes]) -> Iterable[bytes]:
        if valid is not None:
            for answer in answers:
                if not valid(msgspec.json.decode(answer)):
                    raise AnswerError(f"refused: {answer[:200].decode(errors='replace')}")
        made = [spelled(parts[0], symbol).encode()]
        for number, path, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            made.append(_text_at(answers[int(number or 1) - 1], path))
            made.append(spelled(text, symbol).encode())
        return (b"".join(made),)

    return render


def _text_at(answer: bytes, path: str) -> bytes:
    for key in path.split(".")[1:]:
        try:
            answer = bytes(_fields(answer)[key])
        except (KeyError, msgspec.DecodeError):
            shown = answer[:200].decode(errors="replace")
            raise AnswerError(f"no {path[1:]} in the answer: {shown}") from None
    return answer.strip()
