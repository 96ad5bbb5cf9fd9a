"""Which kernel serves: the compiled one where it was built and fits, else Python."""

import logging
import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

from tardis_machine.errors import TardisMachineError

_log = logging.getLogger(__name__)

VARIABLE: Final = "TM_KERNEL"
INTERFACE: Final = 17
"""Moves with every change of what Python and the kernel ask of each other."""

_MODULE: Final = "tardis_machine._kernel"
_CHOICES: Final = ("auto", "compiled", "python")
_REMEDY: Final = "install again with cargo (Rust 1.85 or newer) on the PATH"


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
            return "compiled"
        return f"python ({self.reason})"


@cache
def kernel() -> Kernel:
    """Choose once in a process: TM_KERNEL is `auto` (the default), `compiled` or `python`.

    With `auto`, a kernel that is missing, broken or of another version is named once in the log.
    """
    wanted = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    if wanted not in _CHOICES:
        raise KernelChoiceError(wanted, f"expected {', '.join(_CHOICES)}")
    if wanted == "python":
        return Kernel(None, f"{VARIABLE}=python")
    try:
        module = import_module(_MODULE)
        if module.INTERFACE == INTERFACE:
            return Kernel(module)
        reason = f"it speaks interface {module.INTERFACE}, this version needs {INTERFACE}"
    except ModuleNotFoundError as error:
        reason = "it was not built" if error.name == _MODULE else f"it is broken: {error}"
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, Python can serve
        reason = f"it is broken: {error}"
    if wanted == "compiled":
        raise KernelChoiceError(wanted, f"the kernel cannot serve: {reason}; {_REMEDY}")
    _log.warning(
        "no compiled kernel (%s), Python serves more slowly: %s, or set %s=python to silence this",
        *(reason, _REMEDY, VARIABLE),
    )
    return Kernel(None, reason)
