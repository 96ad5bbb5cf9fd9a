"""The WebSocket port: which path is served by which endpoint."""

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web

from tardis_machine.messages import ErrorCode, Message
from tardis_machine.messages.control import error_line
from tardis_machine.messages.times import iso_us
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tardis_machine.server import identity
from tardis_machine.server.answers import failure, text_of
from tardis_machine.server.native import REPLAY, NativeReplays
from tardis_machine.server.pace import Journal, poured_by
from tardis_machine.server.services import Services
from tardis_machine.server.session import OK, POLICY, Close, Session
from tardis_machine.server.stream import STREAM_NORMALIZED, stream_normalized

Endpoint = Callable[[web.BaseRequest, Session], Coroutine[Any, Any, Close]]

_REPLAY_NORMALIZED: Final = "/ws-replay-normalized"
_CODES: Final[dict[int | None, ErrorCode]] = {
    401: "SOURCE_AUTH",
    403: "SOURCE_AUTH",
    429: "SOURCE_RATE_LIMIT",
}


class WebSocketRoutes:
    """Answers the connections of the WebSocket port."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._endpoints: dict[str, Endpoint] = {
            _REPLAY_NORMALIZED: self._replay_normalized,
            STREAM_NORMALIZED: partial(stream_normalized, services),
            REPLAY: NativeReplays(services),
        }

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Take one connection to its end."""
        identity.begin()
        services = self._services
        refused = services.gate.refusal(request)
        if refused is not None:
            return refused
        session = Session(request, services)
        if not session.can_begin():
            answer = failure(426, "expected a WebSocket handshake; HTTP is on the port before")
            answer.headers["Upgrade"] = "websocket"
            answer.headers["Connection"] = "Upgrade"
            return answer
        path = request.path.lower()
        if path != "/":
            path = path.removesuffix("/")
        try:
            await session.begin()
        except ConnectionError:  # it has gone already
            return session.response
        endpoint = self._endpoints.get(path, self._unknown)
        await session.run(path, endpoint(request, session))
        return session.response

    async def _unknown(self, request: web.BaseRequest, session: Session) -> Close:
        del request, session
        return Close(POLICY, f"unknown path, expected {', '.join(self._endpoints)}")

    async def _replay_normalized(self, request: web.BaseRequest, session: Session) -> Close:
        services = self._services
        strict = services.config.strict
        options = services.limits.replay_normalized(request.query.get("options"), strict=strict)
        with services.limits.replay():
            journal = services.journal(
                options, flow="ws-replay", transport="ws", route=_REPLAY_NORMALIZED
            )
            try:
                replay = NormalizedReplay[Message](options, history=services.history, strict=strict)
                pour = session.outlet.make_pour("frames") if replay.can_pour else None
                await services.run(
                    _REPLAY_NORMALIZED,
                    replay,
                    replay.chunks(poured_by(pour, journal)),
                    session.send,
                    session.outlet,
                    journal,
                )
            except ConnectionError:
                raise
            except Exception as error:
                if journal is not None:
                    _publish(error, options, journal)
                raise
            finally:
                session.outlet.end_pour()
        return Close(OK, "WS replay-normalized finished")


def _publish(
    error: Exception, options: Sequence[ReplayNormalizedOptions], journal: Journal
) -> None:
    """Tell the buses that a replay ends before its time; its client learns it from the close."""
    status = getattr(error, "status", None)
    names = dict.fromkeys(each.exchange for each in options)
    failed = getattr(error, "exchange", None)
    local = iso_us(time.time_ns() // 1000)
    for name in (failed,) if failed in names else names:
        journal.append_last(error_line(name, local, text_of(error), 1, code=_CODES.get(status)), 1)
