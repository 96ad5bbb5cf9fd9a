"""The catalog: the channels that Tardis.dev records of each exchange, from `catalog.json`.

Raw replays may request any of them. The order of exchanges is that of the file.
"""

from importlib.resources import files
from typing import Final

import msgspec

from tardis_machine.exchanges.base.errors import UnknownExchangeError

CHANNELS: Final = msgspec.json.decode(
    files(__package__).joinpath("catalog.json").read_bytes(), type=dict[str, tuple[str, ...]]
)


def names() -> tuple[str, ...]:
    """Return the names of all exchanges that Tardis.dev records."""
    return tuple(CHANNELS)


def channels(exchange: str) -> tuple[str, ...]:
    """Return the names of the exchange's channels; raise UnknownExchangeError."""
    try:
        return CHANNELS[exchange]
    except KeyError:
        raise UnknownExchangeError(exchange, CHANNELS) from None
