"""What programs ask for, in the names and types of Python or of the official clients, as JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from numbers import Integral, Real
from typing import Any, Final, Protocol, Required, TypeAlias, TypedDict, TypeVar

import msgspec

from tardis_machine.filters import Channel, Filter
from tardis_machine.options import OptionsError, parse_lag, parse_speed

Moment = str | date
"""ISO text, a date, or a datetime, which is UTC unless it has a zone."""


class HasChannel(Protocol):
    """A filter of the official clients."""

    @property
    def name(self) -> str: ...

    @property
    def symbols(self) -> Sequence[str] | None: ...


Filters = Sequence[Filter | Channel | HasChannel | Mapping[str, Any] | str]


class Span(TypedDict, total=False):
    """From when to when: `from_` or `from_date`, `to` or `to_date`; how fast, and how soon."""

    from_: Moment
    to: Moment
    from_date: Moment
    to_date: Moment
    speed: float | None
    wait_when_data_not_yet_available: bool | float


class RawRequest(Span, total=False):
    """One of several raw replays."""

    exchange: Required[str]
    filters: Filters
    exact: bool


class NormalizedRequest(Span, total=False):
    """One of several normalized replays."""

    exchange: Required[str]
    data_types: Required[Sequence[str]]
    symbols: Sequence[str] | None
    with_disconnect_messages: bool
    exact: bool | None


class StreamRequest(TypedDict, total=False):
    """One of several live streams."""

    exchange: Required[str]
    data_types: Required[Sequence[str]]
    symbols: Sequence[str] | None
    with_disconnect_messages: bool
    with_error_messages: bool
    timeout_interval_ms: int


T = TypeVar("T")
Types: TypeAlias = T | list[T] | tuple[T]
"""Names of data types that type checkers can tell: one of them, by itself or in a list."""

_NAMES: Final = {
    "from_": "from",
    "from_date": "from",
    "to_date": "to",
    "data_types": "dataTypes",
    "with_disconnect_messages": "withDisconnectMessages",
    "with_disconnects": "withDisconnects",
    "with_error_messages": "withErrorMessages",
    "timeout_interval_ms": "timeoutIntervalMS",
    "wait_when_data_not_yet_available": "waitWhenDataNotYetAvailable",
}


def requests(
    exchange: str | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, **more: object
) -> list[str]:
    """Write one request, or the several of a list, as the JSON objects that the server takes."""
    if exchange is None or isinstance(exchange, str):
        asked: Sequence[Mapping[str, Any]] = [{"exchange": exchange, **more}]
    else:
        asked = [exchange] if isinstance(exchange, Mapping) else _mappings(exchange)
        given = [name for name, value in more.items() if value is not None and value is not False]
        if given:
            raise OptionsError(f"{given[0]} is given beside options that it belongs into")
    if not asked:
        raise OptionsError("an empty list of options: expected at least one")
    try:
        return [msgspec.json.encode(_options(each), enc_hook=_plain).decode() for each in asked]
    except UnicodeEncodeError as error:
        raise OptionsError(f"invalid text: {error.object!a:.40}, expected Unicode") from None


def _mappings(given: object) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for each in [given] if isinstance(given, bytes) else _listed(given):
        if not isinstance(each, Mapping):
            raise OptionsError(
                f'invalid "exchange": {each!r:.40}, expected text, or a list of dictionaries'
            )
        found.append(each)
    return found


@contextmanager
def told_in_python() -> Iterator[None]:
    """Let errors name arguments as Python spells them."""
    try:
        yield
    except OptionsError as error:
        text = str(error)
        for spelled, name in _NAMES.items():
            if spelled not in {"from_date", "to_date"}:
                text = text.replace(f'"{name}"', spelled)
        raise OptionsError(text, status=error.status) from None


def _options(given: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in given.items():
        if value is None:
            continue
        name = _NAMES.get(key, key)
        if name in found:
            raise OptionsError(f'"{name}" is given twice, the second time as {key}')
        found[name] = _PLAIN[name](value) if name in _PLAIN else value
    return found


def _listed(value: object) -> list[object]:
    # A text is a sequence of texts, too, but nobody means its letters. What is no sequence at all
    # is refused where options are read.
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _filters(value: object) -> list[object]:
    listed = [value] if isinstance(value, Mapping) and value else _listed(value)
    return [_filter(each) for each in listed]


def _filter(value: object) -> object:
    if isinstance(value, str):
        return Filter(value)
    if isinstance(value, Filter | Mapping):
        return value
    name, symbols = getattr(value, "name", None), getattr(value, "symbols", None)
    return {"channel": name} if symbols is None else {"channel": name, "symbols": symbols}


def _iso(time: object) -> str:
    if isinstance(time, datetime):
        moment = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        with suppress(ValueError, OverflowError):  # pandas' NaT; what is before the year 1 in UTC
            return moment.astimezone(UTC).isoformat()
    return str(time)


# Here, since JSON has no NaN.


def _speed(value: object) -> float | None:
    return parse_speed(_number(value))


def _lag(value: object) -> float | None:
    return parse_lag(_number(value))


def _number(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else _plain(value)


def _plain(value: object) -> object:
    """Take numbers of other libraries, numpy's for one, as those they are; all else as text."""
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return str(value)


_PLAIN: Final[dict[str, Callable[[object], object]]] = {
    "from": _iso,
    "to": _iso,
    "dataTypes": _listed,
    "symbols": _listed,
    "filters": _filters,
    "speed": _speed,
    "waitWhenDataNotYetAvailable": _lag,
}
