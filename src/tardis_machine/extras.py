"""Optional dependencies: imported when needed; an error names the extra to install."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from tardis_machine.errors import TardisMachineError


class MissingExtraError(TardisMachineError):
    """An optional dependency is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        self.module = module
        self.extra = extra
        super().__init__(
            f"{module} is not installed: pip install 'tardis-machine[{extra}]' brings it"
        )


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module of an extra; raise MissingExtraError if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # The missing module may be a dependency of `module`: installing the extra adds both.
        raise MissingExtraError(error.name or module, extra) from error


def require_installed(module: str, *, extra: str) -> None:
    """Raise MissingExtraError if a module is not installed, without importing it."""
    if find_spec(module) is None:
        raise MissingExtraError(module, extra)
