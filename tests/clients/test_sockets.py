"""Every WebSocket client gets every message, whatever its manners."""

import asyncio

import pytest

from tests.clients.door import ENDLESS, Door, Open
from tests.clients.manners import LATE, LATE_AND_SLOW, PROMPT, SLOW, Manners, Reader
from tests.clients.sockets import READERS
from tests.support.waiting import wait_until

PATH = "/ws-replay-normalized"
FINISHED = "WS replay-normalized finished"

each_client = pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())


@each_client
@pytest.mark.parametrize(
    "manners",
    [PROMPT, SLOW, LATE, LATE_AND_SLOW],
    ids=["prompt", "slow", "late", "late and slow"],
)
async def test_whole_answers(door: Door, body: bytes, read: Reader, manners: Manners) -> None:
    answer = await read(door.ws(PATH), manners, door.after("finished"))
    assert answer.body == body
    assert answer.code == 1000
    assert answer.reason in {FINISHED, ""}  # not every client tells


@each_client
async def test_leaving_politely_is_no_failure(door: Door, body: bytes, read: Reader) -> None:
    left, failed = door.after("disconnected"), door.ended("failed")
    answer = await read(door.ws(PATH, ENDLESS), Manners(leave_after=20), lambda: None)
    assert len(answer.messages) == 20
    await asyncio.to_thread(left)
    assert door.ended("failed") == failed
    assert "Traceback" not in door.log.read_text()


@each_client
async def test_stopping_server_closes_with_1001(opened: Open, read: Reader) -> None:
    door = opened("--sample-data")
    reading = asyncio.ensure_future(read(door.ws(PATH, ENDLESS), SLOW, lambda: None))
    await asyncio.to_thread(
        wait_until, lambda: door.metric("tardis_machine_messages_total") > 0, "nothing comes"
    )
    await asyncio.to_thread(door.stop)
    answer = await reading
    assert answer.messages
    assert answer.code == 1001
    assert "Traceback" not in door.log.read_text()
