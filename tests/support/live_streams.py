"""Live streams against a scripted exchange."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tardis_machine.live.addresses import variable
from tardis_machine.live.hub import Hub
from tardis_machine.live.settings import LiveConfig
from tardis_machine.live.stream import NormalizedStream
from tardis_machine.replays.requests import Request, stream_normalized_options
from tests.support.servers.exchange import PATIENCE_S, ScriptedExchange

QUICK = LiveConfig(
    live_reconnect_s=0.02, live_reconnect_max_s=0.2, live_stable_s=0.3, live_silence_s=5.0
)


class Reader:
    """Takes a stream's messages as plain objects, as soon as they come unless it is paused."""

    def __init__(self, stream: NormalizedStream[Any]) -> None:
        self.stream = stream
        self.lines: list[bytes] = []
        self._going = asyncio.Event()
        self._going.set()
        self._messages: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def next(self) -> dict[str, Any]:
        """Wait for the next message; raises what ends the stream."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def until(self, kind: str) -> dict[str, Any]:
        """Skip to the next message of a type."""
        while True:
            message = await self.next()
            if message["type"] == kind:
                return message

    def pause(self) -> None:
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for batch in self.stream.batches():
                await self._going.wait()
                for line in batch.data.splitlines():
                    self.lines.append(line)
                    self._messages.put_nowait(msgspec.json.decode(line))
        except Exception as error:  # noqa: BLE001 - handed over
            self._messages.put_nowait(error)


def environ_of(exchange: ScriptedExchange, *names: str) -> dict[str, str]:
    """Point exchanges at the scripted one."""
    return {variable("WSS_URL", name): exchange.ws_url for name in names} | {
        variable("REST_URL", name): exchange.rest_url for name in names
    }


def options_of(*asked: dict[str, Any]) -> Any:
    return stream_normalized_options(list(map(Request, asked)), strict=False)


@asynccontextmanager
async def streaming(
    exchange: ScriptedExchange | None,
    name: str,
    data_types: Sequence[str],
    symbols: Sequence[str] | None = None,
    *,
    hub: Hub | None = None,
    config: LiveConfig = QUICK,
    **more: Any,
) -> AsyncIterator[Reader]:
    """Stream from the scripted exchange, or where the hub says, with every control message."""
    asked = {
        "exchange": name,
        "dataTypes": list(data_types),
        "symbols": None if symbols is None else list(symbols),
        "withDisconnectMessages": True,
        "withErrorMessages": True,
        "timeoutIntervalMS": 0,
        **more,
    }
    owned = None
    if hub is None:
        assert exchange is not None
        hub = owned = Hub(config, environ=environ_of(exchange, name))
    try:
        async with NormalizedStream[Any](options_of(asked), hub=hub) as stream:
            reader = Reader(stream)
            try:
                yield reader
            finally:
                await reader.close()
    finally:
        if owned is not None:
            await owned.close()
