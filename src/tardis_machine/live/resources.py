"""What the live streams of a process share."""

import os
from collections.abc import Mapping

import aiohttp

from tardis_machine.live.clock import Clock
from tardis_machine.live.inbox import Inbox
from tardis_machine.live.plan import Plan
from tardis_machine.live.rest import Rest
from tardis_machine.live.settings import LiveConfig
from tardis_machine.live.statistics import Statistics


class Resources:
    """Settings, the clock, the inbox, HTTP clients."""

    def __init__(
        self, config: LiveConfig | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.config = config or LiveConfig()
        self.environ = environ
        self.clock = Clock()
        self.inbox = Inbox(self.config.live_buffer_bytes)
        self.statistics = Statistics()
        self._http: aiohttp.ClientSession | None = None
        self._rests: dict[str, Rest] = {}

    @property
    def http(self) -> aiohttp.ClientSession:
        """The client of all connections, made when first needed."""
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    def rest(self, plan: Plan) -> Rest:
        """Give the REST side of an exchange: all that is asked of it counts together."""
        name = plan.exchange.name
        found = self._rests.get(name)
        if found is None:
            found = self._rests[name] = Rest(
                self.http,
                plan.rest_url,
                plan.dialect.budget,
                max_bytes=self.config.live_max_frame_bytes,
            )
        return found

    async def close(self) -> None:
        """Give up the HTTP clients."""
        self._rests.clear()
        if self._http is not None:
            await self._http.close()
            self._http = None
