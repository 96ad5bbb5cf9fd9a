"""Dictionaries, sets and text of bounded size, for names and errors that an exchange sends.

Exchanges list some thousands of symbols. A broken feed may send any number of names; a collection
that is full is cleared.
"""

from collections.abc import Callable
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_NAMES: Final = 100_000
MAX_REASON: Final = 1_000
"""Characters of an error that are kept: a service may respond with a whole page."""


def shortened(text: str, limit: int = MAX_REASON) -> str:
    """Return at most `limit` characters of a text, all of which UTF-8 can encode.

    Names of files that are not UTF-8 contain lone surrogates, which become question marks.
    """
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return text.encode(errors="replace").decode()


class BoundedDict(dict[K, V]):
    """A dictionary that is cleared when a new key exceeds `MAX_NAMES` entries."""

    __slots__ = ()

    def __setitem__(self, name: K, value: V, /) -> None:
        if len(self) >= MAX_NAMES and name not in self:
            self.clear()
        super().__setitem__(name, value)


class BoundedSet(set[K]):
    """A set that is cleared when it has `MAX_NAMES` entries and one is added."""

    __slots__ = ()

    def add(self, name: K, /) -> None:
        if len(self) >= MAX_NAMES:
            self.clear()
        super().add(name)


class BoundedDefaultDict(dict[K, V]):
    """A dictionary that creates missing values, and is cleared when it has `MAX_NAMES` entries.

    `make` is called with the missing key. `drop` is called with each value that is cleared. Both
    run in the thread that reads the dictionary; what they raise reaches the reader.
    """

    __slots__ = ("_drop", "_make")

    def __init__(
        self, make: Callable[[K], V], drop: Callable[[V], object] | None = None, /
    ) -> None:
        super().__init__()
        self._make = make
        self._drop = drop

    def __missing__(self, name: K) -> V:
        if len(self) >= MAX_NAMES:
            if self._drop is not None:
                for value in self.values():
                    self._drop(value)
            self.clear()
        created = self[name] = self._make(name)
        return created
