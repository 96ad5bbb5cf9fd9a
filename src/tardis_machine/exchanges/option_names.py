"""What the names of options say, each read once."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from tardis_machine.bounded import Known
from tardis_machine.exchanges.errors import MapperError


class Option(NamedTuple):
    """An option as its name tells it; `expiration` is in milliseconds."""

    symbol: str
    type: Literal["put", "call"]
    strike_price: str
    expiration: int


class Options(Known[str, Option]):
    """Options by name; `read` raises ValueError for what is no option's name."""

    __slots__ = ("_channel", "_read")

    def __init__(self, channel: str, read: Callable[[str], Option]) -> None:
        self._channel = channel
        self._read = read

    def __missing__(self, name: str) -> Option:
        try:
            option = self._read(name)
        except ValueError:
            raise MapperError(self._channel, f"not an option's name: {name}") from None
        self[name] = option
        return option


def expiration(text: str, form: str, hour: int = 8) -> int:
    """The milliseconds of a date such as 8JUN20 (%d%b%y) or 201204 (%y%m%d), at an hour of UTC."""
    expires = datetime.strptime(text, form).replace(hour=hour, tzinfo=UTC)
    return int(expires.timestamp()) * 1000
