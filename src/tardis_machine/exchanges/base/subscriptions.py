"""Readers of native subscribe messages, which return the filters that a client requests."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tardis_machine.exchanges.base.dialect import at
from tardis_machine.history.filters import Filter

Subscriptions = Callable[[Any], list[Filter] | None]
"""A function from a client's decoded message to filters; None if it is no subscription.

The server calls it for each message of a native replay's client. After any exception of it the
server ignores the message.
"""

Items = Callable[[Any], Iterable[Filter]]
"""A function from one entry of a subscription to the filters that the entry requests."""


def subscriptions(match: Mapping[str, object], items: str, read: Items) -> Subscriptions:
    """Return a reader of messages whose fields have the values of `match`.

    `items` is the dotted path of the list of entries, or of a single entry; "" is the message
    itself. `read` is called with each entry.
    """

    def filters(message: Any) -> list[Filter] | None:
        if not isinstance(message, dict):
            return None
        if any(at(message, path) != value for path, value in match.items()):
            return None
        entries = at(message, items) if items else message
        if entries is None:
            return []
        return [requested for entry in _listed(entries) for requested in read(entry)]

    return filters


def first_of(*readers: Subscriptions) -> Subscriptions:
    """Return a reader that uses the first of several readers that recognizes a message."""

    def filters(message: Any) -> list[Filter] | None:
        return next((result for read in readers if (result := read(message)) is not None), None)

    return filters


def channel_first(separator: str) -> Items:
    """Return a reader of entries such as trade:XBTUSD; without separator it is a channel."""

    def read(topic: str) -> Iterable[Filter]:
        channel, separated, rest = topic.partition(separator)
        return (Filter(channel, (rest.partition(separator)[0],) if separated else ()),)

    return read


def symbol_last(separator: str) -> Items:
    """Return a reader of entries such as orderbook.50.BTCUSDT, whose symbol comes last."""

    def read(topic: str) -> Iterable[Filter]:
        channel, separated, symbol = topic.rpartition(separator)
        return (Filter(channel, (symbol,)) if separated else Filter(topic, ()),)

    return read


def symbol_first(separator: str) -> Items:
    """Return a reader of entries such as btcusdt@depth@100ms; text after the channel is ignored."""

    def read(topic: str) -> Iterable[Filter]:
        symbol, separated, rest = topic.partition(separator)
        channel = rest.partition(separator)[0] if separated else topic
        return (Filter(channel, (symbol,) if separated else ()),)

    return read


def fields(
    channel: str, symbols: str, channels: Mapping[str, tuple[str, ...]] | None = None
) -> Items:
    """Return a reader of entries with the channel in one field and symbols in another.

    `channels` has the recorded channels of those that subscriptions call by another name.
    """
    recorded_channels = channels or {}

    def read(entry: Any) -> Iterable[Filter]:
        requested = at(entry, symbols)
        names = tuple(_listed(requested)) if requested is not None else ()
        for name in _listed(at(entry, channel)):
            for recorded in recorded_channels.get(name, (name,)):
                yield Filter(recorded, names)

    return read


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
