"""TardisMachine: the server as a Python class."""

import asyncio
import logging
import socket
from collections.abc import Container, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from tardis_machine.config import ConfigError, Section, from_dict, options
from tardis_machine.engine.choice import kernel
from tardis_machine.history import History, claim_cache_dir
from tardis_machine.history.client import API_WAIT_S
from tardis_machine.history.sample import SAMPLE
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.live.settings import LiveConfig
from tardis_machine.publish.buses import BUSES, bus_config
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.server import descriptors
from tardis_machine.server.cluster_metrics import ClusterMetrics
from tardis_machine.server.http import SPARE_PATHS, HttpRoutes
from tardis_machine.server.limits import Limits, LimitsConfig
from tardis_machine.server.listener import Handler, Listener
from tardis_machine.server.metrics import CacheCollector, Metrics
from tardis_machine.server.services import Services
from tardis_machine.server.settings import ServerConfig
from tardis_machine.server.sockets import BACKLOG, Sockets, listen, port_of, spelled_address
from tardis_machine.server.websocket import WebSocketRoutes

if TYPE_CHECKING:
    from tardis_machine.publish.accounts import DrainReport
    from tardis_machine.publish.outbox import Outbox

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Section)

_END_WAIT_S: Final = 5.0
_CUT_WAIT_S: Final = 0.5

BusSettings = BusConfig | Mapping[str, Any]


class TardisMachine:
    """Serves replays, and publishes them when a bus is given.

        machine = TardisMachine(sample_data=True, event_bus={"provider": "kafka", …})
        await machine.start(8000)
        …
        await machine.stop()

    Further keywords are the settings of ServerConfig, LimitsConfig, HistoryConfig and LiveConfig.
    `event_bus` names its provider; each bus also has a keyword of its own, so that several can be
    on at once.
    """

    def __init__(
        self,
        *,
        server: ServerConfig | None = None,
        limits: LimitsConfig | None = None,
        history: HistoryConfig | None = None,
        live: LiveConfig | None = None,
        journal: JournalConfig | Mapping[str, Any] | None = None,
        publish: PublishConfig | Mapping[str, Any] | None = None,
        event_bus: BusSettings | None = None,
        **settings: Any,
    ) -> None:
        buses = _buses(event_bus, settings)
        self.config = server or _section(ServerConfig, settings)
        self._limits_config = limits or _section(LimitsConfig, settings)
        self._history_config = history or _section(HistoryConfig, settings)
        self._live_config = live or _section(LiveConfig, settings)
        if settings:
            owners = (ServerConfig, LimitsConfig, HistoryConfig, LiveConfig)
            known = [option.name for owner in owners for option in options(owner)]
            raise ConfigError(
                next(iter(settings)), None, f"unknown setting, expected one of {', '.join(known)}"
            )
        self.config.expect_guard()
        if server is None:  # the command has said what its flags deserve
            for section in (self.config, self._history_config, *buses.values()):
                for warning in section.warnings():
                    log.warning(warning)
            for warning in descriptors.warnings(self._limits_config):
                log.warning(warning)
        self.metrics = Metrics()
        self.metrics.registry.register(CacheCollector(self._cache_bytes))
        self._outbox: Outbox | None = None
        if buses:
            # Imported only here: without a bus nothing of the publisher is loaded.
            from tardis_machine.publish import outbox  # noqa: PLC0415

            self._outbox = outbox.Outbox(
                buses,
                _as(JournalConfig, journal),
                _as(PublishConfig, publish),
                self.metrics.registry,
            )
        self._starting = False
        self._services: Services | None = None
        self._listeners: list[Listener] = []
        self._undo: AsyncExitStack | None = None
        self._report: DrainReport | None = None

    async def start(
        self,
        port: int | None = None,
        *,
        sockets: Sockets | None = None,
        cluster_metrics: ClusterMetrics | None = None,
    ) -> None:
        """Listen on `port` and the one after it; 0 for any two that are free (see `port`).

        Without `host` these are ports of 127.0.0.1, and of ::1 where both are free there.
        A process of a cluster is given `sockets` that listen already, and its `cluster_metrics`.
        """
        if self._starting or self._services is not None:
            raise RuntimeError("this TardisMachine has been started already")
        config = self.config if port is None else from_dict(ServerConfig, {"port": port})
        taken = sockets or listen(self.config.host, config.port)
        self._starting = True
        try:
            # Undone if any part fails, and at any moment of a cancellation.
            async with AsyncExitStack() as undo:
                undo.callback(taken.close)
                self._services = await self._serve(taken, cluster_metrics, undo)
                self._undo = undo.pop_all()
        finally:
            self._starting = False
        where = {"http": _addresses(taken.http), "ws": _addresses(taken.websocket)}
        log.info("listening", extra={**where, "kernel": str(kernel())})

    @property
    def port(self) -> int:
        """The HTTP port that a started server listens on; WebSockets have the next one."""
        if self._services is None:
            raise RuntimeError("this TardisMachine is not started: it listens on no port")
        return self._services.port

    async def stop(self) -> "DrainReport | None":
        """End what is under way, deliver what is journalled, and say what became of it."""
        undo, self._undo = self._undo, None
        if undo is None:
            return None
        self._services = self._report = None
        await undo.aclose()
        log.info("stopped")
        return self._report

    async def _serve(
        self, sockets: Sockets, cluster_metrics: ClusterMetrics | None, undo: AsyncExitStack
    ) -> Services:
        """Start the parts of the server one after the other, each with its end in `undo`.

        They end in the reverse order.
        """
        loop = asyncio.get_running_loop()
        if cluster_metrics is not None:
            undo.callback(cluster_metrics.stop)
        history = open_history(self._history_config)
        undo.callback(history.close)
        if self._outbox is not None:
            await self._outbox.start()
            undo.push_async_callback(self._stop_publishing, self._outbox)
        services = Services(
            config=self.config,
            limits=Limits(self._limits_config, self.metrics),
            port=port_of(sockets.http),
            history=history,
            live=self._live_config,
            metrics=self.metrics,
            outbox=self._outbox,
            cluster_metrics=cluster_metrics,
        )
        http = self._listener(HttpRoutes(services), undo, SPARE_PATHS)
        websocket = self._listener(WebSocketRoutes(services), undo)
        undo.push_async_callback(services.end, _END_WAIT_S)
        if cluster_metrics is not None:
            await cluster_metrics.start()
        self.metrics.pinned.set_function(lambda: history.cache.pinned)
        for port, listener, listening in (
            ("http", http, sockets.http),
            ("ws", websocket, sockets.websocket),
        ):
            self.metrics.connections.labels(port).set_function(partial(_connections, listener))
            for each in listening:
                # It listens once more, by default with a tenth of the backlog. Cancelled in one
                # call of both, it would leave a server that nothing refers to.
                server = await loop.create_server(
                    listener, sock=each, backlog=BACKLOG, start_serving=False
                )
                undo.callback(server.close)
                await server.start_serving()
        return services

    def _listener(
        self, routes: Handler, undo: AsyncExitStack, spare_paths: Container[str] = ()
    ) -> Listener:
        listener = Listener(
            routes,
            max_connections=self._limits_config.max_connections,
            idle_s=self._limits_config.idle_timeout_s,
            limited=self.metrics.limited,
            spare_paths=spare_paths,
        )
        self._listeners.append(listener)
        undo.push_async_callback(self._cut, listener)
        return listener

    async def _cut(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        listener.pre_shutdown()
        await listener.shutdown(_CUT_WAIT_S)

    async def _stop_publishing(self, outbox: "Outbox") -> None:
        # A server that has not started has journalled nothing.
        self._report = await outbox.stop(drain=not self._starting)

    def _cache_bytes(self) -> int | None:
        return None if self._services is None else self._services.history.cache.total_bytes()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _connections(listener: Listener) -> int:
    return len(listener.connections)


def open_history(config: HistoryConfig) -> History:
    """Open the history of these settings; with an empty cache, if they say so."""
    cache_dir = config.cache_dir
    if not config.sample_data:
        cache_dir = claim_cache_dir(cache_dir, config.flag("cache_dir"))
    history = History(
        endpoint=config.endpoint,
        api_key=config.api_key or "",
        cache_dir=cache_dir,
        cache_max_bytes=config.cache_max_bytes,
        max_slices=config.max_slices,
        api_wait_s=API_WAIT_S if config.api_wait_s is None else config.api_wait_s,
        source=SAMPLE if config.sample_data else None,
    )
    if config.clear_cache and not config.sample_data:
        history.cache.clear()
    return history


def _section(owner: type[S], settings: dict[str, Any]) -> S:
    """Take a section's settings out of the keywords."""
    names = [option.name for option in options(owner) if option.name in settings]
    return from_dict(owner, {name: settings.pop(name) for name in names})


def _as(owner: type[S], given: S | Mapping[str, Any] | None) -> S:
    if isinstance(given, owner):
        return given
    assert given is None or isinstance(given, Mapping)
    return from_dict(owner, given or {})


def _buses(event_bus: BusSettings | None, settings: dict[str, Any]) -> dict[str, BusConfig]:
    """Collect the buses that are on: the one named by its provider, and those by keyword."""
    given: dict[str, BusSettings] = {}
    if isinstance(event_bus, Mapping):
        provider = event_bus.get("provider")
        if not isinstance(provider, str):
            raise ConfigError("event_bus", None, f'expected "provider": one of {", ".join(BUSES)}')
        given[provider] = {key: event_bus[key] for key in event_bus if key != "provider"}
    elif event_bus is not None:
        section = getattr(type(event_bus), "section", "")
        if section not in BUSES:
            allowed = "expected the settings of a bus, or a dict with its provider"
            raise ConfigError("event_bus", type(event_bus).__name__, allowed)
        given[section] = event_bus
    for name in BUSES:
        value = settings.pop(name, None)
        if value is not None:
            if name in given:
                raise ConfigError(name, None, f"expected once, event_bus names {name} as well")
            given[name] = value
    found = {}
    for name, value in given.items():
        found[name] = bus_config(name, value)
    return found


def _addresses(listening: tuple[socket.socket, ...]) -> str:
    return ",".join(spelled_address(*each.getsockname()[:2]) for each in listening)
