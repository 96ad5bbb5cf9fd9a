"""Book snapshots and quotes of one symbol, all read from one book."""

from collections.abc import Sequence
from math import floor
from typing import Protocol

from tardis_machine.engine.datatypes import BookSnapshots, text_of
from tardis_machine.engine.python.book import EMPTY_LEVEL, Book, Change
from tardis_machine.engine.python.groups import Groups
from tardis_machine.messages import times


class _Rows(Protocol):
    """What a snapshot shows of the book."""

    def refresh(self) -> bool:
        """Catch up with the book; True when the rows differ from what they were."""

    def text(self) -> str:
        """Return the snapshot's bids and asks."""


class _Levels:
    """The first levels of the book, as they are."""

    __slots__ = ("_asks", "_asks_version", "_bids", "_bids_version", "_book", "_depth")

    def __init__(self, book: Book, depth: int) -> None:
        self._book = book
        self._depth = depth
        self._bids = self._asks = ",".join([EMPTY_LEVEL] * depth)
        self._bids_version = self._asks_version = 0

    def refresh(self) -> bool:
        moved = False
        side = self._book.bids
        if side.version != self._bids_version:
            self._bids_version = side.version
            text = ",".join(side.top if self._depth == side.depth else side.top[: self._depth])
            if text != self._bids:
                self._bids = text
                moved = True
        side = self._book.asks
        if side.version != self._asks_version:
            self._asks_version = side.version
            text = ",".join(side.top if self._depth == side.depth else side.top[: self._depth])
            if text != self._asks:
                self._asks = text
                moved = True
        return moved

    def text(self) -> str:
        return f'"bids":[{self._bids}],"asks":[{self._asks}]'


class _Grouped:
    """The first price groups of the book."""

    __slots__ = ("asks", "bids")

    def __init__(self, book: Book, depth: int, grouping: float) -> None:
        self.bids = Groups(book.bids, depth, grouping)
        self.asks = Groups(book.asks, depth, grouping)

    def refresh(self) -> bool:
        moved = self.bids.refresh()
        return self.asks.refresh() or moved

    def text(self) -> str:
        return f'"bids":[{",".join(self.bids.rows)}],"asks":[{",".join(self.asks.rows)}]'


class _Snapshot:
    """One computed type: when its snapshots are due, and their text."""

    __slots__ = ("_changed", "_head", "_initialized", "_interval", "_last_ms", "_rows")

    def __init__(self, head: str, spec: BookSnapshots, rows: _Rows) -> None:
        grouping = f'"grouping":{text_of(spec.grouping)},' if spec.grouping is not None else ""
        self._head = (
            f'{head},"name":"{spec.name}","depth":{spec.depth},'
            f'"interval":{text_of(spec.interval)},{grouping}'
        )
        self._rows = rows
        self._interval = spec.interval
        self._changed = False
        self._initialized = False
        self._last_ms = 0

    def before(self, ms: int, local: str) -> str | None:
        """Return the snapshot that a later time bucket makes due: the book before this."""
        if not self._changed:
            return None
        bucket = floor(self._last_ms / self._interval)
        if floor(ms / self._interval) <= bucket:
            return None
        self._changed = False
        self._rows.refresh()
        return self._text(times.iso_ms(int((bucket + 1) * self._interval)), local)

    def after(self, ms: int, time: str, local: str) -> str | None:
        """Return the snapshot that this change makes due."""
        self._last_ms = ms
        # Once changed, an interval's snapshot is due whatever follows: no need to look closer.
        if self._changed or not self._rows.refresh():
            return None
        if self._interval and self._initialized:
            self._changed = True
            return None
        self._initialized = True
        return self._text(time, local)

    def _text(self, time: str, local: str) -> str:
        return (
            f'{self._head}{self._rows.text()},"timestamp":"{time}","localTimestamp":"{local}"}}\n'
        )


class Snapshots:
    """All computed snapshots of one symbol, in the order they were asked for."""

    __slots__ = ("_grouped", "_snapshots", "book", "timed")

    def __init__(self, head: str, specs: Sequence[BookSnapshots]) -> None:
        depth = max((spec.depth for spec in specs if spec.grouping is None), default=0)
        grouped = any(spec.grouping is not None for spec in specs)
        self.book = Book(depth, grouped=grouped)
        self._grouped: list[_Grouped] = []
        self._snapshots: list[_Snapshot] = []
        self.timed = any(spec.interval for spec in specs)
        for spec in specs:
            rows: _Rows
            if spec.grouping is None:
                rows = _Levels(self.book, spec.depth)
            else:
                rows = _Grouped(self.book, spec.depth, spec.grouping)
                self._grouped.append(rows)
            self._snapshots.append(_Snapshot(head, spec, rows))

    def change(
        self,
        is_snapshot: bool,
        bids: Sequence[Change],
        asks: Sequence[Change],
        ms: int,
        time: str,
        local: str,
    ) -> list[str]:
        """Apply a book change; returns the snapshots it makes due."""
        early = [snapshot.before(ms, local) for snapshot in self._snapshots] if self.timed else ()
        book = self.book
        book.update(is_snapshot, bids, asks)
        for grouped in self._grouped:
            if book.bids.changed:
                grouped.bids.note(book.bids.changed)
            if book.asks.changed:
                grouped.asks.note(book.asks.changed)
        if self._grouped:
            book.bids.changed.clear()
            book.asks.changed.clear()
        due = []
        for position, snapshot in enumerate(self._snapshots):
            if early and (text := early[position]) is not None:
                due.append(text)
            if (text := snapshot.after(ms, time, local)) is not None:
                due.append(text)
        return due
