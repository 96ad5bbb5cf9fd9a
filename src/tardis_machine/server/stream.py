"""`/ws-stream-normalized`: live streams, pushed as they come; a slow client slows no other."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from tardis_machine.replays.requests import StreamNormalizedOptions
from tardis_machine.server import identity
from tardis_machine.server.services import Services
from tardis_machine.server.session import OK, Close, Session

log = logging.getLogger(__name__)

STREAM_NORMALIZED: Final = "/ws-stream-normalized"


class _Client:
    """A listener of live streams whose messages go out at once, or it is closed."""

    def __init__(
        self, session: Session, services: Services, options: Sequence[StreamNormalizedOptions]
    ) -> None:
        self.with_disconnects = any(each.with_disconnect_messages for each in options)
        self.with_errors = any(each.with_error_messages for each in options)
        self.total = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._session = session
        self._messages = services.metrics.messages.labels(STREAM_NORMALIZED)
        self._bytes = services.metrics.bytes.labels(STREAM_NORMALIZED)

    def send(self, data: bytes, count: int) -> None:
        """Push to the client; raises if it does not keep up."""
        self._session.push(data)
        self.total += count
        self._messages.inc(count)
        self._bytes.inc(len(data))

    def end(self, error: Exception) -> None:
        """Close with what went wrong."""
        if not self.ended.done():
            self.ended.set_exception(error)


async def stream_normalized(
    services: Services, request: web.BaseRequest, session: Session
) -> Close:
    """Stream until the client goes, falls behind, or the exchange fails for good."""
    asked = request.query.get("options")
    options = services.limits.stream_normalized(asked, strict=services.config.strict)
    client = _Client(session, services, options)
    metrics = services.metrics
    began = time.monotonic()
    outcome = "disconnected"
    joined = services.hub.join(options, client)
    metrics.active.labels(STREAM_NORMALIZED).inc()
    try:
        await client.ended
    except ConnectionError:
        raise
    except Exception:
        outcome = "failed"
        raise
    except asyncio.CancelledError:
        outcome = services.interrupted(session.outlet)
        raise
    finally:
        joined.leave()
        metrics.active.labels(STREAM_NORMALIZED).dec()
        metrics.responses.labels(STREAM_NORMALIZED, outcome).inc()
        log.info(
            "response ended",
            extra={
                "route": STREAM_NORMALIZED,
                "outcome": outcome,
                "messages": client.total,
                "seconds": round(time.monotonic() - began, 3),
                **identity.current().logged,
            },
        )
    return Close(OK, "WS stream-normalized finished")
