"""What all replays have in common: readers of a history, which end together."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from tardis_machine.filters import Filter
from tardis_machine.history import History, Reader


class Replay:
    """Reads a history; a history of its own ends with it."""

    def __init__(self, history: History, *, owns_history: bool = False) -> None:
        self._history = history
        self._owns_history = owns_history
        self._readers: list[Reader] = []

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Close what was opened if not all can be."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _read(
        self, exchange: str, filters: Sequence[Filter], from_: int, to: int, *, readers: int = 1
    ) -> Reader:
        reader = self._history.read(exchange, filters, from_, to, readers=readers)
        self._readers.append(reader)
        return reader

    @property
    def progress(self) -> float:
        """The share of minutes that were read."""
        total = sum(reader.total_minutes for reader in self._readers)
        return sum(reader.done_minutes for reader in self._readers) / max(total, 1)

    def close(self) -> None:
        """Stop at once."""
        for reader in self._readers:
            reader.close()
        if self._owns_history:
            self._history.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
