"""An exchange: the normalized types it has, the channels each needs over time, their mappers."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tardis_machine.engine import Emitter
from tardis_machine.engine.shapes import KernelShape
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    Dispatch,
    Handler,
    KernelHandler,
    parts_of,
)
from tardis_machine.exchanges.base.dialect import Dialect
from tardis_machine.exchanges.base.errors import UnsupportedTypeError
from tardis_machine.exchanges.base.subscriptions import Subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import parse_ms

_FOREVER: Final = 1 << 62


def date(iso: str) -> int:
    """Return a time in microseconds, for `Era.until`."""
    return parse_ms(iso) * 1000


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel, and how it is asked for.

    `spell` says how a symbol is written in its filters; None leaves the symbol out. Where no
    symbols were asked for, or the channel does not take any (`takes_symbols`), the filter has
    `unasked`: None is all of them. A channel that `needs_symbols` is left out where none of those
    asked for are its own. A `distinct` one names each of its symbols once, where several symbols
    are spelled alike.
    """

    name: str
    spell: Callable[[str], str | None] = str
    takes_symbols: bool = True
    unasked: tuple[str, ...] | None = None
    needs_symbols: bool = False
    distinct: bool = False

    def filter(self, symbols: Sequence[str] | None) -> Filter | None:
        if symbols is None or not self.takes_symbols:
            return Filter(self.name, self.unasked)
        spelled = tuple(each for each in map(self.spell, symbols) if each is not None)
        if self.needs_symbols and not spelled and symbols:
            return None
        return Filter(self.name, tuple(dict.fromkeys(spelled)) if self.distinct else spelled)


@dataclass(frozen=True, slots=True)
class MapperContext:
    """What a mapper is made for.

    `live` ones refuse a book's snapshot that does not join its updates, as the reference client
    does; `checks_ids` ones also refuse an update that does not follow the one before it.
    """

    exchange: str
    emitter: Emitter
    live: bool
    checks_ids: bool = False

    def unchecked(self, handler: Handler, shape: KernelShape) -> Handler | KernelHandler:
        """Return a book's updates, of a shape for the kernel unless their ids are checked."""
        return handler if self.checks_ids else KernelHandler(handler, shape)


@dataclass(frozen=True, slots=True)
class Era:
    """The channels that a type is made from until a date (us; None: to this day), and its mapper.

    `dispatch` is the exchange's own, unless lines tell their channel differently in that time.
    `ask` makes the filters where it takes more than each channel's own way of being asked for.
    """

    channels: tuple[Channel, ...]
    mapper: Callable[[MapperContext], ChannelHandlers]
    until: int | None = None
    dispatch: Dispatch | None = None
    ask: Callable[[Sequence[str] | None], Iterable[Filter]] | None = None

    def filters(self, symbols: Sequence[str] | None) -> Iterable[Filter]:
        if self.ask is not None:
            return self.ask(symbols)
        asked = (channel.filter(symbols) for channel in self.channels)
        return (each for each in asked if each is not None)


def upper_channels(*names: str) -> tuple[Channel, ...]:
    """Channels that spell symbols in upper case, as most do."""
    return tuple(Channel(name, str.upper) for name in names)


def one_era(mapper: Callable[[MapperContext], ChannelHandlers], *channels: str) -> tuple[Era]:
    """Return the one era of a type that was always made from these channels."""
    return (Era(upper_channels(*channels), mapper),)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One entry of the registry.

    `closed` is empty, or says in a few words why nothing is sent any more; such an exchange has
    history only, and its live dialect is used with an address that the user sets.
    """

    name: str
    types: Mapping[str, tuple[Era, ...]]
    dispatch: Dispatch
    live: Dialect | None = None
    subscriptions: Subscriptions | None = None
    closed: str = ""

    def data_types(self) -> tuple[str, ...]:
        return tuple(self.types)

    def filters(
        self, types: Collection[str], symbols: Sequence[str] | None, start: int, end: int
    ) -> list[Filter]:
        """Name what has to be read for `types`: a union over the eras that the range touches."""
        wanted: dict[str, Filter] = {}
        for each in types:
            for era in self._touched(each, start, end):
                for asked in era.filters(symbols):
                    known = wanted.get(asked.channel)
                    wanted[asked.channel] = asked if known is None else _union(known, asked)
        return list(wanted.values())

    def allowed(
        self, types: Collection[str], symbols: Sequence[str] | None
    ) -> frozenset[str] | None:
        """Name the symbols whose messages may pass; None is all, as an empty list is.

        They are those asked for, their upper-case forms, and as the exchange spells them: some have
        lower-case ones, most print upper case.
        """
        if not symbols:
            return None
        spelled = (each.symbols or () for each in self.filters(types, symbols, 0, _FOREVER))
        return frozenset(symbols).union(map(str.upper, symbols), *spelled)

    def eras(self, types: Collection[str]) -> tuple[int, ...]:
        """Tell at which times (us) mappers have to be made anew."""
        return tuple(sorted({e.until for t in types for e in self._eras(t) if e.until is not None}))

    def mapper(
        self,
        types: Collection[str],
        created: int | None,
        emitter: Emitter,
        live: bool = False,
        checks_ids: bool = False,
    ) -> Handler:
        """Make the function that maps one raw message after the other.

        `created` (us) selects the era; None, and live, the newest. What several types make of one
        message is emitted in the order of `types`.
        """
        emitter.forget()
        context = MapperContext(self.name, emitter, live, checks_ids)
        routes: dict[Dispatch, list[ChannelHandlers]] = {}
        for each in types:
            if live or created is None:
                era = self._eras(each)[-1]
            else:
                era = self._touched(each, created, created)[0]
            routes.setdefault(era.dispatch or self.dispatch, []).append(era.mapper(context))
        if len(routes) == 1:
            ((dispatch, its),) = routes.items()
            return dispatch(parts_of(its), emitter)
        handlers = [dispatch(parts_of(its)) for dispatch, its in routes.items()]

        def handle(line: bytes) -> bool:
            handled = False
            for each in handlers:  # types of different eras may want the same line
                handled |= each(line)
            return handled

        return handle

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


def _union(one: Filter, other: Filter) -> Filter:
    if one.symbols is None or other.symbols is None:
        return Filter(one.channel)
    return Filter(one.channel, tuple(dict.fromkeys(one.symbols + other.symbols)))
