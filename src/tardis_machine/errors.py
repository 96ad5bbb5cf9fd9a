"""The base class of this package's errors, and errors that several packages raise."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

_SHOWN_SYMBOLS: Final = 20


class TardisMachineError(Exception):
    """Base class of all errors that this package raises on purpose; its text is for users."""

    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Callable[..., "TardisMachineError"], tuple[Any, ...]]:
        """Return what pickle needs to send the error to another process.

        Subclasses have other arguments than `Exception`, so pickle's own way fails on them. An
        error that cannot be unpickled breaks the process pool it was raised in.
        """
        return _restore, (type(self), self.args, self.__dict__)


class UnsupportedSystemError(TardisMachineError):
    """A module that needs Linux or macOS was imported on another system."""

    def __init__(self, module: str) -> None:
        self.module = module
        super().__init__(
            f"this system has no module {module}: the server, the publisher, the journal and the "
            "lakehouse need Linux or macOS. Replays and live streams in Python work here"
        )


class NoDataWarning(UserWarning):
    """Warning about symbols that had no message in a replay, issued once at the replay's end.

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


def _restore(
    kind: type[TardisMachineError], args: tuple[Any, ...], state: dict[str, Any]
) -> TardisMachineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
