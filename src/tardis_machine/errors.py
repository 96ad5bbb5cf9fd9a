"""The root of every error this package raises on purpose."""

from collections.abc import Callable
from typing import Any, ClassVar


class TardisMachineError(Exception):
    """Raised with a text made for the person who reads it."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Callable[..., "TardisMachineError"], tuple[Any, ...]]:
        """Let it pass between processes, whatever arguments a subclass is made of.

        What cannot be read again breaks the pool of processes that it was raised in.
        """
        return _again, (type(self), self.args, self.__dict__)


def _again(
    kind: type[TardisMachineError], args: tuple[Any, ...], state: dict[str, Any]
) -> TardisMachineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
