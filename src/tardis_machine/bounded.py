"""Memory by name, and text, that cannot grow without end: a broken feed may make up names.

Exchanges list some thousands of names. What has met far more forgets all of them, and starts anew.
"""

from collections.abc import Callable
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_NAMES: Final = 100_000
MAX_REASON: Final = 1_000
"""Characters of an error that are kept: a service may answer with a whole page."""


def shortened(text: str, limit: int = MAX_REASON) -> str:
    """Return text of at most `limit` characters that UTF-8 can encode.

    Names of files that are no UTF-8 reach error messages as lone surrogates.
    """
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return text.encode(errors="replace").decode()


class BoundedDict(dict[K, V]):
    """What was told last, by name."""

    __slots__ = ()

    def __setitem__(self, name: K, value: V, /) -> None:
        if len(self) >= MAX_NAMES and name not in self:
            self.clear()
        super().__setitem__(name, value)


class BoundedSet(set[K]):
    """Names that were met before."""

    __slots__ = ()

    def add(self, name: K, /) -> None:
        if len(self) >= MAX_NAMES:
            self.clear()
        super().add(name)


class BoundedDefaultDict(dict[K, V]):
    """Books and the like by name, each made when it is first asked for.

    `drop` hears of each that is forgotten.
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
                for each in self.values():
                    self._drop(each)
            self.clear()
        made = self[name] = self._make(name)
        return made
