"""The compiled emitter, and the Python that reads for it what has an unusual form."""

from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

from msgspec import Raw

from tardis_machine.engine import datatypes
from tardis_machine.engine.datatypes import NORMALIZED, BookSnapshots, DataType, TradeBars, text_of
from tardis_machine.engine.levels import (
    PAIRS,
    Keyed,
    Layout,
    Levels,
    Pair,
    RowLayout,
    reader,
    splitter,
)
from tardis_machine.engine.protocol import Emitter
from tardis_machine.engine.python.emitter import PythonEmitter
from tardis_machine.engine.python.groups import decimal_places
from tardis_machine.messages import times
from tardis_machine.messages.numbers import Number, canonical
from tardis_machine.messages.times import TimeValue


def compiled_emitter(
    module: ModuleType,
    exchange: str,
    data_types: Sequence[DataType],
    sent: Collection[str] | None = None,
) -> Emitter:
    """Make the kernel's emitter."""
    sends = datatypes.sent(data_types) if sent is None else frozenset(sent)
    bars = [
        (each.name, each.kind, each.interval, text_of(each.interval))
        for each in data_types
        if isinstance(each, TradeBars)
    ]
    snapshots = [
        (each.name, each.depth, each.interval, text_of(each.interval), _grouping(each.grouping))
        for each in data_types
        if isinstance(each, BookSnapshots)
    ]
    emitter: Emitter = module.Emitter(
        exchange,
        sum(1 << place for place, name in enumerate(NORMALIZED) if name in sends),
        bars,
        snapshots,
        Readers(exchange, data_types),
    )
    return emitter


def _grouping(grouping: float | None) -> tuple[float, str, float] | None:
    if grouping is None:
        return None
    return grouping, text_of(grouping), float(10 ** decimal_places(grouping))


class Readers:
    """What the kernel asks of Python: to read, or to refuse, what it does not expect."""

    def __init__(self, exchange: str, data_types: Sequence[DataType]) -> None:
        self._tables = _TableReader(exchange, data_types)

    def text(self, number: Number) -> str:
        """Print a number."""
        try:
            return canonical[bytes(number) if type(number) is Raw else number]
        except TypeError:  # lists and such, which have no hash
            raise ValueError("not a number, nor text that is one") from None

    def time(self, time: TimeValue) -> str:
        """Print a time."""
        return times.text_of(time)

    def pairs(self, levels: Levels, layout: Layout | None) -> Sequence[Pair]:
        """Read levels of one side."""
        return reader(layout or PAIRS)(levels)

    def rows(self, rows: Levels, layout: RowLayout) -> tuple[list[Pair], list[Pair]]:
        """Part rows into bids and asks."""
        return splitter(layout)(rows)

    def table(self, emitter: Any, message: bytes, layout: Keyed) -> None:
        """Read a keyed table's message, and have the kernel make its changes."""
        self._tables.read_for(emitter, message, layout)

    def forget(self) -> None:
        self._tables.forget()


class _TableReader(PythonEmitter):
    """Reads tables as the Python emitter does, from the kernel's memory and into its books."""

    _target: Any = None

    def read_for(self, emitter: Any, message: bytes, layout: Keyed) -> None:
        self._target = emitter
        try:
            self.table(layout).prices = emitter.table_prices(layout)
            self.book_table(message, layout)
        finally:
            self._target = None

    def book_change(
        self,
        symbol: str,
        is_snapshot: bool,
        bids: Levels,
        asks: Levels,
        timestamp: TimeValue | None,
        layout: Layout = PAIRS,
        /,
    ) -> None:
        self._target.book_change(symbol, is_snapshot, bids, asks, timestamp, layout)
