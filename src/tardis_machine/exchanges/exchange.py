"""An exchange: the normalized types it has, the channels each needs over time, its mapper."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tardis_machine.emit import Emitter
from tardis_machine.exchanges.dialect import Dialect
from tardis_machine.exchanges.errors import UnsupportedTypeError
from tardis_machine.exchanges.subscriptions import Subscriptions
from tardis_machine.filters import Filter

Handler = Callable[[bytes], bool]
"""Takes one raw message; False: not of interest."""


class Channel(NamedTuple):
    """A channel, and how symbols are spelled in its filters."""

    name: str
    spell: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class Era:
    """The channels that a type is made from until a date (us; None: to this day).

    `form` tells the mapper which of several message formats the channels carry in that time.
    """

    channels: tuple[Channel, ...]
    until: int | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class Making:
    """What a mapper is made for: types, with their era's form, in the order requested.

    `live` ones refuse a book's snapshot that does not join its updates, as the reference client
    does; `checks_ids` ones also refuse an update that does not follow the one before it.
    """

    exchange: str
    forms: Mapping[str, str]
    emitter: Emitter
    live: bool
    checks_ids: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """One entry of the registry."""

    name: str
    types: Mapping[str, tuple[Era, ...]]
    make: Callable[[Making], Handler]
    live: Dialect | None = None
    subscriptions: Subscriptions | None = None

    def data_types(self) -> tuple[str, ...]:
        return tuple(self.types)

    def filters(
        self, types: Collection[str], symbols: Sequence[str] | None, start: int, end: int
    ) -> list[Filter]:
        """Name what has to be read for `types`: a union over the eras that the range touches."""
        wanted: dict[str, dict[str, None] | None] = {}
        for each in types:
            for era in self._touched(each, start, end):
                for channel in era.channels:
                    if symbols is None:
                        wanted[channel.name] = None
                    else:
                        spelled = wanted.setdefault(channel.name, {}) or {}
                        wanted[channel.name] = spelled | dict.fromkeys(map(channel.spell, symbols))
        return [
            Filter(channel, None if spelled is None else tuple(spelled))
            for channel, spelled in wanted.items()
        ]

    def eras(self, types: Collection[str]) -> tuple[int, ...]:
        """Tell at which times (us) mappers have to be made anew."""
        return tuple(sorted({e.until for t in types for e in self._eras(t) if e.until is not None}))

    def mapper(
        self,
        types: Collection[str],
        symbols: Sequence[str] | None,
        created: int | None,
        emitter: Emitter,
        live: bool = False,
        checks_ids: bool = False,
    ) -> Handler:
        """Make the function that maps one raw message after the other.

        `created` (us) selects the era; None, and live, the newest. Several mappers of one message
        emit in the order of `types`.
        """
        forms = {
            each: self._eras(each)[-1].form
            if live or created is None
            else self._touched(each, created, created)[0].form
            for each in types
        }
        emitter.forget()
        return self.make(Making(self.name, forms, emitter, live, checks_ids))

    def _eras(self, data_type: str) -> tuple[Era, ...]:
        try:
            return self.types[data_type]
        except KeyError:
            raise UnsupportedTypeError(self.name, data_type, self.types) from None

    def _touched(self, data_type: str, start: int, end: int) -> list[Era]:
        touched = []
        since = 0
        for era in self._eras(data_type):
            if since < max(end, start + 1) and (era.until is None or start < era.until):
                touched.append(era)
            since = era.until or since
        return touched
