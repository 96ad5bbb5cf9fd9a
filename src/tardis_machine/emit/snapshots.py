"""Book snapshots and quotes of one symbol, all read from one book."""

from collections.abc import Sequence
from math import floor

from tardis_machine.emit import times
from tardis_machine.emit.book import Book
from tardis_machine.emit.datatypes import BookSnapshots, text_of
from tardis_machine.emit.groups import Groups
from tardis_machine.emit.levels import Pair


class _Plain:
    """The first levels of the book, as they are."""

    __slots__ = ("_asks", "_asks_text", "_bids", "_bids_text", "_book", "_depth", "_whole")

    def __init__(self, book: Book, depth: int) -> None:
        self._book = book
        self._depth = depth
        self._whole = depth == book.bids.depth
        self._bids = book.bids.top[:depth]
        self._asks = book.asks.top[:depth]
        self._bids_text = self._asks_text = ""

    def moved(self, bids_moved: bool, asks_moved: bool) -> bool:
        """Whether these levels differ from those of the previous call."""
        moved = False
        if bids_moved:
            bids = self._book.bids.top if self._whole else self._book.bids.top[: self._depth]
            if self._whole or bids != self._bids:
                self._bids = bids
                self._bids_text = ""
                moved = True
        if asks_moved:
            asks = self._book.asks.top if self._whole else self._book.asks.top[: self._depth]
            if self._whole or asks != self._asks:
                self._asks = asks
                self._asks_text = ""
                moved = True
        return moved

    def text(self) -> str:
        bids = self._bids_text = self._bids_text or ",".join(self._bids)
        asks = self._asks_text = self._asks_text or ",".join(self._asks)
        return f'"bids":[{bids}],"asks":[{asks}]'


class _Grouped:
    """The first price groups of the book."""

    __slots__ = ("_asks", "_bids")

    def __init__(self, book: Book, depth: int, grouping: float) -> None:
        self._bids = Groups(book.bids, depth, grouping)
        self._asks = Groups(book.asks, depth, grouping)

    def moved(self, bids_moved: bool, asks_moved: bool) -> bool:
        bids = self._bids.refresh()
        return self._asks.refresh() or bids

    def text(self) -> str:
        return f'"bids":[{",".join(self._bids.rows)}],"asks":[{",".join(self._asks.rows)}]'


class _Snapshot:
    """One computed type: when its snapshots are due, and their text."""

    __slots__ = ("_changed", "_head", "_initialized", "_interval", "_last_ms", "levels")

    def __init__(self, head: str, spec: BookSnapshots, book: Book) -> None:
        grouping = f'"grouping":{text_of(spec.grouping)},' if spec.grouping is not None else ""
        self._head = (
            f'{head},"name":"{spec.name}","depth":{spec.depth},'
            f'"interval":{text_of(spec.interval)},{grouping}'
        )
        self._interval = spec.interval
        self._changed = False
        self._initialized = False
        self._last_ms = 0
        self.levels: _Plain | _Grouped = (
            _Plain(book, spec.depth)
            if spec.grouping is None
            else _Grouped(book, spec.depth, spec.grouping)
        )

    def before(self, ms: int, local: str) -> str | None:
        """What a later time bucket makes due, from the levels before this change."""
        if not self._interval or not self._changed:
            return None
        bucket = floor(self._last_ms / self._interval)
        if floor(ms / self._interval) <= bucket:
            return None
        self._changed = False
        return self._text(times.iso_ms(int((bucket + 1) * self._interval)), local)

    def after(
        self, bids_moved: bool, asks_moved: bool, ms: int, time: str, local: str
    ) -> str | None:
        """What this change itself makes due."""
        self._last_ms = ms
        if self.levels.moved(bids_moved, asks_moved):
            self._changed = True
        if not self._changed or (self._interval and self._initialized):
            return None
        self._changed = False
        self._initialized = True
        return self._text(time, local)

    def _text(self, time: str, local: str) -> str:
        return (
            f'{self._head}{self.levels.text()},"timestamp":"{time}","localTimestamp":"{local}"}}\n'
        )


class Snapshots:
    """All computed snapshots of one symbol, in the order they were asked for."""

    __slots__ = ("_snapshots", "book")

    def __init__(self, head: str, specs: Sequence[BookSnapshots]) -> None:
        depth = max((spec.depth for spec in specs if spec.grouping is None), default=0)
        self.book = Book(depth, grouped=any(spec.grouping is not None for spec in specs))
        self._snapshots = [_Snapshot(head, spec, self.book) for spec in specs]

    def change(
        self,
        is_snapshot: bool,
        bids: Sequence[Pair],
        asks: Sequence[Pair],
        ms: int,
        time: str,
        local: str,
    ) -> tuple[list[str], list[str], list[str]]:
        """Apply a book change: the texts of its bids and asks, and the snapshots it makes due."""
        due = [snapshot.before(ms, local) for snapshot in self._snapshots]
        bids_written, asks_written = self.book.update(is_snapshot, bids, asks)
        bids_moved = self.book.bids.refresh()
        asks_moved = self.book.asks.refresh()
        texts: list[str] = []
        for early, snapshot in zip(due, self._snapshots, strict=True):
            if early is not None:
                texts.append(early)
            late = snapshot.after(bids_moved, asks_moved, ms, time, local)
            if late is not None:
                texts.append(late)
        return bids_written, asks_written, texts
