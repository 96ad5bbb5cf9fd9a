"""The check of live books' update ids, which finds lost updates."""

from collections.abc import Hashable

from tardis_machine.exchanges.base.errors import LostUpdateError


class UpdateIds:
    """The last update id of each book of a channel; without `checks_ids` it does nothing.

    After a gap a book's updates are dropped until its next snapshot. `live/` requests the snapshot
    when it sees the error.
    """

    def __init__(self, channel: str, *, checks_ids: bool) -> None:
        self._channel = channel
        self._on = checks_ids
        self._last: dict[str, Hashable] = {}
        self._lost: set[str] = set()

    def start(self, symbol: str, last_id: Hashable) -> None:
        """Set a book's last id from its snapshot."""
        if self._on:
            self._last[symbol] = last_id
            self._lost.discard(symbol)

    def follow(self, symbol: str, previous_id: Hashable, last_id: Hashable) -> bool:
        """Return whether the mapper may emit an update; False after a gap.

        Raises LostUpdateError if an update is missing before this one.
        """
        if not self._on:
            return True
        if symbol in self._lost:
            return False
        last = self._last.get(symbol)
        if last is not None and last != previous_id:
            self._lost.add(symbol)
            del self._last[symbol]
            raise LostUpdateError(self._channel, symbol, last, previous_id)
        if last is not None:
            self._last[symbol] = last_id
        return True
