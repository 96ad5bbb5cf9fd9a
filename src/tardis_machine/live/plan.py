"""What has to be connected and polled for a live stream; everything is checked here, first."""

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
class Connecting:
    """One connection: where, what is subscribed, which books need a snapshot."""

    endpoint: Endpoint
    url: str
    filters: tuple[Filter, ...]
    snapshots: tuple[tuple[SnapshotRequest, tuple[str, ...]], ...] = ()

    @property
    def channels(self) -> Mapping[str, tuple[str, ...] | None]:
        """Channels with their symbols, those that stand for a snapshot included."""
        found = {each.channel: each.symbols for each in self.filters}
        return found | {each.channel: symbols for each, symbols in self.snapshots if each.channel}


@dataclass(frozen=True, slots=True)
class Polling:
    """One poller with the symbols it asks for."""

    poller: Poller
    symbols: tuple[str, ...]

    @property
    def channels(self) -> Mapping[str, tuple[str, ...] | None]:
        return {self.poller.channel: self.symbols or None}


@dataclass(frozen=True, slots=True)
class Plan:
    """The sources of one stream."""

    exchange: Exchange
    dialect: Dialect
    filters: tuple[Filter, ...]
    secrets: tuple[str, ...]
    connections: tuple[Connecting, ...]
    pollings: tuple[Polling, ...]
    environ: Mapping[str, str]

    def session(self) -> ConnectionContext:
        """Start a session for a connection."""
        return ConnectionContext(time_ns() // 1_000_000, self.filters, self.secrets)

    def rest_url(self, url: str) -> str:
        """Give the address to ask for one of the exchange's REST URLs."""
        return rest_url(self.exchange.name, url, self.environ)


def plan(
    exchange: Exchange,
    types: Sequence[str],
    symbols: Sequence[str] | None,
    environ: Mapping[str, str] = os.environ,
) -> Plan:
    """Find the sources of a stream, or say why there cannot be one."""
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
    with _refusing(exchange.name, symbols):
        filters = tuple(filters_of.normalize(exchange.filters(types, symbols, now, now)))
    for each in filters:
        _check_symbols(exchange.name, dialect, each)
    secrets = _secrets(exchange.name, dialect, environ)
    off_socket = dialect.rest_channels()
    streamed = [_asked(dialect, each) for each in filters if each.channel not in off_socket]
    connections = tuple(
        Connecting(
            endpoint,
            websocket_url(
                exchange.name, endpoint, dialect.endpoints, environ, with_secrets=bool(secrets)
            ),
            its_filters,
            tuple(_snapshots(dialect, its_filters, filters)),
        )
        for endpoint, endpoint_filters in _by_endpoint(exchange.name, dialect, streamed)
        for its_filters in _split(endpoint_filters, dialect.max_streams)
    )
    asked = {each.channel: each.symbols for each in filters}
    pollings = tuple(
        Polling(each, asked[each.channel] or ())
        for each in dialect.pollers
        if each.channel in asked
    )
    found = Plan(exchange, dialect, filters, secrets, connections, pollings, environ)
    for connecting in connections:
        # What the exchange cannot be asked shows now, not while connecting.
        with _refusing(exchange.name, symbols):
            list(dialect.subscribe(connecting.filters, found.session()))
    for snapshot in dialect.snapshots:
        found.rest_url(snapshot.url)
    return found


@contextmanager
def _refusing(exchange: str, symbols: Sequence[str] | None) -> Iterator[None]:
    """Say of symbols that they are none of this exchange's, where it takes them apart."""
    try:
        yield
    except DialectError:
        raise
    except (LookupError, ValueError) as error:
        shown = ", ".join(symbols or ())[:200]
        reason = f'invalid "symbols": {shown}, not as this exchange spells them ({error})'
        raise DialectError(exchange, reason) from error


def _check_symbols(exchange: str, dialect: Dialect, asked: Filter) -> None:
    free = dialect.without_symbols
    if asked.symbols is None and free is not None and asked.channel not in free:
        raise DialectError(
            exchange,
            f'invalid "symbols": none, expected at least one: {asked.channel} cannot be streamed'
            " for all symbols",
        )


def _asked(dialect: Dialect, asked: Filter) -> Filter:
    """Ask for all of a channel that takes no symbols: in filters it may have an empty list."""
    free = dialect.without_symbols or ()
    return asked if asked.symbols or asked.channel not in free else Filter(asked.channel)


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
    for each in filters:
        symbols: dict[int, list[str]] = {}
        for symbol in (None,) if each.symbols is None else each.symbols:
            at = next(
                (n for n, e in enumerate(dialect.endpoints) if e.takes(each.channel, symbol)), None
            )
            if at is None:
                raise DialectError(exchange, f"channel {each.channel} is not streamed live")
            symbols.setdefault(at, []).extend(() if symbol is None else (symbol,))
        for at, its_symbols in symbols.items():
            taken = None if each.symbols is None else tuple(its_symbols)
            routed.setdefault(at, []).append(Filter(each.channel, taken))
    for at in sorted(routed):
        yield dialect.endpoints[at], routed[at]


def _split(filters: Sequence[Filter], limit: int | None) -> Iterator[tuple[Filter, ...]]:
    """Cut filters so that no connection has too many streams; a symbol's channels stay together."""
    every_symbol = [each for each in filters if each.symbols is None]
    by_symbol: dict[str, list[str]] = {}
    for each in filters:
        for symbol in each.symbols or ():
            by_symbol.setdefault(symbol, []).append(each.channel)
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
    dialect: Dialect, filters: Sequence[Filter], asked: Sequence[Filter]
) -> Iterator[tuple[SnapshotRequest, tuple[str, ...]]]:
    on_it = {each.channel: each.symbols or () for each in filters}
    wanted = {each.channel for each in asked}
    for snapshot in dialect.snapshots:
        symbols = on_it.get(snapshot.deltas)
        if symbols and (not snapshot.channel or snapshot.channel in wanted):
            yield snapshot, symbols
