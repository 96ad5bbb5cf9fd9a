"""Conversion of times: from the forms that exchanges send to the ISO text of messages.

A mapper returns a time as an int or as text. An int below `MICROSECONDS` is in milliseconds since
1970 and is printed with three fractional digits; a larger one is in microseconds and is printed
with six. As milliseconds, the limit is in the year 5138. As microseconds it is in 1973, so `micros`
returns text for earlier times. Text is ISO with three or six digits and a Z, printed unchanged.
"""

from datetime import UTC, datetime, timedelta
from math import floor
from typing import Final

TimeValue = int | str

MICROSECONDS: Final = 10**14
"""The smallest int that is a time in microseconds; smaller ones are in milliseconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MIN_SECOND: Final = -62_135_596_800  # the year 1
_MAX_SECOND: Final = 253_402_300_799  # the end of the year 9999
_CACHE_SIZE: Final = 16_384
_ISO_LENGTHS: Final = (24, 27)
# Only texts of these lengths keep their microseconds: 6, 7 or 9 digits, with Z or an offset. The
# Node server reads times so, and its output is the reference.
_MICROSECOND_LENGTHS: Final = frozenset((27, 28, 30, 32))
# The two most frequent of them: six or nine digits and Z, for which there is a fast path.
_DIGITS: Final = frozenset((27, 30))
# "000Z" to "999Z": the end of a time with three digits, by its milliseconds.
ENDS: Final = tuple(f"{ms:03d}Z" for ms in range(1000))
END_MS: Final = {end: ms for ms, end in enumerate(ENDS)}


class _SecondTexts(dict[int, str]):
    """A cache from an epoch second to '2024-03-01T00:00:00.': successive messages share it.

    Raises ValueError outside of the years 1 to 9999.
    """

    __slots__ = ()

    def __missing__(self, second: int) -> str:
        if not _MIN_SECOND <= second <= _MAX_SECOND:
            raise ValueError(f"not a time from the year 1 to 9999: {second} seconds since 1970")
        text = (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S.")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        # strftime does not pad years before 1000
        text = self[second] = text.rjust(20, "0")
        return text


class _Seconds(dict[str, int]):
    """A cache from '2024-03-01T00:00:00.' to its epoch second; other text is a ValueError."""

    __slots__ = ()

    def __missing__(self, text: str) -> int:
        try:
            parsed = datetime.fromisoformat(text[:19])
        except ValueError:
            parsed = None
        # fromisoformat accepts other forms as well: only the form that is printed is valid.
        if parsed is None or f"{parsed:%Y-%m-%dT%H:%M:%S.}".rjust(20, "0") != text:
            raise ValueError(f"not a time such as 2024-03-01T00:00:00.: {text!r}")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        second = self[text] = (parsed.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
        return second


SECOND_TEXTS: Final = _SecondTexts()
SECONDS: Final = _Seconds()


def iso_ms(ms: int) -> str:
    """Return milliseconds since 1970 as ISO text with three fractional digits."""
    if ms <= 0:
        raise ValueError(f"not a time in milliseconds since 1970: {ms}")
    return SECOND_TEXTS[ms // 1000] + ENDS[ms % 1000]


def iso_us(us: int) -> str:
    """Return microseconds since 1970 as ISO text with six fractional digits."""
    if us <= 0:
        raise ValueError(f"not a time in microseconds since 1970: {us}")
    return f"{SECOND_TEXTS[us // 1_000_000]}{us % 1_000_000:06d}Z"


def text_of(time: TimeValue) -> str:
    """Return a time as ISO text; raise ValueError for text in another form."""
    if isinstance(time, int):
        return iso_ms(time) if time < MICROSECONDS else iso_us(time)
    if time[:20] not in SECONDS or time[20:] not in END_MS:
        ms_of(time)  # raises for text in another form
    return time


def local_of(us: int) -> str:
    """Return a local time in microseconds as ISO text; the earliest is one microsecond of 1970."""
    return iso_us(max(us, 1))


def ms_of(time: TimeValue) -> int:
    """Return a time in milliseconds since 1970, truncated like a JavaScript Date."""
    if isinstance(time, int):
        return time if time < MICROSECONDS else time // 1000
    ms = END_MS.get(time[20:])
    if ms is None:
        ms = _fraction_ms(time)
    return SECONDS[time[:20]] * 1000 + ms


def us_of(iso: str) -> int:
    """Return ISO text with Z in microseconds since 1970."""
    ms = ms_of(iso)
    return ms * 1000 + (int(iso[23:26]) if len(iso) == _ISO_LENGTHS[1] else 0)


def _fraction_ms(iso: str) -> int:
    fraction = iso[20:-1]
    if (
        len(iso) not in _ISO_LENGTHS
        or iso[-1] != "Z"
        or not (fraction.isascii() and fraction.isdigit())
    ):
        raise ValueError(f"not an ISO time with three or six fractional digits and Z: {iso!r}")
    return int(fraction[:3])


def parse_ms(iso: str) -> int:
    """Return ISO text of any precision and offset in milliseconds, read as JavaScript does."""
    if len(iso) == _ISO_LENGTHS[0]:
        ms = END_MS.get(iso[20:])
        if ms is not None:
            return SECONDS[iso[:20]] * 1000 + ms
    parsed = datetime.fromisoformat(iso)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return (parsed - _EPOCH) // _MILLISECOND


def micros(us: int) -> TimeValue:
    """Return microseconds since 1970 as a time that is printed with six digits."""
    return us if us >= MICROSECONDS else iso_us(us)


def parse_us(iso: str) -> TimeValue:
    """Return an exchange's ISO text as a time that is printed with six digits.

    Text whose length is not in `_MICROSECOND_LENGTHS` is truncated to milliseconds.
    """
    digits = iso[20:-1]
    if len(iso) in _DIGITS and iso[-1] == "Z" and digits.isdigit() and iso.isascii():
        second = SECONDS[f"{iso[:10]}T{iso[11:20]}"]
        return micros(second * 1_000_000 + int(digits[:6]))
    us = parse_ms(iso) * 1000
    if len(iso) in _MICROSECOND_LENGTHS and (digits := iso[23:26]).isascii() and digits.isdigit():
        us += int(digits)
    return micros(us)


def cut_ms(iso: str) -> TimeValue:
    """Return an exchange's ISO text as a time that is printed with three digits."""
    return iso if len(iso) == _ISO_LENGTHS[0] else parse_ms(iso)


def seconds_ms(seconds: str | float) -> int:
    """Return seconds since 1970 as a time that is printed with three digits, truncated."""
    return _scaled(seconds, 1000)


def seconds_us(seconds: str | float) -> TimeValue:
    """Return seconds since 1970 as a time that is printed with six digits, truncated."""
    return micros(_scaled(seconds, 1_000_000))


def _scaled(seconds: str | float, scale: int) -> int:
    try:
        return floor(float(seconds) * scale)
    except OverflowError:
        raise ValueError(f"not a time in seconds: {seconds}") from None


def nanos_ms(nanoseconds: float) -> int:
    """Return nanoseconds since 1970 as a time that is printed with three digits, truncated.

    They are rounded to a double first, as the Node server does.
    """
    return _cut(nanoseconds, 1_000_000)


def nanos_us(nanoseconds: float) -> TimeValue:
    """Return nanoseconds since 1970, rounded to a double, as a time with six digits, truncated."""
    return micros(_cut(nanoseconds, 1000))


def _cut(nanoseconds: float, unit: int) -> int:
    try:
        return floor(float(nanoseconds) / unit)
    except OverflowError:
        raise ValueError(f"not a time in nanoseconds: {nanoseconds}") from None


def is_before_1970(iso: str) -> bool:
    """Return whether a time is before 1970: exchanges send 0001-01-01T00:00:00Z for no time."""
    return iso < "1970" and parse_ms(iso) < 0


def is_later(iso: str, other: str) -> bool:
    """Return whether one ISO text is a later time than the other."""
    if len(iso) == len(other) == _ISO_LENGTHS[0]:
        return iso > other
    return parse_ms(iso) > parse_ms(other)
