"""Native subscribe messages, as clients of an exchange send them, to the filters they ask for."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tardis_machine.exchanges.base.dialect import at
from tardis_machine.history.filters import Filter

Subscriptions = Callable[[Any], list[Filter] | None]
"""Takes a decoded message. None: it is no subscription. May raise anything on what is malformed."""

Items = Callable[[Any], Iterable[Filter]]
"""Reads what one entry of a subscription asks for."""


def subscriptions(match: Mapping[str, object], items: str, read: Items) -> Subscriptions:
    """Read messages whose fields have the values of `match`.

    `items` is where the entries are, its parts split by dots: a list of them, or just one; "" is
    the message itself.
    """

    def filters(message: Any) -> list[Filter] | None:
        if not isinstance(message, dict):
            return None
        if any(at(message, path) != value for path, value in match.items()):
            return None
        found = at(message, items) if items else message
        if found is None:
            return []
        return [each for item in _listed(found) for each in read(item)]

    return filters


def first_of(*readers: Subscriptions) -> Subscriptions:
    """Let the first reader that knows a message read it, where an exchange has several forms."""

    def filters(message: Any) -> list[Filter] | None:
        return next((found for read in readers if (found := read(message)) is not None), None)

    return filters


def channel_first(separator: str) -> Items:
    """Read entries such as trade:XBTUSD; without a separator they are a channel's name."""

    def read(topic: str) -> Iterable[Filter]:
        channel, found, rest = topic.partition(separator)
        return (Filter(channel, (rest.partition(separator)[0],) if found else ()),)

    return read


def symbol_last(separator: str) -> Items:
    """Read entries such as orderbook.50.BTCUSDT, whose channel's name has the separator in it."""

    def read(topic: str) -> Iterable[Filter]:
        channel, found, symbol = topic.rpartition(separator)
        return (Filter(channel, (symbol,)) if found else Filter(topic, ()),)

    return read


def symbol_first(separator: str) -> Items:
    """Read entries such as btcusdt@depth@100ms: what follows the channel is left out."""

    def read(topic: str) -> Iterable[Filter]:
        symbol, found, rest = topic.partition(separator)
        channel = rest.partition(separator)[0] if found else topic
        return (Filter(channel, (symbol,) if found else ()),)

    return read


def fields(
    channel: str, symbols: str, channels: Mapping[str, tuple[str, ...]] | None = None
) -> Items:
    """Read entries that have the channel in one field and one or several symbols in another.

    `channels` names what is recorded for those whose subscription has another name.
    """
    known = channels or {}

    def read(entry: Any) -> Iterable[Filter]:
        wanted = at(entry, symbols)
        its_symbols = tuple(_listed(wanted)) if wanted is not None else ()
        for name in _listed(at(entry, channel)):
            for recorded in known.get(name, (name,)):
                yield Filter(recorded, its_symbols)

    return read


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
