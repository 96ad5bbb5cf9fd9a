"""Times as an envelope has them: a Timestamp, and the precision where the value does not tell."""

from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import Milliseconds, Time

YEAR_10000: Final = 253_402_300_800
"""The first second that ISO text with four digits of year cannot say."""

_CACHED: Final = 65_536
BY_VALUE: Final = pb.TIME_PRECISION_UNSPECIFIED
_SIX_DIGITS: Final = pb.TIME_PRECISION_MICROSECONDS


class _Seconds(dict[str, int]):
    """Seconds since the epoch by `2024-03-01T00:00:00.`; only from 1970 on."""

    def __missing__(self, text: str) -> int:
        second = Time.parse(f"{text}000Z") // 1_000_000
        if second < 0:
            raise ValueError(f"{text}… is before 1970")
        if len(self) >= _CACHED:
            self.clear()
        self[text] = second
        return second


_SECONDS: Final = _Seconds()
_MILLIS: Final = {f"{n:03d}": n * 1_000_000 for n in range(1000)}
_MILLIS_END: Final = {f"{n:03d}Z": n * 1_000_000 for n in range(1000)}
_MICROS_END: Final = {f"{n:03d}Z": n * 1_000 for n in range(1000)}


def parse(text: str) -> tuple[int, int, pb.TimePrecision]:
    """Read ISO text as seconds, nanoseconds and the precision to be set beside them.

    Raises KeyError or ValueError for a text that is no time since 1970.
    """
    seconds = _SECONDS[text[:20]]
    if len(text) == 27:
        micros = _MICROS_END[text[23:]]
        return seconds, _MILLIS[text[20:23]] + micros, BY_VALUE if micros else _SIX_DIGITS
    return seconds, _MILLIS_END[text[20:]], BY_VALUE


def time_of(timestamp: Timestamp, precision: int) -> Time:
    """Read a time back, with the count of digits it was printed with."""
    microseconds = timestamp.seconds * 1_000_000 + timestamp.nanos // 1000
    if precision == BY_VALUE:
        precision = _SIX_DIGITS if microseconds % 1000 else pb.TIME_PRECISION_MILLISECONDS
    return (Time if precision == _SIX_DIGITS else Milliseconds)(microseconds)
