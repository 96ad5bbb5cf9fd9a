"""Times: what exchanges send in, ISO text out; the one place that knows how either is written.

A time on its way to the emitter is an int or text. An int below `MICROSECONDS` counts
milliseconds since 1970 and prints three fractional digits; from there on it counts microseconds
and prints six. (As milliseconds that border lies in the year 5138; `micros` makes text of the
microseconds below it, which end in 1973.) Text is ISO as it is to be printed, with three or six
digits and a Z.
"""

from datetime import UTC, datetime, timedelta
from math import floor
from typing import Final

TimeValue = int | str

MICROSECONDS: Final = 10**14
"""From here on an int is a time in microseconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MIN_SECOND: Final = -62_135_596_800  # the year 1
_MAX_SECOND: Final = 253_402_300_799  # the end of the year 9999
_CACHE_SIZE: Final = 16_384
_ISO_LENGTHS: Final = (24, 27)
# Only texts of these lengths keep their microseconds: with Z or an offset, of 6, 7 or 9 digits.
_MICROSECOND_LENGTHS: Final = frozenset((27, 28, 30, 32))
# The two of them that end in Z and are met most: of six and of nine digits.
_DIGITS: Final = frozenset((27, 30))
# "000Z" to "999Z": how a time of three digits ends, and back.
ENDS: Final = tuple(f"{ms:03d}Z" for ms in range(1000))
END_MS: Final = {end: ms for ms, end in enumerate(ENDS)}


class _SecondTexts(dict[int, str]):
    """'2024-03-01T00:00:00.' by epoch second: neighbouring messages share their second."""

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
    """The epoch second of '2024-03-01T00:00:00.'; ValueError for what is none."""

    __slots__ = ()

    def __missing__(self, text: str) -> int:
        try:
            parsed = datetime.fromisoformat(text[:19])
        except ValueError:
            parsed = None
        # As it would be printed, since there are other ways to write a time.
        if parsed is None or f"{parsed:%Y-%m-%dT%H:%M:%S.}".rjust(20, "0") != text:
            raise ValueError(f"not a time such as 2024-03-01T00:00:00.: {text!r}")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        second = self[text] = (parsed.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
        return second


SECOND_TEXTS: Final = _SecondTexts()
SECONDS: Final = _Seconds()


def iso_ms(ms: int) -> str:
    """ISO text with three fractional digits."""
    if ms <= 0:
        raise ValueError(f"not a time in milliseconds since 1970: {ms}")
    return SECOND_TEXTS[ms // 1000] + ENDS[ms % 1000]


def iso_us(us: int) -> str:
    """ISO text with six fractional digits."""
    if us <= 0:
        raise ValueError(f"not a time in microseconds since 1970: {us}")
    return f"{SECOND_TEXTS[us // 1_000_000]}{us % 1_000_000:06d}Z"


def text_of(time: TimeValue) -> str:
    """Print a time; text is checked, since it may come straight from an exchange."""
    if isinstance(time, int):
        return iso_ms(time) if time < MICROSECONDS else iso_us(time)
    if time[:20] not in SECONDS or time[20:] not in END_MS:
        ms_of(time)
    return time


def local_of(us: int) -> str:
    """ISO text of a local time in microseconds; 1970 begins with its first one."""
    return iso_us(max(us, 1))


def ms_of(time: TimeValue) -> int:
    """Epoch milliseconds of a time, cut like a JavaScript Date."""
    if isinstance(time, int):
        return time if time < MICROSECONDS else time // 1000
    ms = END_MS.get(time[20:])
    if ms is None:
        ms = _fraction_ms(time)
    return SECONDS[time[:20]] * 1000 + ms


def us_of(iso: str) -> int:
    """Epoch microseconds of ISO text with Z."""
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
    """Milliseconds of an exchange's ISO text of any precision or offset, as JavaScript reads it."""
    if len(iso) == _ISO_LENGTHS[0]:
        ms = END_MS.get(iso[20:])
        if ms is not None:
            return SECONDS[iso[:20]] * 1000 + ms
    parsed = datetime.fromisoformat(iso)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return (parsed - _EPOCH) // _MILLISECOND


def micros(us: int) -> TimeValue:
    """Return a time in microseconds, which prints six digits."""
    return us if us >= MICROSECONDS else iso_us(us)


def parse_us(iso: str) -> TimeValue:
    """Return an exchange's ISO text as a time that prints six digits.

    Only texts of the usual lengths keep them; of others the milliseconds count.
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
    """Return an exchange's ISO text as a time that prints three digits."""
    return iso if len(iso) == _ISO_LENGTHS[0] else parse_ms(iso)


def seconds_ms(seconds: str | float) -> int:
    """Seconds with a fraction as a time that prints three digits, what follows them cut."""
    return _scaled(seconds, 1000)


def seconds_us(seconds: str | float) -> TimeValue:
    """Seconds with a fraction as a time that prints six digits, what follows them cut."""
    return micros(_scaled(seconds, 1_000_000))


def _scaled(seconds: str | float, scale: int) -> int:
    try:
        return floor(float(seconds) * scale)
    except OverflowError:
        raise ValueError(f"not a time in seconds: {seconds}") from None


def nanos_ms(nanoseconds: float) -> int:
    """Nanoseconds as a time that prints three digits, what follows them cut.

    They exceed what a double holds, and clients know them rounded to one before they are cut.
    """
    return _cut(nanoseconds, 1_000_000)


def nanos_us(nanoseconds: float) -> TimeValue:
    """Nanoseconds as a time that prints six digits, rounded and cut in the same way."""
    return micros(_cut(nanoseconds, 1000))


def _cut(nanoseconds: float, unit: int) -> int:
    try:
        return floor(float(nanoseconds) / unit)
    except OverflowError:
        raise ValueError(f"not a time in nanoseconds: {nanoseconds}") from None


def is_before_1970(iso: str) -> bool:
    """Tell times such as 0001-01-01T00:00:00Z, which stand for none, from those that are meant."""
    return iso < "1970" and parse_ms(iso) < 0


def is_later(iso: str, other: str) -> bool:
    """Compare two ISO texts."""
    if len(iso) == len(other) == _ISO_LENGTHS[0]:
        return iso > other
    return parse_ms(iso) > parse_ms(other)
