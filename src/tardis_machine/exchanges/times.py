"""Exchange times in ISO text, read as JavaScript reads them: milliseconds, the rest cut off."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_PRINTED_LENGTH: Final = len("2019-06-01T00:00:00.000Z")


@lru_cache(maxsize=4096)
def milliseconds(text: str) -> int:
    """Give the epoch milliseconds of an ISO text; ValueError if it is none."""
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return (parsed - _EPOCH) // _MILLISECOND


def to_millisecond(text: str) -> int | str:
    """Give a time that prints with three digits; text that already does is left as it is."""
    return text if len(text) == _PRINTED_LENGTH else milliseconds(text)


def is_later(text: str, other: str) -> bool:
    """Compare two ISO texts."""
    if len(text) == len(other) == _PRINTED_LENGTH:
        return text > other
    return milliseconds(text) > milliseconds(other)
