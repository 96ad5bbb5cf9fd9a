"""Names of data types: what is sent, what is computed, and what that needs."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from tardis_machine.errors import TardisMachineError
from tardis_machine.messages import numbers

NORMALIZED: Final = (
    "trade",
    "book_change",
    "derivative_ticker",
    "liquidation",
    "option_summary",
    "book_ticker",
)
COMPUTED_FORMS: Final = (
    "trade_bar_{n}{ticks|ms|s|m|vol}",
    "book_snapshot_{depth}[_grouped{g}]_{n}{ms|s|m}",
    "quote",
    "quote_{n}{ms|s|m}",
)

MAX_DEPTH: Final = 100_000
"""More than any book has; a snapshot always prints as many levels as were asked for."""

BarKind = Literal["time", "tick", "volume"]

# Beyond these, times and prices cannot be divided by them.
_SMALLEST: Final = 1e-15
_LARGEST: Final = 1e15

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000}
# In this order a longer suffix is met before the one that it ends with.
_BAR_SUFFIXES: Final[tuple[tuple[str, BarKind, int], ...]] = (
    ("ticks", "tick", 1),
    ("ms", "time", 1),
    ("s", "time", 1000),
    ("m", "time", 60_000),
    ("vol", "volume", 1),
)


class DataTypeError(TardisMachineError, ValueError):
    """A data type that does not exist."""

    def __init__(self, message: str, data_type: str) -> None:
        super().__init__(message)
        self.data_type = data_type


class DataType(msgspec.Struct, frozen=True):
    """A normalized type, sent as it is."""

    name: str

    @property
    def source(self) -> str:
        """The normalized type it is made of."""
        return self.name

    @property
    def message_type(self) -> str:
        """What its messages carry as `type`."""
        return self.name


class TradeBars(DataType, frozen=True):
    """A computed type: one bar per interval of time, trades or volume."""

    kind: BarKind
    interval: float

    @property
    def source(self) -> str:
        return "trade"

    @property
    def message_type(self) -> str:
        return "trade_bar"


class BookSnapshots(DataType, frozen=True):
    """A computed type: the top of the book; quotes are those of depth 1."""

    depth: int
    interval: float
    grouping: float | None = None

    @property
    def source(self) -> str:
        return "book_change"

    @property
    def message_type(self) -> str:
        return "book_snapshot"


def parse(name: str) -> DataType:
    """Return the data type of a name as clients write it."""
    if name in NORMALIZED:
        return DataType(name)
    if name.startswith("trade_bar_"):
        return _trade_bars(name)
    if name.startswith("book_snapshot_"):
        return _book_snapshots(name)
    if name == "quote":
        return BookSnapshots(name, depth=1, interval=0)
    if name.startswith("quote_"):
        return BookSnapshots(name, depth=1, interval=_interval(name, name.removeprefix("quote_")))
    raise _invalid(name)


def parse_all(names: Iterable[str]) -> tuple[DataType, ...]:
    return tuple(parse(name) for name in names)


def sources(data_types: Iterable[DataType]) -> tuple[str, ...]:
    """Return the normalized types that the mapper has to give, in the order mappers run."""
    needed = {data_type.source for data_type in data_types}
    return tuple(name for name in NORMALIZED if name in needed)


def sent(data_types: Sequence[DataType]) -> frozenset[str]:
    """Return the normalized types among them, i.e. those whose messages are sent themselves."""
    return frozenset(data_type.name for data_type in data_types if data_type.name in NORMALIZED)


def _trade_bars(name: str) -> TradeBars:
    for suffix, kind, multiplier in _BAR_SUFFIXES:
        if name.endswith(suffix):
            text = name.removeprefix("trade_bar_").removesuffix(suffix)
            interval = _positive(text)
            if interval is None:
                raise DataTypeError(f"invalid interval: {text}, data type: {name}", name)
            return TradeBars(name, kind, interval * multiplier)
    raise _invalid(name)


def _book_snapshots(name: str) -> BookSnapshots:
    parts = name.removeprefix("book_snapshot_").split("_")
    if len(parts) not in {2, 3} or (len(parts) == 3 and not parts[1].startswith("grouped")):
        raise _invalid(name)
    depth = _positive(parts[0]) if parts[0].isdigit() else None
    if depth is None or depth > MAX_DEPTH:
        raise DataTypeError(
            f"invalid depth: {parts[0]}, data type: {name}, expected 1 to {MAX_DEPTH}", name
        )
    grouping = None
    if len(parts) == 3:
        text = parts[1].removeprefix("grouped")
        grouping = _positive(text)
        if grouping is None:
            raise DataTypeError(f"invalid interval: {text}, data type: {name}", name)
    return BookSnapshots(name, int(depth), _interval(name, parts[-1]), grouping)


def _interval(name: str, part: str) -> float:
    for suffix, multiplier in _UNITS.items():
        if part.endswith(suffix):
            text = part.removesuffix(suffix)
            interval = 0.0 if text.strip("0") == "" and text else _positive(text)
            if interval is None:
                raise DataTypeError(f"invalid interval: {text}, data type: {name}", name)
            return interval * multiplier
    raise _invalid(name)


def _positive(text: str) -> float | None:
    """Return a number above zero, written as digits with at most one point."""
    if not text.isascii() or not text.replace(".", "", 1).isdigit():
        return None
    number = float(text)
    return number if _SMALLEST <= number <= _LARGEST else None


def _invalid(name: str) -> DataTypeError:
    allowed = ", ".join(NORMALIZED + COMPUTED_FORMS)
    return DataTypeError(f"invalid data type: {name}, allowed: {allowed}", name)


def text_of(size: float) -> str:
    """Print an interval, depth or grouping."""
    return numbers.canonical[size]
