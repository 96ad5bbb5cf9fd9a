"""The update ids of live books: a lost update must not go unnoticed."""

from collections.abc import Hashable

from tardis_machine.exchanges.base.errors import LostUpdateError


class UpdateIds:
    """Follows each book's ids from its snapshot on, for mappers that check ids; else does nothing.

    After a gap the book's updates are left out until its next snapshot, which `live/` asks for
    when it sees the error.
    """

    def __init__(self, channel: str, *, checks_ids: bool) -> None:
        self._channel = channel
        self._on = checks_ids
        self._last: dict[str, Hashable] = {}
        self._lost: set[str] = set()

    def start(self, symbol: str, last_id: Hashable) -> None:
        """Begin with a snapshot."""
        if self._on:
            self._last[symbol] = last_id
            self._lost.discard(symbol)

    def follow(self, symbol: str, previous_id: Hashable, last_id: Hashable) -> bool:
        """Tell whether an update may be used; LostUpdateError if one is missing before it."""
        if not self._on:
            return True
        if symbol in self._lost:
            return False
        known = self._last.get(symbol)
        if known is not None and known != previous_id:
            self._lost.add(symbol)
            del self._last[symbol]
            raise LostUpdateError(self._channel, symbol, known, previous_id)
        if known is not None:
            self._last[symbol] = last_id
        return True
