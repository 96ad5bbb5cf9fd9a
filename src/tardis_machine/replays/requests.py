"""The options of a request: checked before anything starts, and typed from then on."""

import difflib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tardis_machine import exchanges
from tardis_machine.engine import datatypes
from tardis_machine.errors import TardisMachineError
from tardis_machine.exchanges import catalog
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import local_of
from tardis_machine.replays.pacing import MAX_SPEED, MIN_SPEED

log = logging.getLogger(__name__)

_MINUTE_US: Final = 60_000_000
# Beyond it a minute ends in the year 10000, which is no date.
_LAST_MINUTE_US: Final = 253_402_300_740_000_000
# What JavaScript's `Date.parse` takes, too: slashes, one digit, no day or month.
_DATE: Final = re.compile(
    r"(?P<year>\d{4})(?:(?P<separator>[-/])(?P<month>\d\d?)(?:(?P=separator)(?P<day>\d\d?))?)?"
    r"(?:[T ](?P<hour>\d\d?)(?P<rest>:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)|Z)?",
    re.ASCII | re.IGNORECASE,
)
_LIVE_TIMEOUT_MS: Final = 10_000
_WAIT: Final = "waitWhenDataNotYetAvailable"
_LAG_MINUTES: Final = 30.0
_MIN_LAG_MINUTES: Final = 6.0
_MAX_LAG_MINUTES: Final = 365 * 1440
_MAX_LIVE_TIMEOUT_MS: Final = 365 * 86_400_000
# A WebSocket's close has room for 123 bytes: what would be right must fit beside the value.
_MAX_SHOWN: Final = 40


class OptionsError(TardisMachineError):
    """A missing, unknown or invalid option of a request; the message names what is allowed."""

    status: Final = 400


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A raw replay: exchange, channels, whole minutes from (inclusive) to (exclusive).

    `window` are the local times that an exact replay is trimmed to, in microseconds: from
    (inclusive) to (exclusive). `speed` 1 is as it happened, None as fast as possible. With
    `lag_minutes` a minute is fetched when it is so far behind the clock, otherwise at once.
    """

    exchange: str
    from_: int
    to: int
    filters: tuple[Filter, ...] = ()
    with_disconnects: bool = False
    speed: float | None = None
    lag_minutes: float | None = None
    window: tuple[int, int] | None = None


class ReplayNormalizedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A normalized replay. `symbols` None asks for all, and so does an empty tuple.

    `window` are the local times that an exact replay is trimmed to, in microseconds: from
    (inclusive) to (exclusive). With a window, but without `exact`, only tables are trimmed to it.
    `speed` 1 is as it happened, None as fast as possible. With `lag_minutes` a minute is fetched
    when it is so far behind the clock, otherwise at once.
    """

    exchange: str
    from_: int
    to: int
    data_types: tuple[str, ...]
    symbols: tuple[str, ...] | None = None
    with_disconnect_messages: bool = False
    speed: float | None = None
    lag_minutes: float | None = None
    publish: bool = True
    exact: bool = False
    window: tuple[int, int] | None = None


class StreamNormalizedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A normalized live stream."""

    exchange: str
    data_types: tuple[str, ...]
    symbols: tuple[str, ...] | None = None
    with_disconnect_messages: bool = False
    with_error_messages: bool = False
    timeout_interval_ms: int = _LIVE_TIMEOUT_MS
    publish: bool = True


@dataclass(frozen=True)
class Request:
    """Values of a request by option, not checked yet.

    Options have their names in JSON. `names` are those that the caller has written instead, such as
    `data_types` or `--types`, which errors repeat. Without it the caller has written JSON.
    """

    values: Mapping[str, Any]
    names: Mapping[str, str] | None = None

    def get(self, option: str) -> Any:
        """Return the value of an option; None if it is left out."""
        return self.values.get(option)

    def name(self, option: str) -> str:
        """Return an option as errors begin with it: quoted for callers who have written JSON."""
        return self.quoted(option) if self.names is None else self.names.get(option, option)

    def quoted(self, option: str) -> str:
        """Return an option as errors name it within a sentence."""
        return f'"{(self.names or {}).get(option, option)}"'

    def shown(self, value: object) -> str:
        """Return a value as errors show it, shortened."""
        text = _json(value) if self.names is None else repr(value)
        return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"

    def refused(self, option: str, expected: str, shown: str | None = None) -> OptionsError:
        """Return the error of an option's value."""
        if shown is None:
            shown = self.shown(self.get(option))
        return OptionsError(f"invalid {self.name(option)}: {shown}, expected {expected}")


def replay_options(request: Request, *, strict: bool = True) -> ReplayOptions:
    """Return the checked options of a raw replay. Without `strict` unknown options are ignored."""
    keys = ("exchange", "filters", "from", "to", "exact", "withDisconnects", "speed", _WAIT)
    _refuse_unknown_keys(request, keys, strict=strict)
    exchange = _text(request, "exchange")
    channels = catalog.CHANNELS.get(exchange)
    if channels is None:
        raise OptionsError(_one_of(request, "exchange", exchange, catalog.CHANNELS))
    from_, to, window = _range(request)
    return ReplayOptions(
        exchange=exchange,
        from_=from_,
        to=to,
        filters=_filters(request, channels),
        with_disconnects=_flag(request, "withDisconnects", False),
        speed=_speed(request),
        lag_minutes=_lag(request),
        window=window,
    )


def replay_normalized_options(
    requests: Sequence[Request], *, strict: bool = True, exact_tables: bool = False
) -> list[ReplayNormalizedOptions]:
    """Return the checked options of normalized replays that are merged.

    Without `strict` unknown options are ignored. With `exact_tables` requests that do not say
    whether they are exact are for tables.
    """
    keys = (
        *("exchange", "symbols", "from", "to", "exact", "dataTypes", "withDisconnectMessages"),
        *("speed", "publish", _WAIT),
    )
    options = []
    for request in requests:
        _refuse_unknown_keys(request, keys, strict=strict)
        exchange = _exchange(request)
        from_, to, window = _range(request, exact_tables)
        options.append(
            ReplayNormalizedOptions(
                exchange=exchange,
                from_=from_,
                to=to,
                data_types=_data_types(request, exchange),
                symbols=_symbols(request),
                with_disconnect_messages=_flag(request, "withDisconnectMessages", False),
                speed=_speed(request),
                lag_minutes=_lag(request),
                publish=_flag(request, "publish", True),
                exact=_flag(request, "exact", False),
                window=window,
            )
        )
    if requests:
        common_speed(options, requests[0].name("speed"))
    _log_empty_symbols(request.get("symbols") for request in requests)
    return options


def stream_normalized_options(
    requests: Sequence[Request], *, strict: bool = True
) -> list[StreamNormalizedOptions]:
    """Return the checked options of live streams. Without `strict` unknown options are ignored."""
    keys = (
        *("exchange", "symbols", "dataTypes", "withDisconnectMessages", "withErrorMessages"),
        *("timeoutIntervalMS", "publish"),
    )
    options = []
    for request in requests:
        _refuse_unknown_keys(request, keys, strict=strict)
        exchange = _exchange(request)
        timeout = request.get("timeoutIntervalMS")
        if timeout is None:
            timeout = _LIVE_TIMEOUT_MS
        if isinstance(timeout, float) and timeout.is_integer():
            timeout = int(timeout)  # to JavaScript there is no difference
        whole = isinstance(timeout, int) and not isinstance(timeout, bool)
        if not whole or not 0 <= timeout <= _MAX_LIVE_TIMEOUT_MS:
            expected = f"milliseconds, from 0 to {_MAX_LIVE_TIMEOUT_MS:,}"
            raise request.refused("timeoutIntervalMS", expected, request.shown(timeout))
        options.append(
            StreamNormalizedOptions(
                exchange=exchange,
                data_types=_data_types(request, exchange),
                symbols=_symbols(request),
                with_disconnect_messages=_flag(request, "withDisconnectMessages", False),
                with_error_messages=_flag(request, "withErrorMessages", False),
                timeout_interval_ms=timeout,
                publish=_flag(request, "publish", True),
            )
        )
    _log_empty_symbols(request.get("symbols") for request in requests)
    return options


def parse_time(value: object, name: str) -> int:
    """Return a date or time in microseconds since 1970; without a zone it is UTC.

    It is ISO text, or what JavaScript takes as well, such as 2019/06/01, 2019-6-1 and 2019-06.
    """
    return _time(Request({name: value}), name)


def common_speed(
    options: Sequence[ReplayOptions | ReplayNormalizedOptions], name: str = "speed"
) -> float | None:
    """Return the speed of replays that are merged: they have one clock.

    Raises OptionsError, with the option's `name` as the caller writes it, if they have several.
    """
    speeds = dict.fromkeys(each.speed for each in options)
    if len(speeds) > 1:
        shown = " and ".join("none" if each is None else f"{each:g}" for each in speeds)
        raise OptionsError(
            f"invalid {name}: {shown}, expected the same for all that are replayed together"
        )
    return next(iter(speeds), None)


def untrimmed(option: ReplayNormalizedOptions) -> ReplayNormalizedOptions:
    """Return the options of messages, where those of tables may have a window that they have not.

    Raises OptionsError, in the names of Python, if their range has no whole minute.
    """
    if option.exact or option.window is None:
        return option
    first, last = option.window
    asked = Request({"from": local_of(first), "to": local_of(last)}, {"from": "from_"})
    from_, to = _whole_minutes(first, last, asked)
    return msgspec.structs.replace(option, from_=from_, to=to, window=None)


def _time(request: Request, option: str) -> int:
    value = request.get(option)
    moment = _moment(value) if isinstance(value, str) else None
    if moment is None:
        raise request.refused(
            option, "an ISO 8601 date or time such as 2019-06-01 or 2019-06-01T12:00:00.000Z"
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if elapsed.days < 0:
        raise request.refused(option, "1970 or later")
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def _speed(request: Request) -> float | None:
    """Return the speed of a replay: 1 is as it happened, None as fast as possible."""
    value = request.get("speed")
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and MIN_SPEED <= value <= MAX_SPEED:
        return float(value)
    shown = repr(value) if is_number else request.shown(value)
    raise request.refused(
        "speed",
        f"a number from {MIN_SPEED:g} to {MAX_SPEED:,}, such as 1 for as it happened",
        shown[:_MAX_SHOWN],
    )


def _lag(request: Request) -> float | None:
    """Return how many minutes behind the clock a minute is fetched; None is at once."""
    value = request.get(_WAIT)
    if value is None or value is False:
        return None
    if value is True:
        return _LAG_MINUTES
    if isinstance(value, int | float) and 0 <= value <= _MAX_LAG_MINUTES:
        return max(_MIN_LAG_MINUTES, float(value)) if value else None
    shown = repr(value) if isinstance(value, float) else request.shown(value)
    raise request.refused(
        _WAIT,
        f"true, false, or minutes behind the clock, from 0 to {_MAX_LAG_MINUTES:,}",
        shown[:_MAX_SHOWN],
    )


def _whole_minutes(from_: int, to: int, request: Request) -> tuple[int, int]:
    """Return a range cut to whole minutes; raise OptionsError if it has none and is not empty."""
    start, end = from_ - from_ % _MINUTE_US, to - to % _MINUTE_US
    if start >= end and from_ != to:
        raise OptionsError(
            f"invalid {_range_shown(request)} holds no whole minute; expected a "
            f"{request.quoted('to')} at least a minute after {request.quoted('from')}, "
            f"or {request.quoted('exact')}"
        )
    return start, end


def _range_shown(request: Request) -> str:
    names = f"{request.name('from')} and {request.name('to')}"
    return f"{names}: {request.get('from')} to {request.get('to')}"


def _minutes_around(from_: int, to: int, request: Request) -> tuple[int, int, tuple[int, int]]:
    """Return the whole minutes that contain a range, and the range."""
    if from_ > to:
        raise OptionsError(
            f"invalid {_range_shown(request)}, "
            f"expected {request.quoted('to')} after {request.quoted('from')}"
        )
    start = from_ - from_ % _MINUTE_US
    end = start if from_ == to else min(to + -to % _MINUTE_US, _LAST_MINUTE_US)
    return start, max(start, end), (from_, to)


def _moment(text: str) -> datetime | None:
    parts = _DATE.fullmatch(text.strip())
    if parts is None:
        return None
    year, month, day, hour, rest = parts.group("year", "month", "day", "hour", "rest")
    # The end of a day by its own name, which JavaScript takes.
    ends_day = hour == "24"
    hour = "00" if ends_day else hour or "00"
    try:
        moment = datetime.fromisoformat(
            f"{year}-{month or 1:0>2}-{day or 1:0>2}T{hour:0>2}{rest or ':00'}"
        )
        if not ends_day:
            return moment
        is_past = moment.minute or moment.second or moment.microsecond
        return None if is_past else moment + timedelta(days=1)
    except (ValueError, OverflowError):
        return None


def _refuse_unknown_keys(request: Request, known: Sequence[str], *, strict: bool) -> None:
    """Raise OptionsError for an option that is not known; without `strict`, log a warning."""
    unknown = [key for key in request.values if key not in known]
    if not unknown:
        return
    if strict:
        names = request.names or {}
        first, *expected = (names.get(key, key) for key in (unknown[0], *known))
        raise OptionsError(f"unknown option: {first}, expected one of {', '.join(expected)}")
    log.warning("unknown options ignored", extra={"keys": ",".join(unknown)[:200]})


def _text(request: Request, option: str) -> str:
    value = request.get(option)
    if not isinstance(value, str) or not value:
        raise request.refused(option, "text")
    return value


def _exchange(request: Request) -> str:
    exchange = _text(request, "exchange")
    names = exchanges.names()
    if exchange in names:
        return exchange
    if exchange in catalog.CHANNELS:
        raise OptionsError(
            f"invalid {request.name('exchange')}: {request.shown(exchange)} is not normalized yet; "
            f"its raw messages are at /replay. Expected one of {', '.join(names)}"
        )
    raise OptionsError(_one_of(request, "exchange", exchange, names))


def _range(request: Request, exact: bool = False) -> tuple[int, int, tuple[int, int] | None]:
    """Return the whole minutes to fetch, and the window that messages are trimmed to."""
    from_, to = _time(request, "from"), _time(request, "to")
    if _flag(request, "exact", exact):
        return _minutes_around(from_, to, request)
    return *_whole_minutes(from_, to, request), None


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)


def _data_types(request: Request, exchange: str) -> tuple[str, ...]:
    names = request.get("dataTypes")
    supported = exchanges.get(exchange).data_types()
    available = (
        f"available for {exchange}: {', '.join(supported)}; "
        f"computed: {', '.join(datatypes.COMPUTED_FORMS)}"
    )
    if not _are_texts(names):
        raise request.refused("dataTypes", f"an array of texts; {available}")
    if not names:
        raise OptionsError(
            f"invalid {request.name('dataTypes')}: expected at least one; {available}"
        )
    for name in names:
        try:
            needed = datatypes.parse(name).source
        except datatypes.DataTypeError as error:
            raise OptionsError(f"{error}; {available}") from None
        if needed not in supported:
            raise OptionsError(f"invalid data type: {name}; {available}")
    return tuple(dict.fromkeys(names))


def _symbols(request: Request) -> tuple[str, ...] | None:
    symbols = request.get("symbols")
    if symbols is None:
        return None
    if not _are_texts(symbols):
        raise request.refused("symbols", "an array of texts")
    return tuple(dict.fromkeys(symbols)) or None


def _log_empty_symbols(lists: Iterable[Sequence[str] | None]) -> None:
    """Log once for a request that an empty list of symbols stands for all symbols."""
    if any(symbols is not None and not symbols for symbols in lists):
        log.info('empty "symbols": all symbols are meant')


def _filters(request: Request, channels: Iterable[str]) -> tuple[Filter, ...]:
    filters = request.get("filters")
    if filters is None:
        return ()
    if not isinstance(filters, list):
        raise request.refused("filters", 'an array of {"channel","symbols"?}')
    try:
        found = msgspec.convert(filters, tuple[Filter, ...])
    except msgspec.ValidationError as error:
        raise OptionsError(f"invalid {request.name('filters')}: {error}") from None
    for entry in found:
        if entry.channel not in channels:
            raise OptionsError(_one_of(request, "filters channel", entry.channel, channels))
    _log_empty_symbols(entry.symbols for entry in found)
    return tuple(Filter(entry.channel, entry.symbols or None) for entry in found)


def _flag(request: Request, option: str, default: bool) -> bool:
    value = request.get(option)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise request.refused(option, "true or false")
    return value


def _one_of(request: Request, option: str, value: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    near = difflib.get_close_matches(value, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"invalid {request.name(option)}: {request.shown(value)}. {hint}"
        f"Expected one of {', '.join(names)}"
    )


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:  # a number with more digits than it writes
        return str(value)
