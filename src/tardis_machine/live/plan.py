"""The connections and pollers of a live stream, planned and checked before any is started."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import time_ns

from tardis_machine.exchanges import Exchange
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    DialectError,
    Endpoint,
    Poller,
    SnapshotRequest,
)
from tardis_machine.history import filters as filters_of
from tardis_machine.history.filters import Filter
from tardis_machine.live.addresses import is_set, rest_url, variable, websocket_url


@dataclass(frozen=True, slots=True)
class ConnectionPlan:
    """One connection: its URL, its subscriptions, and the books that need a snapshot."""

    endpoint: Endpoint
    url: str
    filters: tuple[Filter, ...]
    snapshots: tuple[tuple[SnapshotRequest, tuple[str, ...]], ...] = ()

    @property
    def channels(self) -> Mapping[str, tuple[str, ...] | None]:
        """Symbols by channel, including the channels of snapshots."""
        subscribed = {subscription.channel: subscription.symbols for subscription in self.filters}
        return subscribed | {
            snapshot.channel: symbols for snapshot, symbols in self.snapshots if snapshot.channel
        }


@dataclass(frozen=True, slots=True)
class PollerPlan:
    """One poller and its symbols."""

    poller: Poller
    symbols: tuple[str, ...]

    @property
    def channels(self) -> Mapping[str, tuple[str, ...] | None]:
        """Symbols by channel."""
        return {self.poller.channel: self.symbols or None}


@dataclass(frozen=True, slots=True)
class Plan:
    """The sources of one live stream."""

    exchange: Exchange
    dialect: Dialect
    filters: tuple[Filter, ...]
    secrets: tuple[str, ...]
    connections: tuple[ConnectionPlan, ...]
    pollers: tuple[PollerPlan, ...]
    environ: Mapping[str, str]

    def context(self) -> ConnectionContext:
        """Return a context for a new connection, with the current time."""
        return ConnectionContext(time_ns() // 1_000_000, self.filters, self.secrets)

    def rest_url(self, url: str) -> str:
        """Return a REST URL of the exchange, as the environment overrides it."""
        return rest_url(self.exchange.name, url, self.environ)


def plan(
    exchange: Exchange,
    types: Sequence[str],
    symbols: Sequence[str] | None,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """Return the sources of a stream; raise DialectError if the exchange cannot stream it."""
    dialect = exchange.live
    if dialect is None:
        raise DialectError(exchange.name, "has no live data")
    if exchange.closed and not is_set(exchange.name, dialect.endpoints, environ):
        raise DialectError(
            exchange.name,
            f"no live data, {exchange.closed}; history only, unless "
            f"{variable('WSS_URL', exchange.name)} is set",
        )
    now = time_ns() // 1000
    with _symbols_checked(exchange.name, symbols):
        filters = tuple(filters_of.normalize(exchange.filters(types, symbols, now, now)))
    for subscription in filters:
        _check_symbols(exchange.name, dialect, subscription)
    secrets = _secrets(exchange.name, dialect, environ)
    off_socket = dialect.rest_channels()
    streamed = [_without_empty(dialect, f) for f in filters if f.channel not in off_socket]
    connections = tuple(
        ConnectionPlan(
            endpoint,
            websocket_url(
                exchange.name, endpoint, dialect.endpoints, environ, with_secrets=bool(secrets)
            ),
            own_filters,
            tuple(_snapshots(dialect, own_filters, filters)),
        )
        for endpoint, endpoint_filters in _by_endpoint(exchange.name, dialect, streamed)
        for own_filters in _split(endpoint_filters, dialect.max_streams)
    )
    requested = {subscription.channel: subscription.symbols for subscription in filters}
    pollers = tuple(
        PollerPlan(poller, requested[poller.channel] or ())
        for poller in dialect.pollers
        if poller.channel in requested
    )
    planned = Plan(exchange, dialect, filters, secrets, connections, pollers, environ)
    for connection in connections:
        # Symbols that the dialect cannot spell raise here, before anything is connected.
        with _symbols_checked(exchange.name, symbols):
            list(dialect.subscribe(connection.filters, planned.context()))
    for snapshot in dialect.snapshots:
        planned.rest_url(snapshot.url)
    return planned


@contextmanager
def _symbols_checked(exchange: str, symbols: Sequence[str] | None) -> Iterator[None]:
    """Raise DialectError where the block cannot parse the symbols of this exchange."""
    try:
        yield
    except DialectError:
        raise
    except (LookupError, ValueError) as error:
        shown = ", ".join(symbols or ())[:200]
        reason = f'invalid "symbols": {shown}, not as this exchange spells them ({error})'
        raise DialectError(exchange, reason) from error


def _check_symbols(exchange: str, dialect: Dialect, subscription: Filter) -> None:
    free = dialect.without_symbols
    if subscription.symbols is None and free is not None and subscription.channel not in free:
        raise DialectError(
            exchange,
            f'invalid "symbols": none, expected at least one: {subscription.channel} cannot be'
            " streamed for all symbols",
        )


def _without_empty(dialect: Dialect, subscription: Filter) -> Filter:
    """Return the filter, without its empty list of symbols if the channel takes none."""
    free = dialect.without_symbols or ()
    if subscription.symbols or subscription.channel not in free:
        return subscription
    return Filter(subscription.channel)


def _secrets(exchange: str, dialect: Dialect, environ: Mapping[str, str]) -> tuple[str, ...]:
    if dialect.secrets is None:
        return ()
    names = dialect.secrets.names
    missing = [name for name in names if not environ.get(name)]
    if not missing:
        return tuple(environ[name] for name in names)
    if len(missing) < len(names) or not dialect.secrets.optional:
        raise DialectError(exchange, f"missing credentials: set {', '.join(missing)}")
    return ()


def _by_endpoint(
    exchange: str, dialect: Dialect, filters: Iterable[Filter]
) -> Iterator[tuple[Endpoint, list[Filter]]]:
    routed: dict[int, list[Filter]] = {}
    for subscription in filters:
        channel = subscription.channel
        by_index: dict[int, list[str]] = {}
        for symbol in (None,) if subscription.symbols is None else subscription.symbols:
            index = next(
                (n for n, e in enumerate(dialect.endpoints) if e.serves(channel, symbol)), None
            )
            if index is None:
                raise DialectError(exchange, f"channel {channel} is not streamed live")
            by_index.setdefault(index, []).extend(() if symbol is None else (symbol,))
        for index, symbols in by_index.items():
            chosen = None if subscription.symbols is None else tuple(symbols)
            routed.setdefault(index, []).append(Filter(channel, chosen))
    for index in sorted(routed):
        yield dialect.endpoints[index], routed[index]


def _split(filters: Sequence[Filter], limit: int | None) -> Iterator[tuple[Filter, ...]]:
    """Yield filters by connection, at most `limit` streams each; a symbol is not split."""
    every_symbol = [subscription for subscription in filters if subscription.symbols is None]
    by_symbol: dict[str, list[str]] = {}
    for subscription in filters:
        for symbol in subscription.symbols or ():
            by_symbol.setdefault(symbol, []).append(subscription.channel)
    if limit is None or len(every_symbol) + sum(map(len, by_symbol.values())) <= limit:
        yield tuple(filters)
        return
    chosen: dict[str, list[str]] = {}
    streams = len(every_symbol)
    for symbol in sorted(by_symbol):
        channels = by_symbol[symbol]
        if streams and streams + len(channels) > limit:
            yield (*every_symbol, *_chosen(chosen))
            every_symbol, chosen, streams = [], {}, 0
        for channel in channels:
            chosen.setdefault(channel, []).append(symbol)
        streams += len(channels)
    yield (*every_symbol, *_chosen(chosen))


def _chosen(chosen: Mapping[str, list[str]]) -> list[Filter]:
    return [Filter(channel, tuple(chosen[channel])) for channel in sorted(chosen)]


def _snapshots(
    dialect: Dialect, filters: Sequence[Filter], requested: Sequence[Filter]
) -> Iterator[tuple[SnapshotRequest, tuple[str, ...]]]:
    subscribed = {subscription.channel: subscription.symbols or () for subscription in filters}
    channels = {subscription.channel for subscription in requested}
    for snapshot in dialect.snapshots:
        symbols = subscribed.get(snapshot.deltas)
        if symbols and (not snapshot.channel or snapshot.channel in channels):
            yield snapshot, symbols
