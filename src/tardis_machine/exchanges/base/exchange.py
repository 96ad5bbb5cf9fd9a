"""Exchanges: their data types and, for each, channels and mappers over time."""

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
    all_handlers,
)
from tardis_machine.exchanges.base.dialect import Dialect
from tardis_machine.exchanges.base.errors import UnsupportedTypeError
from tardis_machine.exchanges.base.subscriptions import Subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import parse_ms

_FOREVER: Final = 1 << 62


def date(iso: str) -> int:
    """Return an ISO date in microseconds since 1970, for `Era.until`."""
    return parse_ms(iso) * 1000


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel and the filter that requests it.

    - `spell` returns a symbol as the channel's filters write it; None leaves the symbol out.
    - `has_symbols` is false for a channel whose filters never name symbols.
    - `default_symbols` are the symbols of a filter without requested symbols; None is all.
    - With `needs_symbols` there is no filter if none of the requested symbols is the channel's.
    - With `distinct` symbols that are spelled alike are named once.
    """

    name: str
    spell: Callable[[str], str | None] = str
    has_symbols: bool = True
    default_symbols: tuple[str, ...] | None = None
    needs_symbols: bool = False
    distinct: bool = False

    def filter(self, symbols: Sequence[str] | None) -> Filter | None:
        """Return the filter for requested symbols (None: all); None if there is nothing to read."""
        if symbols is None or not self.has_symbols:
            return Filter(self.name, self.default_symbols)
        spelled = tuple(text for text in map(self.spell, symbols) if text is not None)
        if self.needs_symbols and not spelled and symbols:
            return None
        return Filter(self.name, tuple(dict.fromkeys(spelled)) if self.distinct else spelled)


@dataclass(frozen=True, slots=True)
class MapperContext:
    """The arguments of a mapper.

    With `live` the mapper raises BookGapError for a book's snapshot that does not join its
    updates, as the official client does. With `checks_ids` it also raises LostUpdateError for an
    update that does not follow the one before it.
    """

    exchange: str
    emitter: Emitter
    live: bool
    checks_ids: bool = False

    def unchecked(self, handler: Handler, shape: KernelShape) -> Handler | KernelHandler:
        """Return a kernel handler for a book's updates, or the handler alone if it checks ids."""
        return handler if self.checks_ids else KernelHandler(handler, shape)


@dataclass(frozen=True, slots=True)
class Era:
    """A period in which a data type had one set of channels and one mapper.

    - `until` is the end in microseconds since 1970; None is today.
    - `dispatch` replaces the exchange's own in this period.
    - `make_filters` replaces the filters of the channels: called with the requested symbols.
    """

    channels: tuple[Channel, ...]
    mapper: Callable[[MapperContext], ChannelHandlers]
    until: int | None = None
    dispatch: Dispatch | None = None
    make_filters: Callable[[Sequence[str] | None], Iterable[Filter]] | None = None

    def filters(self, symbols: Sequence[str] | None) -> Iterable[Filter]:
        """Return the filters that request these symbols (None: all) from the channels."""
        if self.make_filters is not None:
            return self.make_filters(symbols)
        filters = (channel.filter(symbols) for channel in self.channels)
        return (item for item in filters if item is not None)


def upper_channels(*names: str) -> tuple[Channel, ...]:
    """Return channels that spell symbols in upper case, as most exchanges do."""
    return tuple(Channel(name, str.upper) for name in names)


def one_era(mapper: Callable[[MapperContext], ChannelHandlers], *channels: str) -> tuple[Era]:
    """Return the single era of a data type whose channels and mapper never changed."""
    return (Era(upper_channels(*channels), mapper),)


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange of the registry: its data types, dispatch, live dialect and subscriptions.

    `closed` is the reason why it sends nothing any more, or empty. A closed exchange has history
    only; its live dialect needs an address that the user sets.
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
        """Return the filters of the channels that `types` need from `start` to `end` (us)."""
        by_channel: dict[str, Filter] = {}
        for data_type in types:
            for era in self._touched(data_type, start, end):
                for item in era.filters(symbols):
                    earlier = by_channel.get(item.channel)
                    by_channel[item.channel] = item if earlier is None else _union(earlier, item)
        return list(by_channel.values())

    def allowed(
        self, types: Collection[str], symbols: Sequence[str] | None
    ) -> frozenset[str] | None:
        """Return the symbols whose messages may be emitted; None if `symbols` is None or empty.

        They are the requested ones, these in upper case, and these as the exchange spells them,
        since messages may spell a symbol in any of these ways.
        """
        if not symbols:
            return None
        spelled = (item.symbols or () for item in self.filters(types, symbols, 0, _FOREVER))
        return frozenset(symbols).union(map(str.upper, symbols), *spelled)

    def era_ends(self, types: Collection[str]) -> tuple[int, ...]:
        """Return the times (us) at which an era of `types` ends and a new mapper is needed."""
        return tuple(sorted({e.until for t in types for e in self._eras(t) if e.until is not None}))

    def mapper(
        self,
        types: Collection[str],
        created: int | None,
        emitter: Emitter,
        live: bool = False,
        checks_ids: bool = False,
    ) -> Handler:
        """Return a handler that maps raw messages of one stream and calls the emitter.

        `created` (us) selects the era; None, or `live`, selects the newest. Messages of several
        types from one line are emitted in the order of `types`.
        """
        emitter.forget()
        context = MapperContext(self.name, emitter, live, checks_ids)
        by_dispatch: dict[Dispatch, list[ChannelHandlers]] = {}
        for data_type in types:
            if live or created is None:
                era = self._eras(data_type)[-1]
            else:
                era = self._touched(data_type, created, created)[0]
            by_dispatch.setdefault(era.dispatch or self.dispatch, []).append(era.mapper(context))
        if len(by_dispatch) == 1:
            ((dispatch, mappers),) = by_dispatch.items()
            return dispatch(all_handlers(mappers), emitter)
        handlers = [dispatch(all_handlers(mappers)) for dispatch, mappers in by_dispatch.items()]

        def handle(line: bytes) -> bool:
            handled = False
            for handler in handlers:  # types of different eras may read the same line
                handled |= handler(line)
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
