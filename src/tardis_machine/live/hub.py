"""Live streams of a process: clients that ask for the same one share it."""

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
_Key = tuple[str, tuple[str, ...], tuple[str, ...] | None, int, frozenset[str], bool]


class Hub:
    """Runs one feed for all listeners that ask for the same; it ends with the last of them."""

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
        """Listen to one or several streams; all are checked before any is connected."""
        wanted = {_key(each, options): each for each in options}
        # One for all streams of a response, whose positions it counts.
        journal = None if self._open_journal is None else self._open_journal()
        made = {
            key: Feed(each, key[4], self.resources, journal if each.publish else None)
            for key, each in wanted.items()
            if key not in self._feeds
        }
        for key, feed in made.items():
            self._feeds[key] = feed
            feed.start()
        joined = [self._feeds[key] for key in wanted]
        for feed in joined:
            feed.join(listener)
        return Joined(self, joined, listener)

    def tidy(self) -> None:
        """Stop feeds that nobody listens to any more."""
        for key, feed in list(self._feeds.items()):
            if not feed.is_heard:
                del self._feeds[key]
                task = asyncio.create_task(feed.stop())
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)

    async def close(self) -> None:
        """End all streams."""
        feeds = list(self._feeds.values())
        self._feeds.clear()
        try:
            await asyncio.gather(*(feed.stop() for feed in feeds), *self._stopping)
        finally:  # an event loop that ends cancels this, too
            await self.resources.close()


class Joined:
    """A listener's streams."""

    def __init__(self, hub: Hub, feeds: Sequence[Feed], listener: Listener) -> None:
        self._hub = hub
        self._feeds = feeds
        self._listener = listener

    def leave(self) -> None:
        """Listen no more; harmless when repeated."""
        for feed in self._feeds:
            feed.leave(self._listener)
        self._hub.tidy()


def _key(asked: StreamNormalizedOptions, options: Sequence[StreamNormalizedOptions]) -> _Key:
    """Tell what makes streams the same; who wants which control messages does not."""
    # Types that any option of this exchange asks for are sent from all of its streams.
    names = [n for each in options if each.exchange == asked.exchange for n in each.data_types]
    return (
        asked.exchange,
        tuple(sorted(asked.data_types)),
        None if asked.symbols is None else tuple(sorted(asked.symbols)),
        asked.timeout_interval_ms,
        sent(parse_all(names)),
        asked.publish,
    )
