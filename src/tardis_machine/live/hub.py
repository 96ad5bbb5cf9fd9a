"""Live streams of a process; clients with equal options share one feed."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from tardis_machine.engine import parse_all
from tardis_machine.engine.datatypes import sent
from tardis_machine.live.feed import Feed, Journal, Listener
from tardis_machine.live.resources import Resources
from tardis_machine.live.settings import LiveConfig
from tardis_machine.replays.requests import StreamNormalizedOptions

OpenJournal = Callable[[], Journal | None]
"""Callback that opens the journal of a response; the hub calls it when a listener joins.

It returns None where nothing is published. An error that it raises reaches the caller of `join`.
"""
_Key = tuple[str, tuple[str, ...], tuple[str, ...] | None, int, frozenset[str], bool]


class Hub:
    """Owner of the feeds: one for all listeners with equal options, until the last one leaves."""

    def __init__(
        self,
        config: LiveConfig | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        open_journal: OpenJournal | None = None,
    ) -> None:
        self.resources = Resources(config, environ)
        self._open_journal = open_journal
        self._feeds: dict[_Key, Feed] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def join(self, options: Sequence[StreamNormalizedOptions], listener: Listener) -> "Joined":
        """Send one or several streams to a listener.

        All options are checked before anything is connected.
        """
        requests = {_key(request, options): request for request in options}
        # Positions are counted over all streams of a response, so they share one journal.
        journal = None if self._open_journal is None else self._open_journal()
        new_feeds = {
            key: Feed(request, key[4], self.resources, journal if request.publish else None)
            for key, request in requests.items()
            if key not in self._feeds
        }
        for key, feed in new_feeds.items():
            self._feeds[key] = feed
            feed.start()
        joined = [self._feeds[key] for key in requests]
        for feed in joined:
            feed.join(listener)
        return Joined(self, joined, listener)

    def stop_unused_feeds(self) -> None:
        """Stop the feeds without listeners, in the background."""
        for key, feed in list(self._feeds.items()):
            if not feed.has_listeners:
                del self._feeds[key]
                task = asyncio.create_task(feed.stop())
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        """Stop all feeds, wait for them, and close the HTTP client."""
        feeds = list(self._feeds.values())
        self._feeds.clear()
        try:
            await asyncio.gather(*(feed.stop() for feed in feeds), *self._stopping)
        finally:  # an ending event loop cancels this coroutine
            await self.resources.close()


class Joined:
    """The feeds that one listener has joined."""

    def __init__(self, hub: Hub, feeds: Sequence[Feed], listener: Listener) -> None:
        self._hub = hub
        self._feeds = feeds
        self._listener = listener

    def leave(self) -> None:
        """Leave the feeds, and stop those without other listeners; harmless when repeated."""
        for feed in self._feeds:
            feed.leave(self._listener)
        self._hub.stop_unused_feeds()


def _key(request: StreamNormalizedOptions, options: Sequence[StreamNormalizedOptions]) -> _Key:
    """Return what requests must have in common to share a feed; control messages do not count."""
    # A type that one request of this exchange names is sent from all of its streams.
    names = [n for other in options if other.exchange == request.exchange for n in other.data_types]
    return (
        request.exchange,
        tuple(sorted(request.data_types)),
        None if request.symbols is None else tuple(sorted(request.symbols)),
        request.timeout_interval_ms,
        sent(parse_all(names)),
        request.publish,
    )
