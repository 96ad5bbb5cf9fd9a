"""Mappers of a live stream; a lost connection resets only the mappers that it feeds."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from tardis_machine.engine import DataType, Taken, create
from tardis_machine.engine.datatypes import sources
from tardis_machine.exchanges import BookGapError, Exchange
from tardis_machine.live.errors import BookError, LiveError, MalformedError
from tardis_machine.live.plan import ConnectionPlan, Plan, PollerPlan
from tardis_machine.log import Throttle

log = logging.getLogger(__name__)

BOOKS = "book_change"
Source = ConnectionPlan | PollerPlan


class Lane:
    """Pipeline of one normalized type and the types computed from it.

    Its sources have symbols in common: a ticker's price may come over a connection while its open
    interest is polled. The feed resets the lanes of a connection that ends, and no others.
    """

    def __init__(
        self,
        exchange: Exchange,
        source_type: str,
        data_types: Sequence[DataType],
        sent: frozenset[str],
        allowed: frozenset[str] | None,
        fed_by: frozenset[Source],
        channels: frozenset[str],
    ) -> None:
        self.type = source_type
        self.channels = channels
        self.fed_by = fed_by
        self._exchange = exchange
        self._emitter = create(exchange.name, data_types, sent & {source_type})
        self._emitter.allow(allowed)
        self._throttle = Throttle()
        self._handle: Callable[[bytes], bool]
        self.reset()

    def reset(self) -> None:
        """Drop the state of mapper, books and bars."""
        self._emitter.reset()
        self._handle = self._exchange.mapper(
            [self.type], None, self._emitter, live=True, checks_ids=True
        )

    def process_frame(self, local: str, frame: bytes) -> Taken | None:
        """Return the messages of a frame, or None if it has none of this type.

        Raises BookError for a missing update, MalformedError for a frame the mapper cannot read.
        """
        self._emitter.begin(local)
        try:
            handled = self._handle(frame)
        except BookGapError as error:
            self._emitter.take()
            raise BookError(str(error)) from error
        except Exception as error:
            self._emitter.take()
            raise self._malformed(frame, error) from error
        return self._emitter.take() if handled else None

    def _malformed(self, frame: bytes, error: Exception) -> LiveError:
        held_back = self._throttle.allow()
        reason = str(error) or type(error).__name__
        if held_back is not None:
            log.warning(
                "live message cannot be normalized",
                extra={
                    "exchange": self._exchange.name,
                    "type": self.type,
                    "reason": reason[:200],
                    "raw": frame[:200].decode(errors="replace"),
                    "held_back": held_back,
                },
            )
        return MalformedError(f"cannot normalize a {self.type} message: {reason[:200]}")


def lanes_of(
    plan: Plan,
    data_types: Sequence[DataType],
    sent: frozenset[str],
    symbols: Sequence[str] | None,
) -> list[Lane]:
    """Return the lanes of a stream, in the order in which the types of one frame are sent."""
    allowed = plan.exchange.allowed(sources(data_types), symbols)
    lanes = []
    for source_type in sources(data_types):
        channels = _channels(plan.exchange, source_type, symbols)
        own_types = [data_type for data_type in data_types if data_type.source == source_type]
        for group in _groups(plan, channels):
            lane = Lane(
                plan.exchange,
                source_type,
                own_types,
                sent,
                allowed,
                group,
                frozenset(channels),
            )
            lanes.append(lane)
    return lanes


def _channels(
    exchange: Exchange, source_type: str, symbols: Sequence[str] | None
) -> Mapping[str, tuple[str, ...] | None]:
    far = 1 << 62
    return {f.channel: f.symbols for f in exchange.filters([source_type], symbols, far, far)}


def _groups(
    plan: Plan, channels: Mapping[str, tuple[str, ...] | None]
) -> Iterable[frozenset[Source]]:
    """Return groups of sources of one type that have symbols in common.

    If the channels spell symbols differently, symbols cannot be compared, so all sources are one
    group.
    """
    feeding: list[tuple[set[Source], set[str]]] = []
    alike = len({frozenset(symbols or ()) for symbols in channels.values()}) == 1
    all_sources: Sequence[Source] = (*plan.connections, *plan.pollers)
    for source in all_sources:
        own_symbols = [s for c, s in source.channels.items() if c in channels]
        if not own_symbols:
            continue
        symbols = {symbol for some in own_symbols for symbol in some or ()}
        whole = not alike or None in own_symbols
        merged: tuple[set[Source], set[str]] = ({source}, symbols)
        apart = []
        for group in feeding:
            if whole or group[1] & symbols or not group[1]:
                merged[0].update(group[0])
                merged[1].update(group[1])
            else:
                apart.append(group)
        feeding = [*apart, merged]
    return [frozenset(group) for group, _ in feeding]
