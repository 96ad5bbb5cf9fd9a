"""What rows touch: days of exchanges and times in them, as conditions that skip all other files."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

DAY_US: Final = 86_400_000_000
LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999, where Spark's times end."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# With more pieces than this, days alone tell which files to read.
_MOST_RANGES: Final = 200


class Span(NamedTuple):
    """Local times of one exchange, in microseconds, both ends included."""

    exchange: str
    first: int
    last: int

    def widened(self, slack_us: int) -> "Span":
        """Reach further at both ends, as far as there are times."""
        return self._replace(
            first=max(self.first - slack_us, 0), last=min(self.last + slack_us, LAST_US)
        )

    @property
    def days(self) -> range:
        """The days it touches, counted from 1970."""
        return range(self.first // DAY_US, self.last // DAY_US + 1)


def condition(spans: Iterable[Span], alias: str) -> str:
    """Confine a query to these spans: by literals, so that other files are not opened.

    Partitions and times are conditions of their own, which Delta Lake understands apart.
    """
    spans = list(spans)
    days: dict[str, set[int]] = {}
    for span in spans:
        days.setdefault(span.exchange, set()).update(span.days)
    partitions = " OR ".join(
        f"({alias}.exchange = {literal(exchange)} AND {alias}.day IN "
        f"({', '.join(day(number) for number in sorted(numbers))}))"
        for exchange, numbers in sorted(days.items())
    )
    ranges = _joined((span.first, span.last) for span in spans)
    if len(ranges) > _MOST_RANGES:
        return f"({partitions})"
    times = " OR ".join(
        f"{alias}.local_ts BETWEEN {instant(first)} AND {instant(last)}" for first, last in ranges
    )
    return f"({partitions}) AND ({times})"


def literal(value: str) -> str:
    """Write text as SQL does."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def listed(values: Sequence[str]) -> str:
    """Write texts as a list of SQL."""
    return ", ".join(literal(value) for value in values)


def day(number: int) -> str:
    """Write a day, counted from 1970, as SQL does."""
    return f"DATE'{moment(number * DAY_US):%Y-%m-%d}'"


def instant(us: int) -> str:
    """Write a time as SQL does, whatever the session's zone."""
    return f"timestamp_micros({us}L)"


def moment(us: int) -> datetime:
    """Give microseconds as a time in UTC."""
    return _EPOCH + timedelta(microseconds=us)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined
