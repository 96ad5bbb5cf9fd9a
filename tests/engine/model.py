"""Book snapshots the plain way: everything anew after every change, as slowly as it gets."""

from math import floor, fmod

from tardis_machine.engine.datatypes import BookSnapshots

Levels = list[tuple[float, float]]
Rows = list[tuple[float, float] | None]


class ModelBook:
    def __init__(self) -> None:
        self.bids: dict[float, float] = {}
        self.asks: dict[float, float] = {}
        self.ready = False

    def update(self, is_snapshot: bool, bids: Levels, asks: Levels) -> None:
        if is_snapshot:
            self.bids, self.asks, self.ready = {}, {}, True
        if not self.ready:
            return
        for side, changes in ((self.asks, asks), (self.bids, bids)):
            for price, amount in changes:
                if amount:
                    side[price] = amount
                else:
                    side.pop(price, None)
        brought = bool(self.asks) and min(self.asks) in [price for price, _ in asks]
        while self.bids and self.asks and max(self.bids) >= min(self.asks):
            if brought:
                del self.bids[max(self.bids)]
            else:
                del self.asks[min(self.asks)]


class ModelSnapshots:
    """One computed type: gives (rows of bids, rows of asks, time in ms) when one is due."""

    def __init__(self, spec: BookSnapshots) -> None:
        self.spec = spec
        self.book = ModelBook()
        self.rows: tuple[Rows, Rows] = ([None] * spec.depth, [None] * spec.depth)
        self.changed = self.initialized = False
        self.last = 0

    def change(
        self, is_snapshot: bool, bids: Levels, asks: Levels, ms: int
    ) -> list[tuple[Rows, Rows, int]]:
        due = []
        interval = self.spec.interval
        if self.changed and interval:
            bucket = floor(self.last / interval)
            if floor(ms / interval) > bucket:
                due.append((*self.rows, int((bucket + 1) * interval)))
                self.changed = False
        self.book.update(is_snapshot, bids, asks)
        self.last = ms
        rows = (
            self._rows(sorted(self.book.bids.items(), reverse=True), up=False),
            self._rows(sorted(self.book.asks.items()), up=True),
        )
        if rows != self.rows:
            self.changed = True
            self.rows = rows
        if self.changed and not (interval and self.initialized):
            due.append((*self.rows, ms))
            self.changed = False
            self.initialized = True
        return due

    def _rows(self, levels: Levels, *, up: bool) -> Rows:
        if self.spec.grouping is not None:
            levels = self._grouped(levels, self.spec.grouping, up=up)
        rows: Rows = [*levels[: self.spec.depth]]
        return rows + [None] * (self.spec.depth - len(rows))

    @staticmethod
    def _grouped(levels: Levels, grouping: float, *, up: bool) -> Levels:
        scale = 10.0 ** len(str(grouping).partition(".")[2].rstrip("0"))
        grouped: Levels = []
        for price, amount in levels:
            remainder = fmod(price * scale, grouping * scale) / scale
            group = price * scale - remainder * scale
            if up and remainder > 0:
                group += grouping * scale
            group /= scale
            if grouped and grouped[-1][0] == group:
                grouped[-1] = (group, grouped[-1][1] + amount)
            else:
                grouped.append((group, amount))
        return grouped
