"""The emitter that is used: the Python one, or a compiled one that does the same."""

from collections.abc import Collection, Sequence

from tardis_machine.engine.choice import kernel
from tardis_machine.engine.compiled import compiled_emitter
from tardis_machine.engine.datatypes import DataType
from tardis_machine.engine.protocol import Emitter
from tardis_machine.engine.python.emitter import PythonEmitter


def create(
    exchange: str, data_types: Sequence[DataType], sent: Collection[str] | None = None
) -> Emitter:
    """Make an emitter of the kernel that serves.

    `data_types` are those of the stream: normalized ones are sent, computed ones computed per
    symbol, in their order. `sent` widens what is sent of the normalized types, for a stream that
    is merged with others of its exchange.
    """
    module = kernel().module
    if module is None:
        return PythonEmitter(exchange, data_types, sent)
    return compiled_emitter(module, exchange, data_types, sent)
