"""Messages on the way that a normalizer's take: by their shape where the kernel takes them."""

from collections.abc import Callable

from tardis_machine.engine import Emitter
from tardis_machine.engine.choice import kernel

_LOCAL = len("2024-03-01T00:00:00.000001Z")


def take(emitter: Emitter, message: bytes, local: str) -> bool:
    """Offer a message to the emitter itself; tells whether it took it."""
    run = getattr(emitter, "run", None)
    if run is None or len(local) != _LOCAL or b"\n" in message:
        return False
    module = kernel().module
    assert module is not None
    lines = module.Lines(f"{local[:-1]}0Z ".encode() + message + b"\n", "")
    took, _ = run(lines, 0, 1)
    return bool(took == 1)


def handle(emitter: Emitter, mapper: Callable[[bytes], bool], message: bytes, local: str) -> bool:
    """Map a message; tells whether it was of interest."""
    if take(emitter, message, local):
        return True
    emitter.begin(local)
    return mapper(message)
