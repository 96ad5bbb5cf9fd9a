"""Times as an envelope has them: a Timestamp, and the precision where the value does not tell."""

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from tardis_machine.bronze.fields import Heads, count
from tardis_machine.bronze.varints import LAST, LOW_BITS, MORE, varint
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import Milliseconds, Time

YEAR_10000: Final = 253_402_300_800
"""The first second that ISO text with four digits of year cannot say."""

_CACHED: Final = 65_536
_SECONDS_TAG: Final = b"\x08"
_FOUR_BYTES: Final = 2**28 - 1
_NANOS_TAG: Final = b"\x10"


class _Seconds(dict[str, tuple[int, bytes]]):
    """Microseconds and a Timestamp's seconds by `2024-03-01T00:00:00.`; only from 1970 on."""

    def __missing__(self, text: str) -> tuple[int, bytes]:
        microseconds = int(Time.parse(f"{text}000Z"))
        if microseconds < 0:
            raise ValueError(f"{text}… is before 1970")
        if len(self) >= _CACHED:
            self.clear()
        second = microseconds // 1_000_000
        written = _SECONDS_TAG + varint(second) if second else b""
        self[text] = microseconds, written
        return microseconds, written


def _nanos(microseconds: int) -> bytes:
    return _NANOS_TAG + varint(microseconds * 1000) if microseconds else b""


SECONDS: Final = _Seconds()
_MILLIS: Final = {f"{n:03d}": n * 1000 for n in range(1000)}
MILLIS_END: Final = {f"{n:03d}Z": (n * 1000, _nanos(n * 1000)) for n in range(1000)}
_MICROS_END: Final = {f"{n:03d}Z": n for n in range(1000)}
_LOW_NANOS: Final = [_NANOS_TAG + low for low in MORE]


class TimeField:
    """A Timestamp, and the field beside it that tells six digits from three where it must.

    Writing raises KeyError or ValueError for a text that is no time since 1970.
    """

    __slots__ = ("_six_digits", "heads")

    def __init__(self, field: int, precision_field: int) -> None:
        self.heads = Heads(field)
        self._six_digits = count(precision_field, pb.TIME_PRECISION_MICROSECONDS)

    def write(self, text: str) -> bytes:
        """Write a time given as ISO text."""
        if len(text) == 27:
            return self.write_six_digits(text)[1]
        timestamp = SECONDS[text[:20]][1] + MILLIS_END[text[20:]][1]
        return self.heads[len(timestamp)] + timestamp

    def write_six_digits(self, text: str) -> tuple[int, bytes]:
        """Write a time whose text has six digits, and give its microseconds too."""
        second, timestamp = SECONDS[text[:20]]
        micros = _MICROS_END[text[23:]]
        fraction = _MILLIS[text[20:23]] + micros
        nanos = fraction * 1000
        # varint() written out, since hardly two of these are the same
        if nanos > _FOUR_BYTES:
            high = MORE[nanos >> 14 & LOW_BITS] + LAST[nanos >> 28]
            timestamp += _LOW_NANOS[nanos & LOW_BITS] + high
        elif nanos > LOW_BITS:
            timestamp += _LOW_NANOS[nanos & LOW_BITS] + LAST[nanos >> 14]
        else:
            timestamp += _nanos(fraction)
        field = self.heads[len(timestamp)] + timestamp
        return second + fraction, field if micros else field + self._six_digits


def time_of(timestamp: Timestamp, precision: int) -> Time:
    """Read a time back, with the count of digits it was printed with."""
    microseconds = timestamp.seconds * 1_000_000 + timestamp.nanos // 1000
    if precision == pb.TIME_PRECISION_UNSPECIFIED:
        return (Time if microseconds % 1000 else Milliseconds)(microseconds)
    return (Milliseconds if precision == pb.TIME_PRECISION_MILLISECONDS else Time)(microseconds)
