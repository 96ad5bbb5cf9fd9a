"""Both implementations of what is compiled, side by side."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tardis_machine.bronze import Context, EncodedBatch, Encoder
from tardis_machine.engine import Emitter, create, parse_all
from tardis_machine.engine.choice import VARIABLE, kernel

T = TypeVar("T")
NAMES = ("python", "compiled")


def encoders(context: Context) -> tuple[Encoder, Encoder]:
    python, compiled = (_with(name, lambda: Encoder(context)) for name in NAMES)
    return python, compiled


def emitters(exchange: str, data_types: Sequence[str]) -> tuple[Emitter, Emitter]:
    types = parse_all(data_types)
    python, compiled = (_with(name, lambda: create(exchange, types)) for name in NAMES)
    return python, compiled


def require_both() -> None:
    """End a program that compares the kernels where there is only one."""
    if kernel().module is None:
        sys.exit(f"needs the compiled kernel, too, and has only {kernel()}: make setup builds it")


def _with(name: str, make: Callable[[], T]) -> T:
    with chosen(name):
        return make()


@contextmanager
def chosen(name: str) -> Iterator[None]:
    """Let a kernel serve what is made meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, VARIABLE, name)
        kernel.cache_clear()
        yield
    kernel.cache_clear()


def batch_content(batch: EncodedBatch) -> tuple[object, ...]:
    """Return all that a batch holds, in a form that can be compared."""
    flat = batch.buffers
    rejected = [(each.line, each.position, str(each.error)) for each in batch.rejected]
    numbers = [(each.format, each.tolist()) for each in flat if isinstance(each, memoryview)]
    return flat.data, flat.ids, numbers, flat.table, batch.events(), rejected, batch.messages
