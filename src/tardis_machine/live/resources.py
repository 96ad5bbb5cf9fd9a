"""Resources that all live streams of a process share."""

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
    """Settings, clock, inbox, counters, HTTP client and REST clients of the live streams."""

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
        """The HTTP client of all connections, created at the first use."""
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    def rest(self, plan: Plan) -> Rest:
        """Return the REST client of an exchange; all streams share it and its rate limit."""
        name = plan.exchange.name
        client = self._rests.get(name)
        if client is None:
            client = self._rests[name] = Rest(
                self.http,
                plan.rest_url,
                plan.dialect.budget,
                max_bytes=self.config.live_max_frame_bytes,
            )
        return client

    async def close(self) -> None:
        """Close the HTTP client."""
        self._rests.clear()
        if self._http is not None:
            await self._http.close()
            self._http = None
