"""Which kernel serves: the compiled one where it is installed and fits, else Python."""

import logging
import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

from tardis_machine.errors import TardisMachineError

_log = logging.getLogger(__name__)

VARIABLE: Final = "TM_KERNEL"
INTERFACE: Final = 16
"""Moves with every change of what Python and the kernel ask of each other."""

_MODULE: Final = "tardis_machine_kernel"
_CHOICES: Final = ("auto", "compiled", "python")


class KernelChoiceError(TardisMachineError):
    """TM_KERNEL asks for what does not exist, or for what is not there."""

    def __init__(self, value: str, reason: str) -> None:
        super().__init__(f"{VARIABLE}={value}: {reason}")
        self.value = value


class Kernel(NamedTuple):
    """What serves, and why it is not the compiled one."""

    module: ModuleType | None
    reason: str = ""

    def __str__(self) -> str:
        if self.module is not None:
            return f"compiled {self.module.__version__}"
        return f"python ({self.reason})"


@cache
def kernel() -> Kernel:
    """Choose once in a process: TM_KERNEL is `auto` (the default), `compiled` or `python`.

    A kernel that is broken or of another version is not used, and said once.
    """
    wanted = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    if wanted not in _CHOICES:
        raise KernelChoiceError(wanted, f"expected {', '.join(_CHOICES)}")
    if wanted == "python":
        return Kernel(None, f"{VARIABLE}=python")
    reason = "tardis-machine-kernel is not installed"
    try:
        module = import_module(_MODULE)
        if module.INTERFACE == INTERFACE:
            return Kernel(module)
        reason = (
            f"the installed tardis-machine-kernel speaks interface {module.INTERFACE}, "
            f"this version needs {INTERFACE}"
        )
        _log.warning("kernel not used", extra={"reason": reason})
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            reason = _broken(error)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, Python can serve
        reason = _broken(error)
    if wanted == "compiled":
        raise KernelChoiceError(wanted, reason)
    return Kernel(None, reason)


def _broken(error: Exception) -> str:
    reason = f"the installed tardis-machine-kernel is broken: {error}"
    _log.warning("kernel not used", extra={"reason": reason})
    return reason
