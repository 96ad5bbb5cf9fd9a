"""Normalized crypto market data from Tardis.dev: served, published and kept in a lakehouse."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tardis_machine.errors import NoDataWarning, TardisMachineError
    from tardis_machine.history import History
    from tardis_machine.history.filters import Channel
    from tardis_machine.history.sample import sample_history
    from tardis_machine.live.stream import NormalizedStream, stream_normalized
    from tardis_machine.messages import (
        BookChange,
        BookSnapshot,
        BookTicker,
        DerivativeTicker,
        Disconnect,
        Liquidation,
        Message,
        OptionSummary,
        Trade,
        TradeBar,
    )
    from tardis_machine.replays import NormalizedReplay, replay, replay_normalized
    from tardis_machine.server.app import TardisMachine

__all__ = [
    "BookChange",
    "BookSnapshot",
    "BookTicker",
    "Channel",
    "DerivativeTicker",
    "Disconnect",
    "History",
    "Liquidation",
    "Message",
    "NoDataWarning",
    "NormalizedReplay",
    "NormalizedStream",
    "OptionSummary",
    "TardisMachine",
    "TardisMachineError",
    "Trade",
    "TradeBar",
    "__version__",
    "replay",
    "replay_normalized",
    "sample_history",
    "stream_normalized",
]
__version__ = "0.1.0"

_HOMES = {
    "Channel": "tardis_machine.history.filters",
    "History": "tardis_machine.history",
    "NoDataWarning": "tardis_machine.errors",
    "NormalizedReplay": "tardis_machine.replays",
    "NormalizedStream": "tardis_machine.live.stream",
    "TardisMachine": "tardis_machine.server.app",
    "TardisMachineError": "tardis_machine.errors",
    "replay": "tardis_machine.replays",
    "replay_normalized": "tardis_machine.replays",
    "sample_history": "tardis_machine.history.sample",
    "stream_normalized": "tardis_machine.live.stream",
}
_MESSAGES = "tardis_machine.messages"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tardis_machine` stays fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, _MESSAGES)), name)
