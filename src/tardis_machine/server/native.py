"""`/ws-replay`: history in the exchange's own protocol, to clients that were made for it.

A client sends what it would send to the exchange; what it subscribes to is replayed. Connections
that name the same session are replayed together, in the order of local time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Final, Protocol

import msgspec
from aiohttp import web

from tardis_machine import exchanges
from tardis_machine.errors import TardisMachineError
from tardis_machine.exchanges import catalog
from tardis_machine.history.filters import Filter, normalize
from tardis_machine.replays import MergedRawReplay, NativeReplay
from tardis_machine.replays.requests import (
    OptionsError,
    ReplayOptions,
    Request,
    common_speed,
    replay_options,
)
from tardis_machine.server import identity
from tardis_machine.server.frames import recorded_frames, text_frames
from tardis_machine.server.services import Services
from tardis_machine.server.session import OK, Close, Session
from tardis_machine.waiting import until_done

log = logging.getLogger(__name__)

REPLAY: Final = "/ws-replay"
START_AFTER_S: Final = 2.0
MAX_FILTERS: Final = 10_000
MAX_CLIENTS: Final = 100
_MAX_NAMED: Final = 5
_SEND_BYTES: Final = 64 * 1024
_TURN_S: Final = 0.004
_VALUES: Final[dict[str, object]] = {"speed": float, "waitWhenDataNotYetAvailable": bool | float}
_FINISHED: Final = Close(OK, "WS replay finished")
_IN_A_CLUSTER: Final = (
    '"session" joins connections of one process, and this server has several: '
    "start it without --cluster-mode"
)


class SubscriptionsError(TardisMachineError):
    """More subscriptions than one connection may have."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        super().__init__(f"{exchange}: expected at most {MAX_FILTERS} subscriptions")


class NoSubscriptionsError(TardisMachineError):
    """A connection that has subscribed to nothing when its session starts."""

    def __init__(self, exchange: str) -> None:
        self.exchange = exchange
        super().__init__(
            f"No subscriptions received for {exchange}: subscribe within {START_AFTER_S:g} s, "
            "or connect with &all=true for everything"
        )


class _Client:
    """One connection: what it has subscribed to, and its way out."""

    def __init__(self, session: Session, options: ReplayOptions, *, takes_all: bool) -> None:
        self.session = session
        self.gone = False
        self.done: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        self.options = options
        self._takes_all = takes_all
        self._filters: list[Filter] = []
        self._unrecorded: list[str] = []
        self._read = exchanges.get(options.exchange).subscriptions
        self._started = False
        if self._read is None:
            raise OptionsError(
                f"native subscriptions of {options.exchange} are not known; "
                "use /replay with filters instead"
            )
        session.receive = self._receive

    def start(self) -> ReplayOptions:
        """Take no more subscriptions; return the options with what the client subscribed to.

        Raises NoSubscriptionsError if that is nothing, OptionsError if a channel is not recorded.
        """
        self._started = True
        if self._takes_all:
            return self.options
        name = self.options.exchange
        if self._unrecorded:
            raise OptionsError(
                f"{name} has no recordings of {', '.join(self._unrecorded)}: "
                f"expected any of {', '.join(catalog.channels(name))}"
            )
        if not self._filters:
            raise NoSubscriptionsError(name)
        asked = normalize(self._filters)
        return msgspec.structs.replace(self.options, filters=tuple(asked))

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(_FINISHED)

    def _receive(self, text: str | bytes) -> None:
        """Note what a message subscribes to; whatever else it says is for the exchange to know."""
        name = self.options.exchange
        if self._started:
            log.debug("message after the replay began ignored", extra={"exchange": name})
            return
        assert self._read is not None
        try:
            filters = self._read(msgspec.json.decode(text)) or ()
        except Exception as error:  # noqa: BLE001 - whatever a client sends
            log.debug("not a subscription", extra={"exchange": name, "error": str(error)})
            return
        recorded = catalog.channels(name)
        for each in filters:
            if each.channel not in recorded:
                extra = {"exchange": name, "channel": each.channel}
                log.warning("channel is not recorded", extra=extra)
                if len(self._unrecorded) < _MAX_NAMED:
                    self._unrecorded.append(str(each.channel or "what was subscribed to"))
            else:
                # To subscribe without symbols is to subscribe to all.
                self._filters.append(Filter(each.channel, each.symbols or None))
        if len(self._filters) > MAX_FILTERS:
            self.fail(SubscriptionsError(name))


class NativeReplays:
    """The sessions of a process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sessions: dict[str, _Replay] = {}

    async def __call__(self, request: web.BaseRequest, session: Session) -> Close:
        """Replay to one connection, with the others of its session."""
        name = request.query.get("session") or ""
        if name and self._services.cluster_metrics is not None:
            raise OptionsError(_IN_A_CLUSTER)
        client = _Client(session, _options(request), takes_all=_flag(request, "all"))
        replay = self._sessions.get(name) if name else None
        if replay is None or replay.started:
            replay = _Replay(self._services, lambda: self._sessions.pop(name, None))
            if name:
                self._sessions[name] = replay
            replay.begin()
        replay.join(client)
        try:
            return await client.done
        finally:
            replay.leave(client)


Step = Iterable[tuple[int, bytes, int]]
"""The number of a connection, frames for it, how many they are; in the order of local time."""


class _Source(Protocol):
    """What is replayed to a session, as frames."""

    @property
    def malformed(self) -> int: ...

    def due_in(self) -> float: ...

    def pending(self) -> "Future[object] | None": ...

    def steps(self) -> Iterator[Step]: ...

    def close(self) -> None: ...


class _Sole:
    """The replay of a session with one connection: nothing has to be merged."""

    def __init__(self, replay: NativeReplay) -> None:
        self.malformed = 0
        self.due_in = replay.due_in
        self.pending = replay.pending
        self.close = replay.close
        self._replay = replay

    def steps(self) -> Iterator[Step]:
        for block in self._replay.blocks():
            frames, count, malformed = recorded_frames(block)
            self.malformed += malformed
            yield ((0, frames, count),)


class _Several:
    """The replays of a session, in step: what is later goes out later, to whichever connection."""

    def __init__(self, replay: MergedRawReplay) -> None:
        self._replay = replay
        self.due_in = replay.due_in
        self.pending = replay.pending
        self.close = replay.close

    @property
    def malformed(self) -> int:
        return self._replay.malformed

    def steps(self) -> Iterator[Step]:
        for step in self._replay.steps():
            yield (
                (index, text_frames(lines), lines.count(b"\n")) for index, lines in step.by_stream()
            )


class _Replay:
    """One session: it waits for connections and their subscriptions, then replays to all."""

    def __init__(self, services: Services, on_start: Callable[[], object]) -> None:
        self.started = False
        self._services = services
        self._on_start = on_start
        self._clients: list[_Client] = []
        self._sent = 0
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the clock: it is the first connection that does."""
        self._running = asyncio.create_task(self._run())

    def join(self, client: _Client) -> None:
        """Replay to this connection too."""
        others = [each.options for each in self._clients if not each.gone]
        common_speed([*others, client.options], '"speed"')
        if len(self._clients) >= MAX_CLIENTS:
            raise OptionsError(f"a session has at most {MAX_CLIENTS} connections")
        self._clients.append(client)

    def leave(self, client: _Client) -> None:
        """Replay to the others only; to nobody, not at all."""
        client.gone = True
        if self._running is not None and all(each.gone for each in self._clients):
            if not self.started:
                self._start()  # whoever comes now begins another
            self._running.cancel()

    async def _run(self) -> None:
        try:
            await asyncio.sleep(START_AFTER_S)
            self._start()
            with self._services.limits.replay():
                await self._replay()
        except asyncio.CancelledError:
            for client in self._clients:
                client.done.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - each client is told
            for client in self._clients:
                client.fail(error)
        finally:
            if not self.started:
                self._start()
        for client in self._clients:
            client.finish()

    def _start(self) -> None:
        self.started = True
        self._on_start()

    async def _replay(self) -> None:
        services = self._services
        clients = [client for client in self._clients if not client.gone]
        # An error of one connection ends them all: they want the merged streams, not some of them.
        options = [client.start() for client in clients]
        replay: _Source
        if len(options) == 1:
            replay = _Sole(NativeReplay(options[0], history=services.history))
        else:
            replay = _Several(MergedRawReplay(options, history=services.history))
        metrics = services.metrics
        began = time.monotonic()
        outcome = "disconnected"
        metrics.active.labels(REPLAY).inc()
        try:
            await self._deliver(replay, clients)
            outcome = "finished"
        except Exception:
            outcome = "failed"
            raise
        except asyncio.CancelledError:
            outcome = services.interrupted(*(client.session.outlet for client in clients))
            raise
        finally:
            replay.close()
            metrics.malformed.labels(REPLAY).inc(replay.malformed)
            metrics.active.labels(REPLAY).dec()
            metrics.responses.labels(REPLAY, outcome).inc()
            log.info(
                "response ended",
                extra={
                    "route": REPLAY,
                    "outcome": outcome,
                    "clients": len(clients),
                    "messages": self._sent,
                    "seconds": round(time.monotonic() - began, 3),
                    **identity.current().logged,
                },
            )

    async def _deliver(self, replay: "_Source", clients: list[_Client]) -> None:
        services = self._services
        messages = services.metrics.messages.labels(REPLAY)
        sent_bytes = services.metrics.bytes.labels(REPLAY)
        written = 0

        async def drain() -> None:
            nonlocal written
            written = 0
            for client in clients:
                if not client.gone:
                    with contextlib.suppress(ConnectionError):  # its own end notices it, too
                        await client.session.drain()

        turn_ends = 0.0
        steps = replay.steps()
        while True:
            while (seconds := replay.due_in()) > 0:
                await drain()
                await asyncio.sleep(seconds)
                turn_ends = 0.0
            while (waiting := replay.pending()) is not None and not waiting.done():
                await drain()
                await until_done(waiting)
                turn_ends = 0.0
            if services.turns.contended or time.monotonic() >= turn_ends:
                await services.turns.take()
                turn_ends = time.monotonic() + _TURN_S
            try:
                step = next(steps, None)
            except Exception:
                await drain()
                raise
            if step is None:
                break
            for index, frames, count in step:
                client = clients[index]
                if client.gone:
                    continue
                try:
                    client.session.write(frames)
                except ConnectionError:
                    client.gone = True
                    continue
                written += len(frames)
                sent_bytes.inc(len(frames))
                self._sent += count
                messages.inc(count)
            if written >= _SEND_BYTES:
                await drain()
        await drain()


def _options(request: web.BaseRequest) -> ReplayOptions:
    """Read the range from the query, as the options of a raw replay."""
    asked: dict[str, object] = {
        name: request.query.get(name) for name in ("exchange", "from", "to", *_VALUES)
    }
    for name, kind in _VALUES.items():
        # In an address a number is text; what is none stays so, and is refused as such.
        with contextlib.suppress(msgspec.DecodeError):
            asked[name] = msgspec.json.decode(request.query.get(name, ""), type=kind)
    asked["exact"] = _flag(request, "exact")
    return replay_options(Request(asked))


def _flag(request: web.BaseRequest, name: str) -> bool:
    """Read a flag from the query; false if it is left out."""
    text = request.query.get(name, "false")
    if text not in {"true", "false"}:
        raise OptionsError(f'invalid "{name}": {text:.40}, expected true or false')
    return text == "true"
