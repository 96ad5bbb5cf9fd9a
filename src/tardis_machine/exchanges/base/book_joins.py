"""Books whose snapshot is fetched over REST while their updates arrive.

Updates are kept until the snapshot arrives. Those newer than the snapshot are then applied to its
levels, or sent after it. A `JoinedBook` only checks and keeps updates; the mapper emits:

    update = decode(line)
    if book.accept(update):
        emitter.book_change(...)

    if not book.has_snapshot:
        newer = book.updates_after(snapshot.id)
        bids = apply_updates(snapshot.bids, [update.bids for update in newer])
        ...
        emitter.book_change(...)
        book.start(snapshot.id, newer)

A call that raises changes nothing, with one exception: after a BookGapError of `accept` the book
waits for another snapshot, with the updates from then on. `live/` requests the snapshot when it
sees the error.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import UNSET, Raw, UnsetType
from msgspec.json import Decoder

from tardis_machine.engine.shapes import UpdateGate
from tardis_machine.exchanges.base.errors import BookGapError, LostUpdateError, MapperError
from tardis_machine.exchanges.base.exchange import MapperContext

log = logging.getLogger(__name__)

Number = int | float
Level = Sequence[Any]
_Price = str | int | float
_decode_levels: Final = Decoder(list[list[str | int | float | None]]).decode


class Update(Protocol):
    """The ids of an update: its first, its last, and the last of the update before it."""

    @property
    def first_id(self) -> Number | None: ...

    @property
    def last_id(self) -> Number | UnsetType | None: ...

    @property
    def previous_id(self) -> Number | None: ...


U = TypeVar("U", bound=Update)


class JoinedBook(Generic[U]):
    """One book that keeps updates until its snapshot, and checks those after it.

    The first update newer than the snapshot must join it: `joins` decides, and a subclass may
    override it. A live mapper raises BookGapError if it does not.
    """

    overlaps = False
    """Whether an update whose last id is the snapshot's counts as newer than the snapshot."""
    advances = False
    """Whether updates older than the latest update are dropped, not only those in the snapshot."""
    max_kept = 2000
    """Number of updates that are kept before the snapshot; the oldest are dropped."""

    __slots__ = (
        "_channel",
        "_checks_ids",
        "_joined",
        "_kept",
        "_last_id",
        "_live",
        "_oldest",
        "_snapshot_id",
        "_symbol",
        "gate",
    )

    def __init__(
        self, symbol: str, channel: str, context: MapperContext, gate: UpdateGate | None = None
    ) -> None:
        self._symbol = symbol
        self._channel = channel
        self._live = context.live
        self._checks_ids = context.checks_ids
        self._snapshot_id: Number | None = None
        self._oldest: Number = 0
        self._joined = False
        self._last_id: Number | UnsetType | None = None
        self._kept: deque[U] = deque(maxlen=self.max_kept)
        # Open while the compiled emitter may read updates without this mapper.
        self.gate = gate or context.emitter.gate()

    @property
    def has_snapshot(self) -> bool:
        return self._snapshot_id is not None

    def joins(self, update: U, snapshot_id: Number) -> bool:
        """Return whether no update is missing between the snapshot and the first newer update."""
        first_id = update.first_id
        if self.overlaps:
            covers = first_id is not None and first_id <= snapshot_id
            return covers or update.previous_id == snapshot_id
        return first_id is not None and first_id <= snapshot_id + 1

    def previous_id(self, update: U) -> Number | None:
        """Return the last id of the update that must precede this one."""
        return update.previous_id

    def accept(self, update: U) -> bool:
        """Return whether the mapper must emit an update; keep it if there is no snapshot yet.

        Old updates are dropped. Raises BookGapError for a live update that does not join the
        snapshot, and LostUpdateError for one that does not follow the last.
        """
        snapshot_id = self._snapshot_id
        if snapshot_id is None:
            self._kept.append(update)
            return False
        last_id = update.last_id
        if last_id is not UNSET and (last_id or 0) < self._oldest:
            return False
        if not self._joined or self._checks_ids:
            try:
                self._check(update, snapshot_id, self._last_id if self._joined else None)
            except BookGapError:
                self.gate.close()
                self._snapshot_id = None
                self._joined = False
                self._kept.append(update)
                raise
            self._joined = True
            self._last_id = last_id
            self._open_gate()
        if self.advances:
            self._oldest = self._oldest_after(last_id)
        return True

    def updates_after(self, snapshot_id: Number) -> list[U]:
        """Return the kept updates newer than a snapshot; BookGapError if they do not join it."""
        oldest = self._oldest_after(snapshot_id)
        newer: list[U] = []
        for update in self._kept:
            last_id = update.last_id
            if last_id is UNSET or (last_id or 0) >= oldest:
                self._check(update, snapshot_id, newer[-1].last_id if newer else None)
                newer.append(update)
                if self.advances:
                    oldest = self._oldest_after(last_id)
        return newer

    def start(self, snapshot_id: Number, newer: Sequence[U]) -> None:
        """Set the snapshot that was emitted, with the result of `updates_after` for it."""
        self._snapshot_id = snapshot_id
        advanced = newer[-1].last_id if newer and self.advances else snapshot_id
        self._oldest = self._oldest_after(advanced)
        self._joined = bool(newer)
        self._last_id = newer[-1].last_id if newer else None
        self._kept.clear()
        self._open_gate()

    def _open_gate(self) -> None:
        if self._joined and not self._checks_ids and not self.advances:
            self.gate.open(self._oldest)

    def _oldest_after(self, last_id: Number | UnsetType | None) -> Number:
        if last_id is UNSET or last_id is None:
            return self._oldest
        return last_id if self.overlaps else last_id + 1

    def _check(self, update: U, snapshot_id: Number, last_id: Number | UnsetType | None) -> None:
        """Raise BookGapError if an update does not follow the last one or join the snapshot."""
        if last_id is not None:
            if self._checks_ids and (previous := self.previous_id(update)) != last_id:
                raise LostUpdateError(self._channel, self._symbol, last_id, previous)
        elif not self.joins(update, snapshot_id):
            if self._live:
                ids = f"{update.first_id} to {update.last_id}"
                raise BookGapError(self._channel, self._symbol, snapshot_id, ids)
            log.debug("book snapshot and updates do not join", extra={"symbol": self._symbol})


def apply_updates(
    levels: Iterable[Level], updates: Iterable[Raw | Iterable[Level]]
) -> list[tuple[_Price, _Price]]:
    """Return a snapshot's levels with updates applied, by prices compared as they are written.

    Levels with amount 0 are removed. Elements of a level after price and amount are ignored.
    """
    try:
        by_price: dict[_Price, _Price] = {level[0] or 0: level[1] or 0 for level in levels}
        for update in updates:
            for level in _decode_levels(update) if isinstance(update, Raw) else update:
                price, amount = level[0] or 0, level[1] or 0
                if float(amount):
                    by_price[price] = amount
                else:
                    by_price.pop(price, None)
    except (LookupError, TypeError, OverflowError):
        raise MapperError("book", "a level without price and amount") from None
    return list(by_price.items())


def overwrite_levels(
    levels: Iterable[Level], updates: Iterable[Raw | Iterable[Level]]
) -> list[tuple[_Price, _Price]]:
    """Return a snapshot's levels with updates applied; removed levels stay, with amount 0.

    Prices are compared as they are written. An update changes the first level with its price.
    """
    pairs: list[tuple[_Price, _Price]] = []
    indexes: dict[_Price, int] = {}
    try:
        for level in levels:
            indexes.setdefault(level[0] or 0, len(pairs))
            pairs.append((level[0] or 0, level[1] or 0))
        for update in updates:
            for level in _decode_levels(update) if isinstance(update, Raw) else update:
                pair = level[0] or 0, level[1] or 0
                at = indexes.setdefault(pair[0], len(pairs))
                pairs[at : at + 1] = [pair]
    except (LookupError, TypeError):
        raise MapperError("book", "a level without price and amount") from None
    return pairs


def apply_numeric_updates(
    levels: Iterable[Level], updates: Iterable[Iterable[Level]]
) -> list[tuple[Number, Any]]:
    """Return a snapshot's levels with updates applied, by prices compared as numbers.

    An update changes or removes the first level with its price.
    """
    try:
        book = [(float(level[0] or 0), level[1] or 0) for level in levels]
        for price, amount, *_ in (level for update in updates for level in update):
            number = float(price)
            at = next((i for i, level in enumerate(book) if level[0] == number), len(book))
            book[at : at + 1] = [(number, amount)] if float(amount or 0) else []
    except (LookupError, TypeError, OverflowError):
        raise MapperError("book", "a level without price and amount") from None
    return book
