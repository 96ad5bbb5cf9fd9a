"""Responses written to the journal of an outbox, without a server."""

from collections.abc import Awaitable, Callable

from tardis_machine.publish.outbox import Outbox, ResponseJournal

Start = Callable[..., Awaitable[Outbox]]


def respond(outbox: Outbox, *, flow: str = "http-replay") -> ResponseJournal:
    """Open the journal of a response."""
    found = outbox.response(
        flow=flow,
        request_id="request-1",
        session_id="session-1",
        transport="http",
        route="/replay-normalized",
        origin="replay",
    )
    assert found is not None
    return found


async def write(journal: ResponseJournal, ndjson: bytes, lines: int = 100) -> None:
    """Write a response to the journal in batches of so many lines, at the pace that it accepts."""
    parts = ndjson.splitlines(keepends=True)
    for start in range(0, len(parts), lines):
        batch = parts[start : start + lines]
        await journal.append(b"".join(batch), len(batch))
