"""The root of every error this package raises on purpose."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

_SHOWN_SYMBOLS: Final = 20


class TardisMachineError(Exception):
    """Raised with a text made for the person who reads it."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Callable[..., "TardisMachineError"], tuple[Any, ...]]:
        """Let it pass between processes, whatever arguments a subclass is made of.

        What cannot be read again breaks the pool of processes that it was raised in.
        """
        return _again, (type(self), self.args, self.__dict__)


class UnsupportedSystemError(TardisMachineError):
    """A part that needs Linux or macOS is imported on another system."""

    def __init__(self, module: str) -> None:
        self.module = module
        super().__init__(
            f"this system has no module {module}: the server, the publisher, the journal and the "
            "lakehouse need Linux or macOS. Replays and live streams in Python work here"
        )


class NoDataWarning(UserWarning):
    """Symbols without a single message in a whole replay; issued once, when it has been read.

    `symbols` has pairs of exchange and symbol.
    """

    def __init__(self, symbols: Sequence[tuple[str, str]]) -> None:
        self.symbols = tuple(symbols)
        shown = ", ".join(" ".join(pair) for pair in symbols[:_SHOWN_SYMBOLS])
        more = f" and {len(symbols) - _SHOWN_SYMBOLS} more" if len(symbols) > _SHOWN_SYMBOLS else ""
        super().__init__(
            f"no message in the whole replay of {shown}{more}: expected the exchange's own "
            "spelling, data types that it has for these symbols, and a time at which they traded"
        )


def _again(
    kind: type[TardisMachineError], args: tuple[Any, ...], state: dict[str, Any]
) -> TardisMachineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
