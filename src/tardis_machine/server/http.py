"""The HTTP port: replays as NDJSON, health and metrics."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aiohttp import HttpVersion11, web

from tardis_machine.engine import Written
from tardis_machine.errors import TardisMachineError
from tardis_machine.messages import Message
from tardis_machine.replays import NormalizedReplay, RawMessage, RawReplay
from tardis_machine.replays.json_options import read_requests
from tardis_machine.replays.merger import Chunk
from tardis_machine.replays.requests import OptionsError, replay_options
from tardis_machine.server import identity
from tardis_machine.server.answers import failure, status_of, text_of
from tardis_machine.server.limits import BusyError
from tardis_machine.server.outlet import Outlet
from tardis_machine.server.pace import Journal, Replay, poured_by
from tardis_machine.server.services import Services
from tardis_machine.server.start_page import StartPage

log = logging.getLogger(__name__)

SPARE_PATHS: Final = frozenset({"/health-check", "/metrics"})
"""How the server is can be asked even when it has all the connections that it takes."""
_STREAM_TYPE: Final = "application/x-json-stream"
_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
_FLUSH_ON_CLOSE: Final = struct.pack("ii", 0, 0)


class HttpRoutes:
    """Answers the requests of the HTTP port."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._routes = {
            "/replay": self._replay,
            "/replay-normalized": self._replay_normalized,
            "/health-check": self._health_check,
            "/metrics": self._metrics,
            "": self._start_page,
        }
        self._page = StartPage(services.history.source)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, and tell its id."""
        asked = identity.begin()
        response = await self._route(request)
        if not response.prepared:
            response.headers.update(asked.headers)
        return response

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        gate = self._services.gate
        preflight = gate.preflight(request)
        if preflight is not None:
            return preflight
        refused = gate.refusal(request)
        if refused is not None:
            return refused
        path = request.path.removesuffix("/")
        handler = self._routes.get(path) if request.method == "GET" else None
        if handler is None:
            known = ", ".join(each or "/" for each in self._routes)
            return failure(404, f"no such resource: expected GET of {known}")
        try:
            response = await handler(request)
        except TardisMachineError as error:
            self._services.metrics.responses.labels(path, "refused").inc()
            _report(error, path, cut=False)
            response = failure(status_of(error), str(error))
            if isinstance(error, BusyError):
                response.headers["Retry-After"] = str(error.retry_after_s)
        if not response.prepared:
            response.headers.update(gate.sharing(request))
        return response

    async def _replay(self, request: web.BaseRequest) -> web.StreamResponse:
        services = self._services
        strict = services.config.strict
        requests = read_requests(request.query.get("options"))
        if len(requests) != 1:
            raise OptionsError("invalid options: a raw replay takes one object, not an array")
        options = replay_options(requests[0], strict=strict)
        with services.limits.replay():
            replay = RawReplay[RawMessage | None](options, history=services.history, strict=strict)
            return await self._stream(request, replay, self._outlet(request), _counted(replay))

    async def _replay_normalized(self, request: web.BaseRequest) -> web.StreamResponse:
        services = self._services
        strict = services.config.strict
        options = services.limits.replay_normalized(request.query.get("options"), strict=strict)
        with services.limits.replay():
            journal = services.journal(
                options, flow="http-replay", transport="http", route="/replay-normalized"
            )
            replay = NormalizedReplay[Message](options, history=services.history, strict=strict)
            outlet = self._outlet(request)
            pour = None
            if replay.can_pour:
                pour = outlet.make_pour("chunks" if request.version >= HttpVersion11 else "nothing")
            chunks = replay.chunks(poured_by(pour, journal))
            return await self._stream(request, replay, outlet, chunks, journal)

    def _outlet(self, request: web.BaseRequest) -> Outlet:
        return Outlet(request, self._services.limits.config.stall_timeout_s)

    async def _stream(
        self,
        request: web.BaseRequest,
        replay: Replay,
        outlet: Outlet,
        batches: Iterator[Chunk],
        journal: Journal | None = None,
    ) -> web.StreamResponse:
        route = request.path.removesuffix("/")
        services = self._services
        headers = services.gate.sharing(request) | identity.current().headers
        headers |= services.source_headers
        response = web.StreamResponse(headers=headers)
        response.content_type = _STREAM_TYPE
        if request.version < HttpVersion11:
            response.force_close()  # it has no other end

        async def send(data: Written) -> None:
            if not response.prepared:
                _closes_by(request, _RESET_ON_CLOSE)
                await response.prepare(request)
                request.writer.send_headers()
            if outlet.pour is not None:
                await outlet.pour_out(outlet.pour, data)
                return
            if not data:
                return  # an empty chunk would be the last
            if request.version >= HttpVersion11:
                outlet.write(b"%x\r\n" % len(data), data, b"\r\n")
            else:
                outlet.write(data)
            await outlet.drain()

        task = asyncio.current_task()
        assert task is not None
        try:
            with services.under_way(task):
                async with outlet.watched():
                    await services.run(route, replay, batches, send, outlet, journal)
        except ConnectionError:
            return response
        except asyncio.CancelledError:
            if not services.ending or response.prepared:
                _cut(request)
                raise
            task.uncancel()
            return failure(503, "the server is shutting down")
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must see the cut
            _report(error, route, cut=response.prepared)
            if not response.prepared:
                return failure(status_of(error), text_of(error))
            _cut(request)
            return response
        with contextlib.suppress(ConnectionError):  # a client may go when it has what it wanted
            if not response.prepared:
                await response.prepare(request)
            _closes_by(request, _FLUSH_ON_CLOSE)
            await response.write_eof()
        return response

    async def _health_check(self, request: web.BaseRequest) -> web.StreamResponse:
        del request
        outbox = self._services.outbox
        body: dict[str, object] = {
            "status": "Healthy",
            "uptimeHours": round((time.monotonic() - self._services.started) / 3600, 4),
            "timestampMs": time.time_ns() // 1_000_000,
            "memoryInfo": _memory(),
        }
        if outbox is not None:
            body["publishing"] = outbox.health()
            unhealthy = outbox.unhealthy()
            if unhealthy:
                body["status"] = "Degraded"
                body["unhealthy"] = unhealthy
        return web.json_response(body)

    async def _start_page(self, request: web.BaseRequest) -> web.StreamResponse:
        del request
        return self._page.answer()

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        del request
        metrics, cluster = self._services.metrics, self._services.cluster_metrics
        body = metrics.render() if cluster is None else await cluster.render()
        return web.Response(body=body, headers={"Content-Type": metrics.content_type})


def _counted(replay: RawReplay[object]) -> Iterator[Chunk]:
    before = 0
    for data in replay.batches():
        yield Chunk(data, replay.messages - before)
        before = replay.messages


def _cut(request: web.BaseRequest) -> None:
    """Close without the last chunk: what was sent arrives, and the client sees it was cut."""
    transport = request.transport
    if transport is None:
        return
    if request.version >= HttpVersion11:
        transport.close()
    else:
        transport.abort()


def _closes_by(request: web.BaseRequest, linger: bytes) -> None:
    """Have a close tell a client of HTTP/1.0 whether its answer is whole, whoever closes.

    It knows no chunks and takes any close for the end: only a reset tells that it is none, be it
    that the client stalled, or that this process was killed.
    """
    transport = request.transport
    if transport is not None and request.version < HttpVersion11:
        with contextlib.suppress(OSError):  # gone meanwhile
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )


def _report(error: Exception, route: str, *, cut: bool) -> None:
    event = "response cut" if cut else "response refused"
    details = {"route": route, "error": str(error), **identity.current().logged}
    if isinstance(error, TardisMachineError):
        log.warning(event, extra=details)
    else:
        log.error(event, extra=details, exc_info=error)


def _memory() -> dict[str, float]:
    """Tell what this process takes; a heap of JavaScript it has not."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else _KIB
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        held = pages * os.sysconf("SC_PAGESIZE")
    except OSError:  # no procfs: the peak is the best there is
        held = peak
    return {"rssMB": round(held / _MIB, 1), "peakRssMB": round(peak / _MIB, 1)}
