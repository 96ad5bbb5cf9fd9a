"""Optional dependencies: imported where they are needed, missed with the extra to install."""

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
    """Import a module of an extra, or say which extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        # A dependency of the dependency may be what is missing: the extra is the cure for both.
        raise MissingExtraError(error.name or module, extra) from error


def expect(module: str, *, extra: str) -> None:
    """Say which extra to install if a module is not there, without importing it."""
    if find_spec(module) is None:
        raise MissingExtraError(module, extra)
