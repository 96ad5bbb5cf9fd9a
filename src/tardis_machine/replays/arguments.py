"""Arguments of Python callers, read as requests; names of the official clients work as well."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from enum import Enum
from numbers import Integral, Real
from typing import Any, Final, Protocol, Required, TypeAlias, TypedDict, TypeVar

from tardis_machine.history.filters import Channel, Filter
from tardis_machine.replays.requests import OptionsError, Request

Moment = str | date
"""ISO text, a date, or a datetime, which is UTC unless it has a zone."""


class HasChannel(Protocol):
    """A `Channel` of the official clients; arguments of this form are accepted as filters."""

    @property
    def name(self) -> str: ...

    @property
    def symbols(self) -> Sequence[str] | None: ...


Filters = Sequence[Filter | Channel | HasChannel | Mapping[str, Any] | str]


class Span(TypedDict, total=False):
    """Range and speed of a replay: `from_` or `from_date`, `to` or `to_date`."""

    from_: Moment
    to: Moment
    from_date: Moment
    to_date: Moment
    speed: float | None
    wait_when_data_not_yet_available: bool | float


class RawRequest(Span, total=False):
    """Arguments of one of several merged raw replays."""

    exchange: Required[str]
    filters: Filters
    exact: bool


class NormalizedRequest(Span, total=False):
    """Arguments of one of several merged normalized replays."""

    exchange: Required[str]
    data_types: Required[Sequence[str]]
    symbols: Sequence[str] | None
    with_disconnect_messages: bool
    exact: bool | None


class StreamRequest(TypedDict, total=False):
    """Arguments of one of several live streams."""

    exchange: Required[str]
    data_types: Required[Sequence[str]]
    symbols: Sequence[str] | None
    with_disconnect_messages: bool
    with_error_messages: bool
    timeout_interval_ms: int


T = TypeVar("T")
Types: TypeAlias = T | list[T] | tuple[T]
"""One data type as a literal, by itself or in a list; type checkers infer the message type."""

_ARGUMENTS: Final = {
    "from": "from_",
    "dataTypes": "data_types",
    "withDisconnectMessages": "with_disconnect_messages",
    "withDisconnects": "with_disconnects",
    "withErrorMessages": "with_error_messages",
    "timeoutIntervalMS": "timeout_interval_ms",
    "waitWhenDataNotYetAvailable": "wait_when_data_not_yet_available",
}
_OPTIONS: Final = {
    **{argument: option for option, argument in _ARGUMENTS.items()},
    "from_date": "from",
    "to_date": "to",
}


def read_arguments(
    exchange: str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, **more: object
) -> list[Request]:
    """Return one request for each dictionary, or one request of the keyword arguments.

    `exchange` is a name, or one dictionary or a list of them instead of keyword arguments. Raises
    OptionsError for both together, for an empty list, and for an argument that is no Unicode.
    """
    if exchange is None or isinstance(exchange, str):
        return [_request({"exchange": exchange, **more})]
    mappings = [exchange] if isinstance(exchange, Mapping) else _mappings(exchange)
    also_set = [name for name, value in more.items() if value is not None and value is not False]
    if also_set:
        raise OptionsError(f"{also_set[0]} is given beside options: put it into each dictionary")
    if not mappings:
        raise OptionsError("an empty list of options: expected at least one")
    return [_request(mapping) for mapping in mappings]


def _mappings(value: object) -> list[Mapping[str, Any]]:
    """Return a list of dictionaries as it is; raise OptionsError for any other item."""
    mappings: list[Mapping[str, Any]] = []
    for item in [value] if isinstance(value, bytes) else _items(value):
        if not isinstance(item, Mapping):
            raise OptionsError(
                f"invalid exchange: {item!r:.40}, expected text, or a list of dictionaries"
            )
        mappings.append(item)
    return mappings


def _request(arguments: Mapping[str, Any]) -> Request:
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    for name, value in arguments.items():
        if value is None:
            continue
        option = _OPTIONS.get(name, name)
        if option in values:
            raise OptionsError(f"{names[option]} is given twice, the second time as {name}")
        names[option] = name
        try:
            values[option] = _READERS.get(option, _plain)(value)
        except UnicodeEncodeError as error:
            raise OptionsError(
                f"invalid {name}: invalid text {error.object!a:.40}, expected Unicode"
            ) from None
    return Request(values, _ARGUMENTS | names)


def _items(value: object) -> list[object]:
    # A string is iterable, but stands for one item here. A value of a wrong type is refused where
    # options are checked.
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _listed(value: object) -> list[object]:
    return [_plain(item) for item in _items(value)]


def _filters(value: object) -> list[object]:
    is_one = isinstance(value, Mapping) and value != {}
    return [_filter(item) for item in ([value] if is_one else _items(value))]


def _filter(value: object) -> dict[str, object]:
    if isinstance(value, str):
        return {"channel": _plain(value)}
    if not isinstance(value, Mapping):
        channel = value.channel if isinstance(value, Filter) else getattr(value, "name", None)
        value = {"channel": channel, "symbols": getattr(value, "symbols", None)}
    fields = {name: _plain(value[name]) for name in ("channel", "symbols") if name in value}
    if fields.get("symbols") is not None:
        fields["symbols"] = _listed(fields["symbols"])
    return fields


def _iso(time: object) -> str:
    if isinstance(time, datetime):
        moment = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        with suppress(ValueError, OverflowError):  # NaT of pandas; before year 1 in UTC
            return moment.astimezone(UTC).isoformat()
    return str(time)


def _plain(value: object) -> object:
    """Return text and numbers of enumerations, numpy and Arrow as Python's own."""
    if isinstance(value, Enum):
        value = value.value
    elif hasattr(value, "as_py"):
        value = value.as_py()
    if isinstance(value, str):
        value.encode()  # raises UnicodeEncodeError, as the request to the API would
        return str.__str__(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


_READERS: Final[dict[str, Callable[[object], object]]] = {
    "from": _iso,
    "to": _iso,
    "dataTypes": _listed,
    "symbols": _listed,
    "filters": _filters,
}
