"""The options of a request: JSON text to typed structs, validated before anything starts."""

import difflib
import logging
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tardis_machine import exchanges
from tardis_machine.emit import datatypes
from tardis_machine.errors import TardisMachineError
from tardis_machine.exchanges import catalog
from tardis_machine.filters import Filter
from tardis_machine.pacing import MAX_SPEED, MIN_SPEED
from tardis_machine.times import local_of

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
    """Options that cannot be served: which one, and what is allowed."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        self.status = status
        super().__init__(message)


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


def parse_replay(text: str | None, *, strict: bool = False) -> ReplayOptions:
    """Read the options of `/replay`."""
    given = _objects(text)
    if len(given) != 1:
        raise OptionsError("invalid options: a raw replay takes one object, not an array")
    options = given[0]
    keys = ("exchange", "filters", "from", "to", "exact", "withDisconnects", "speed", _WAIT)
    _known_keys(options, keys, strict=strict)
    exchange = _text(options, "exchange")
    channels = catalog.CHANNELS.get(exchange)
    if channels is None:
        raise OptionsError(_one_of("exchange", exchange, catalog.CHANNELS))
    from_, to, window = _range(options)
    return ReplayOptions(
        exchange=exchange,
        from_=from_,
        to=to,
        filters=_filters(options.get("filters"), channels),
        with_disconnects=_flag(options, "withDisconnects", False),
        speed=parse_speed(options.get("speed")),
        lag_minutes=parse_lag(options.get(_WAIT)),
        window=window,
    )


def parse_replay_normalized(
    text: str | None, *, strict: bool = False, exact_tables: bool = False
) -> list[ReplayNormalizedOptions]:
    """Read the options of `/replay-normalized` and `/ws-replay-normalized`: one or several.

    With `exact_tables` those that do not say whether they are exact are for tables.
    """
    keys = (
        *("exchange", "symbols", "from", "to", "exact", "dataTypes", "withDisconnectMessages"),
        *("speed", "publish", _WAIT),
    )
    found = []
    given = _objects(text)
    for options in given:
        _known_keys(options, keys, strict=strict)
        exchange = _exchange(options)
        from_, to, window = _range(options, exact_tables)
        found.append(
            ReplayNormalizedOptions(
                exchange=exchange,
                from_=from_,
                to=to,
                data_types=_data_types(options, exchange),
                symbols=_symbols(options),
                with_disconnect_messages=_flag(options, "withDisconnectMessages", False),
                speed=parse_speed(options.get("speed")),
                lag_minutes=parse_lag(options.get(_WAIT)),
                publish=_flag(options, "publish", True),
                exact=_flag(options, "exact", False),
                window=window,
            )
        )
    common_speed(found)
    _log_empty_symbols(options.get("symbols") for options in given)
    return found


def parse_stream_normalized(
    text: str | None, *, strict: bool = False
) -> list[StreamNormalizedOptions]:
    """Read the options of `/ws-stream-normalized`: one or several."""
    keys = (
        *("exchange", "symbols", "dataTypes", "withDisconnectMessages", "withErrorMessages"),
        *("timeoutIntervalMS", "publish"),
    )
    found = []
    given = _objects(text)
    for options in given:
        _known_keys(options, keys, strict=strict)
        exchange = _exchange(options)
        timeout = options.get("timeoutIntervalMS")
        if timeout is None:
            timeout = _LIVE_TIMEOUT_MS
        if isinstance(timeout, float) and timeout.is_integer():
            timeout = int(timeout)  # to JavaScript there is no difference
        whole = isinstance(timeout, int) and not isinstance(timeout, bool)
        if not whole or not 0 <= timeout <= _MAX_LIVE_TIMEOUT_MS:
            raise OptionsError(
                f'invalid "timeoutIntervalMS": {_shown(timeout)}, expected milliseconds, '
                f"from 0 to {_MAX_LIVE_TIMEOUT_MS:,}"
            )
        found.append(
            StreamNormalizedOptions(
                exchange=exchange,
                data_types=_data_types(options, exchange),
                symbols=_symbols(options),
                with_disconnect_messages=_flag(options, "withDisconnectMessages", False),
                with_error_messages=_flag(options, "withErrorMessages", False),
                timeout_interval_ms=timeout,
                publish=_flag(options, "publish", True),
            )
        )
    _log_empty_symbols(options.get("symbols") for options in given)
    return found


def parse_time(value: object, name: str) -> int:
    """Read a date or time as microseconds since 1970; without a zone it is UTC.

    It is ISO text, or what JavaScript takes as well, such as 2019/06/01, 2019-6-1 and 2019-06.
    """
    moment = _moment(value) if isinstance(value, str) else None
    if moment is None:
        raise OptionsError(
            f'invalid "{name}": {_shown(value)}, expected an ISO 8601 date or time such as '
            "2019-06-01 or 2019-06-01T12:00:00.000Z"
        )
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if elapsed.days < 0:
        raise OptionsError(f'invalid "{name}": {_shown(value)}, expected 1970 or later')
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def parse_speed(value: object) -> float | None:
    """Read how fast time is to pass in a replay: 1 is as it happened, None as fast as possible."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        if MIN_SPEED <= value <= MAX_SPEED:
            return float(value)
        shown = repr(value)  # JSON has no NaN
    else:
        shown = _shown(value)
    raise OptionsError(
        f'invalid "speed": {shown:.{_MAX_SHOWN}}, expected a number from {MIN_SPEED:g} to '
        f"{MAX_SPEED:,}, such as 1 for as it happened"
    )


def parse_lag(value: object) -> float | None:
    """Read how far behind the clock minutes are fetched; None is at once, and so is 0."""
    if value is None or value is False:
        return None
    if value is True:
        return _LAG_MINUTES
    if isinstance(value, int | float) and 0 <= value <= _MAX_LAG_MINUTES:
        return max(_MIN_LAG_MINUTES, float(value)) if value else None
    shown = repr(value) if isinstance(value, float) else _shown(value)  # JSON has no NaN
    raise OptionsError(
        f'invalid "{_WAIT}": {shown:.{_MAX_SHOWN}}, expected true, false, or minutes behind the '
        f"clock, from 0 to {_MAX_LAG_MINUTES:,}"
    )


def common_speed(options: Sequence[ReplayOptions | ReplayNormalizedOptions]) -> float | None:
    """Tell the speed of replays that are merged: they have one clock."""
    speeds = dict.fromkeys(each.speed for each in options)
    if len(speeds) > 1:
        shown = " and ".join("none" if each is None else f"{each:g}" for each in speeds)
        raise OptionsError(
            f'invalid "speed": {shown}, expected the same for all that are replayed together'
        )
    return next(iter(speeds), None)


def whole_minutes(
    from_: int, to: int, shown: tuple[object, object] | None = None
) -> tuple[int, int]:
    """Cut a range to minutes; refuse one without a whole minute, unless it is of no length."""
    start, end = from_ - from_ % _MINUTE_US, to - to % _MINUTE_US
    if start >= end and from_ != to:
        first, last = shown or (from_, to)
        raise OptionsError(
            f'invalid "from" and "to": {first} to {last} holds no whole minute; '
            'expected a "to" at least a minute after "from", or "exact"'
        )
    return start, end


def untrimmed(option: ReplayNormalizedOptions) -> ReplayNormalizedOptions:
    """Return the options of messages, where those of tables may have a window that they have not.

    Raises OptionsError if their range has no whole minute.
    """
    if option.exact or option.window is None:
        return option
    first, last = option.window
    from_, to = whole_minutes(first, last, (local_of(first), local_of(last)))
    return msgspec.structs.replace(option, from_=from_, to=to, window=None)


def _minutes_around(
    from_: int, to: int, shown: tuple[object, object]
) -> tuple[int, int, tuple[int, int]]:
    """Return the whole minutes that hold a range, and the range."""
    if from_ > to:
        raise OptionsError(
            f'invalid "from" and "to": {shown[0]} to {shown[1]}, expected "to" after "from"'
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


def _objects(text: str | None) -> list[dict[str, Any]]:
    if not text:
        raise OptionsError(
            'missing "options": expected a URL-encoded JSON object, or an array of them'
        )
    try:
        decoded = msgspec.json.decode(text)
    except RecursionError:
        raise OptionsError(
            'invalid "options": nested too deeply, expected a JSON object, or an array of them'
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise OptionsError(f'invalid "options": not JSON ({error})') from None
    given = decoded if isinstance(decoded, list) else [decoded]
    if not given or not all(isinstance(entry, dict) for entry in given):
        raise OptionsError('invalid "options": expected a JSON object, or an array of them')
    return given


def _known_keys(options: dict[str, Any], known: Sequence[str], *, strict: bool) -> None:
    unknown = [key for key in options if key not in known]
    if not unknown:
        return
    if strict:
        raise OptionsError(f"unknown option: {unknown[0]}, expected one of {', '.join(known)}")
    log.warning("unknown options ignored", extra={"keys": ",".join(unknown)[:200]})


def _text(options: dict[str, Any], name: str) -> str:
    value = options.get(name)
    if not isinstance(value, str) or not value:
        raise OptionsError(f'invalid "{name}": {_shown(value)}, expected text')
    return value


def _exchange(options: dict[str, Any]) -> str:
    exchange = _text(options, "exchange")
    names = exchanges.names()
    if exchange in names:
        return exchange
    if exchange in catalog.CHANNELS:
        raise OptionsError(
            f'invalid "exchange": {_shown(exchange)} is not normalized yet; its raw messages are '
            f"at /replay. Expected one of {', '.join(names)}"
        )
    raise OptionsError(_one_of("exchange", exchange, names))


def _range(options: dict[str, Any], exact: bool = False) -> tuple[int, int, tuple[int, int] | None]:
    """Read the whole minutes to fetch, and what they are trimmed to."""
    shown = options.get("from"), options.get("to")
    from_, to = parse_time(shown[0], "from"), parse_time(shown[1], "to")
    if _flag(options, "exact", exact):
        return _minutes_around(from_, to, shown)
    return *whole_minutes(from_, to, shown), None


def _data_types(options: dict[str, Any], exchange: str) -> tuple[str, ...]:
    given = options.get("dataTypes")
    supported = exchanges.get(exchange).data_types()
    available = (
        f"available for {exchange}: {', '.join(supported)}; "
        f"computed: {', '.join(datatypes.COMPUTED_FORMS)}"
    )
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise OptionsError(
            f'invalid "dataTypes": {_shown(given)}, expected an array of texts; {available}'
        )
    if not given:
        raise OptionsError(f'invalid "dataTypes": expected at least one; {available}')
    for name in given:
        try:
            needed = datatypes.parse(name).source
        except datatypes.DataTypeError as error:
            raise OptionsError(f"{error}; {available}") from None
        if needed not in supported:
            raise OptionsError(f"invalid data type: {name}; {available}")
    return tuple(dict.fromkeys(given))


def _symbols(options: dict[str, Any]) -> tuple[str, ...] | None:
    given = options.get("symbols")
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise OptionsError(f'invalid "symbols": {_shown(given)}, expected an array of texts')
    return tuple(dict.fromkeys(given)) or None


def _log_empty_symbols(lists: Iterable[Sequence[str] | None]) -> None:
    """Log once for a request that its empty lists of symbols ask for all of them."""
    if any(symbols is not None and not symbols for symbols in lists):
        log.info('empty "symbols": all symbols are meant')


def _filters(given: object, channels: Iterable[str]) -> tuple[Filter, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise OptionsError(
            f'invalid "filters": {_shown(given)}, expected an array of {{"channel","symbols"?}}'
        )
    try:
        found = msgspec.convert(given, tuple[Filter, ...])
    except msgspec.ValidationError as error:
        raise OptionsError(f'invalid "filters": {error}') from None
    for entry in found:
        if entry.channel not in channels:
            raise OptionsError(_one_of("filters channel", entry.channel, channels))
    _log_empty_symbols(entry.symbols for entry in found)
    return tuple(Filter(entry.channel, entry.symbols or None) for entry in found)


def _flag(options: dict[str, Any], name: str, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise OptionsError(f'invalid "{name}": {_shown(value)}, expected true or false')
    return value


def _one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    near = difflib.get_close_matches(value, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f'invalid "{name}": {_shown(value)}. {hint}Expected one of {", ".join(names)}'


def _shown(value: object) -> str:
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except OverflowError:  # a number with more digits than it writes
        text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
