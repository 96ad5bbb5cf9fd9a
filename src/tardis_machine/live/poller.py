"""A channel that an exchange gives by REST only, asked for again and again."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tardis_machine.exchanges.base.dialect import AnswerError, chunks, spelled
from tardis_machine.live.errors import LiveError
from tardis_machine.live.lanes import Lane
from tardis_machine.live.plan import Polling
from tardis_machine.live.resources import Resources
from tardis_machine.live.rest import Rest


class Host(Protocol):
    """The stream that a poller belongs to."""

    resources: Resources
    rest: Rest

    def take(self, source: "PolledSource", local: str, frame: bytes) -> None: ...

    def flush(self) -> None: ...

    def report(self, error: Exception) -> None: ...


class PolledSource:
    """Polls until it is cancelled; a symbol that fails is reported and left out of that round."""

    def __init__(self, source: Polling, lanes: Sequence[Lane], host: Host) -> None:
        self.source = source
        self.lanes = lanes
        self._host = host

    async def run(self) -> None:
        """Ask for all symbols, wait, ask again."""
        poller = self.source.poller
        symbols = self.source.symbols if poller.per_symbol else ("",)
        while True:
            for some in chunks(symbols, poller.at_once):
                await asyncio.gather(*map(self._poll, some))
            await asyncio.sleep(poller.every_s)

    def beat(self, lane: Lane) -> None:
        """Nothing to note: a poller knows itself when it gets nothing."""

    def _take(self, local: str, frame: bytes) -> None:
        self._host.take(self, local, frame)

    async def _poll(self, symbol: str) -> None:
        poller, host = self.source.poller, self._host
        resources = host.resources
        try:
            answers = await asyncio.gather(
                *(host.rest.get(spelled(url, symbol), weight=poller.weight) for url in poller.urls)
            )
            for message in poller.render(symbol, answers):
                resources.inbox.put(self._take, host.flush, resources.clock.stamp(), message)
        except (LiveError, AnswerError) as error:
            host.report(error)
        except (msgspec.MsgspecError, ValueError) as error:
            host.report(AnswerError(f"{symbol}: {error}"))
