"""The emitter that is used: the Python one, or a compiled one that does the same."""

import os
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from tardis_machine.emit.datatypes import DataType
from tardis_machine.emit.protocol import Emitter
from tardis_machine.emit.python import PythonEmitter
from tardis_machine.errors import TardisMachineError

VARIABLE: Final = "TM_KERNEL"


class Implementation(Protocol):
    """Makes an emitter.

    `data_types` are those of the stream: normalized ones are sent, computed ones computed per
    symbol, in their order. `sent` widens what is sent of the normalized types, for a stream that
    is merged with others of its exchange.
    """

    def __call__(
        self, exchange: str, data_types: Sequence[DataType], sent: Collection[str] | None = None
    ) -> Emitter: ...


class KernelError(TardisMachineError, ValueError):
    """An emitter that was asked for and that there is not."""

    def __init__(self, name: str, allowed: Sequence[str]) -> None:
        self.name = name
        self.allowed = tuple(allowed)
        super().__init__(f"{VARIABLE}={name}: no such emitter; there is: {', '.join(allowed)}")


def implementations() -> dict[str, Implementation]:
    """All that can be had here by name, the fastest first."""
    return {"python": PythonEmitter}


def create(
    exchange: str, data_types: Sequence[DataType], sent: Collection[str] | None = None
) -> Emitter:
    """Make an emitter: of the implementation that TM_KERNEL names, or else the fastest."""
    present = implementations()
    name = os.environ.get(VARIABLE) or next(iter(present))
    try:
        make = present[name]
    except KeyError:
        raise KernelError(name, list(present)) from None
    return make(exchange, data_types, sent)
