"""Normalized crypto market data from Tardis.dev: served, published and kept in a lakehouse."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tardis_machine.replay import replay_normalized
    from tardis_machine.server.app import TardisMachine
    from tardis_machine.stream import stream_normalized

__all__ = ["TardisMachine", "__version__", "replay_normalized", "stream_normalized"]
__version__ = "0.1.0"

_HOMES = {
    "TardisMachine": "tardis_machine.server.app",
    "replay_normalized": "tardis_machine.replay",
    "stream_normalized": "tardis_machine.stream",
}


def __getattr__(name: str) -> Any:
    """Import the front doors when they are asked for: `import tardis_machine` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
