"""Exchange times: epoch milliseconds or ISO text in, ISO text and milliseconds out."""

from datetime import UTC, datetime, timedelta
from typing import Final

Time = int | str

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SECOND: Final = 253_402_300_799  # the end of the year 9999
_CACHE_SIZE: Final = 4096
_ISO_LENGTHS: Final = (24, 27)
# "000Z" to "999Z": how a time of three digits ends, and back.
ENDS: Final = tuple(f"{ms:03d}Z" for ms in range(1000))
END_MS: Final = {end: ms for ms, end in enumerate(ENDS)}


class _Seconds(dict[int, str]):
    """'2024-03-01T00:00:00.' by epoch second: neighbouring messages share their second."""

    __slots__ = ()

    def __missing__(self, second: int) -> str:
        if not 0 <= second <= _MAX_SECOND:
            raise ValueError(f"not a time since 1970: {second} seconds")
        text = (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S.")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[second] = text
        return text


class _Milliseconds(dict[str, int]):
    """Epoch milliseconds of the second in '2024-03-01T00:00:00.'."""

    __slots__ = ()

    def __missing__(self, text: str) -> int:
        second = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.").replace(tzinfo=UTC)
        if len(self) >= _CACHE_SIZE:
            self.clear()
        ms = self[text] = int((second - _EPOCH).total_seconds()) * 1000
        return ms


SECONDS: Final = _Seconds()
SECOND_MS: Final = _Milliseconds()


def iso_ms(ms: int) -> str:
    """ISO text with three fractional digits."""
    if ms <= 0:
        raise ValueError(f"not a time in milliseconds since 1970: {ms}")
    return SECONDS[ms // 1000] + ENDS[ms % 1000]


def iso_us(us: int) -> str:
    """ISO text with six fractional digits."""
    if us <= 0:
        raise ValueError(f"not a time in microseconds since 1970: {us}")
    return f"{SECONDS[us // 1_000_000]}{us % 1_000_000:06d}Z"


def ms_of(iso: str) -> int:
    """Epoch milliseconds of ISO text with Z, cut like a JavaScript Date."""
    ms = END_MS.get(iso[20:])
    if ms is None:
        ms = _fraction_ms(iso)
    return SECOND_MS[iso[:20]] + ms


def us_of(iso: str) -> int:
    """Epoch microseconds of ISO text with Z."""
    ms = ms_of(iso)
    return ms * 1000 + (int(iso[23:26]) if len(iso) == _ISO_LENGTHS[1] else 0)


def text_of(time: Time) -> str:
    """Print a time; text is checked, since it may come straight from an exchange."""
    if isinstance(time, int):
        return iso_ms(time)
    if time[:20] not in SECOND_MS or time[20:] not in END_MS:
        ms_of(time)
    return time


def _fraction_ms(iso: str) -> int:
    fraction = iso[20:-1]
    if (
        len(iso) not in _ISO_LENGTHS
        or iso[-1] != "Z"
        or not (fraction.isascii() and fraction.isdigit())
    ):
        raise ValueError(f"not an ISO time with three or six fractional digits and Z: {iso!r}")
    return int(fraction[:3])
