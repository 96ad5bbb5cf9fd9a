"""Exchange times: epoch milliseconds or ISO text in, ISO text and milliseconds out."""

from datetime import UTC, datetime, timedelta
from typing import Final

Time = int | str

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# JavaScript's Date ends here; more is an invalid date there as well.
_MAX_MS: Final = 8_640_000_000_000_000
_MAX_PRINTED_MS: Final = 253_402_300_800_000  # the year 10000
_CACHE_SIZE: Final = 4096
_ISO_LENGTHS: Final = (24, 27)


class _Seconds(dict[int, str]):
    """'2024-03-01T00:00:00.' by epoch second: neighbouring messages share their second."""

    __slots__ = ()

    def __missing__(self, second: int) -> str:
        text = (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S.")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[second] = text
        return text


class _Milliseconds(dict[str, int]):
    """Epoch milliseconds of the second in '2024-03-01T00:00:00'."""

    __slots__ = ()

    def __missing__(self, text: str) -> int:
        second = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
        if len(self) >= _CACHE_SIZE:
            self.clear()
        ms = self[text] = int((second - _EPOCH).total_seconds()) * 1000
        return ms


_seconds: Final = _Seconds()
_milliseconds: Final = _Milliseconds()


def iso_ms(ms: int) -> str:
    """ISO text with three fractional digits."""
    if not 0 < ms < _MAX_PRINTED_MS:
        raise ValueError(f"not a time in milliseconds since 1970: {ms}")
    second, rest = divmod(ms, 1000)
    return f"{_seconds[second]}{rest:03d}Z"


def iso_us(us: int) -> str:
    """ISO text with six fractional digits."""
    if not 0 < us < _MAX_PRINTED_MS * 1000:
        raise ValueError(f"not a time in microseconds since 1970: {us}")
    second, rest = divmod(us, 1_000_000)
    return f"{_seconds[second]}{rest:06d}Z"


def ms_of(iso: str) -> int:
    """Epoch milliseconds of ISO text with Z, cut like a JavaScript Date."""
    return _milliseconds[_checked(iso)[:19]] + int(iso[20:23])


def us_of(iso: str) -> int:
    """Epoch microseconds of ISO text with Z."""
    ms = ms_of(iso)
    return ms * 1000 + (int(iso[23:26]) if len(iso) == _ISO_LENGTHS[1] else 0)


def text_of(time: Time) -> str:
    """Print a time; text is checked, since it may come straight from an exchange."""
    if isinstance(time, int):
        return iso_ms(time)
    if time[:19] not in _milliseconds:
        ms_of(time)
    return _checked(time)


def _checked(iso: str) -> str:
    if (
        len(iso) not in _ISO_LENGTHS
        or iso[19] != "."
        or iso[-1] != "Z"
        or not iso.isascii()
        or not iso[20:-1].isdigit()
    ):
        raise ValueError(f"not an ISO time with three or six fractional digits and Z: {iso!r}")
    return iso
