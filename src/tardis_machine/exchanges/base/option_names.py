"""Options parsed from their names, each name once."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from tardis_machine.bounded import BoundedDict
from tardis_machine.exchanges.base.errors import MapperError

_MONTHS: Final = (
    *("JAN", "FEB", "MAR", "APR", "MAY", "JUN"),
    *("JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
_MONTH: Final = re.compile("[A-Za-z]{3}")


class Option(NamedTuple):
    """The fields of an option's name; `expiration` is in milliseconds since 1970."""

    symbol: str
    type: Literal["put", "call"]
    strike_price: str
    expiration: int


class Options(BoundedDict[str, Option]):
    """Options by name; a missing one is parsed with `read`.

    `read` raises ValueError for text that is no option's name, which becomes a MapperError.
    """

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
    """Return an hour (UTC) of a date in milliseconds: 8JUN20 (%d%b%y) or 201204 (%y%m%d)."""
    # The month names of %b depend on the program's locale; exchanges write English.
    text = _MONTH.sub(lambda name: f"-{_MONTHS.index(name[0].upper()) + 1}-", text)
    form = form.replace("%b", "-%m-")
    expires = datetime.strptime(text, form).replace(hour=hour, tzinfo=UTC)
    return int(expires.timestamp()) * 1000
