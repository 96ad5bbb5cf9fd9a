"""The channels that Tardis.dev records of each exchange, in `catalog.json`.

Raw replays can ask for any of them, in this order of exchanges.
"""

from importlib.resources import files
from typing import Final

import msgspec

from tardis_machine.exchanges.base.errors import UnknownExchangeError

CHANNELS: Final = msgspec.json.decode(
    files(__package__).joinpath("catalog.json").read_bytes(), type=dict[str, tuple[str, ...]]
)


def names() -> tuple[str, ...]:
    """Return the names of all exchanges that Tardis.dev has data of."""
    return tuple(CHANNELS)


def channels(exchange: str) -> tuple[str, ...]:
    """Return the names of the exchange's channels; raise UnknownExchangeError."""
    try:
        return CHANNELS[exchange]
    except KeyError:
        raise UnknownExchangeError(exchange, CHANNELS) from None
