"""Mappers of a live stream, each with state of its own: what is cut loses only its own."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from tardis_machine.engine import DataType, Taken, create
from tardis_machine.engine.datatypes import sources
from tardis_machine.exchanges import BookGapError, Exchange
from tardis_machine.live.errors import BookError, LiveError, MalformedError
from tardis_machine.live.plan import Connecting, Plan, Polling
from tardis_machine.log import Throttle

log = logging.getLogger(__name__)

BOOKS = "book_change"
Source = Connecting | Polling


class Lane:
    """One normalized type, and what is computed from it, from sources that belong together.

    Those are sources of the same symbols: a ticker's price may come over a connection while its
    open interest is polled. A connection that is cut starts its lanes anew, and no others.
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
        """Start anew: mapper, books, bars."""
        self._emitter.reset()
        self._handle = self._exchange.mapper(
            [self.type], None, self._emitter, live=True, checks_ids=True
        )

    def take(self, local: str, frame: bytes) -> Taken | None:
        """Normalize a frame; None if it is of no interest here."""
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
    """Make the lanes of a stream, in the order in which one message's types are sent."""
    allowed = plan.exchange.allowed(sources(data_types), symbols)
    lanes = []
    for source_type in sources(data_types):
        channels = _channels(plan.exchange, source_type, symbols)
        its_types = [each for each in data_types if each.source == source_type]
        for group in _groups(plan, channels):
            lane = Lane(
                plan.exchange,
                source_type,
                its_types,
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
    return {
        each.channel: each.symbols for each in exchange.filters([source_type], symbols, far, far)
    }


def _groups(
    plan: Plan, channels: Mapping[str, tuple[str, ...] | None]
) -> Iterable[frozenset[Source]]:
    """Put sources of one type together that share symbols.

    Where its channels spell symbols differently nobody can tell what belongs to what: then all are
    one group.
    """
    feeding: list[tuple[set[Source], set[str]]] = []
    alike = len({frozenset(symbols or ()) for symbols in channels.values()}) == 1
    everything: Sequence[Source] = (*plan.connections, *plan.pollings)
    for source in everything:
        its = {c: s for c, s in source.channels.items() if c in channels}
        if not its:
            continue
        symbols = {symbol for each in its.values() for symbol in each or ()}
        whole = not alike or any(each is None for each in its.values())
        merged: tuple[set[Source], set[str]] = ({source}, symbols)
        apart = []
        for group in feeding:
            if whole or group[1] & symbols or not group[1]:
                merged[0].update(group[0])
                merged[1].update(group[1])
            else:
                apart.append(group)
        feeding = [*apart, merged]
    return [frozenset(found) for found, _ in feeding]
