"""Polling of channels that an exchange offers by REST only."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tardis_machine.exchanges.base.dialect import AnswerError, chunks, spelled
from tardis_machine.live.errors import LiveError
from tardis_machine.live.lanes import Lane
from tardis_machine.live.plan import PollerPlan
from tardis_machine.live.resources import Resources
from tardis_machine.live.rest import Rest


class Host(Protocol):
    """The feed that a poller belongs to; the poller calls it in the event loop's thread."""

    resources: Resources
    rest: Rest

    def process_frame(self, source: "PolledSource", local: str, frame: bytes) -> None:
        """Normalize a rendered answer; called by the inbox."""

    def flush(self) -> None:
        """Send the normalized messages; called by the inbox after a step of frames."""

    def report(self, error: Exception) -> None:
        """Report a failed request; the poller asks again in its next round."""


class PolledSource:
    """A poller that runs until it is cancelled; it reports a symbol that fails and skips it."""

    def __init__(self, source: PollerPlan, lanes: Sequence[Lane], host: Host) -> None:
        self.source = source
        self.lanes = lanes
        self._host = host

    async def run(self) -> None:
        """Request all symbols every `every_s` seconds until cancelled."""
        poller = self.source.poller
        symbols = self.source.symbols if poller.per_symbol else ("",)
        while True:
            for group in chunks(symbols, poller.at_once):
                await asyncio.gather(*map(self._poll, group))
            await asyncio.sleep(poller.every_s)

    def record_message(self, lane: Lane) -> None:
        """Do nothing: a poller is never checked for silence."""

    def _process_frame(self, local: str, frame: bytes) -> None:
        self._host.process_frame(self, local, frame)

    async def _poll(self, symbol: str) -> None:
        poller, host = self.source.poller, self._host
        resources = host.resources
        try:
            answers = await asyncio.gather(
                *(host.rest.get(spelled(url, symbol), weight=poller.weight) for url in poller.urls)
            )
            for message in poller.render(symbol, answers):
                local = resources.clock.stamp()
                resources.inbox.put(self._process_frame, host.flush, local, message)
        except (LiveError, AnswerError) as error:
            host.report(error)
        except (msgspec.MsgspecError, ValueError) as error:
            host.report(AnswerError(f"{symbol}: {error}"))
