"""Every HTTP client gets every byte, and sees when it did not."""

import asyncio
import json
from typing import Any

import pytest

from tests.clients.door import ENDLESS, OPTIONS, START, Door, Open
from tests.clients.http import HTTP_READERS, CutError, HttpReader
from tests.clients.manners import PROMPT, SLOW, Manners
from tests.support.waiting import wait_until

PATH = "/replay-normalized"
RAW: dict[str, Any] = {"exchange": "deribit", "from": START, "to": "2024-03-01T00:01"}

each_client = pytest.mark.parametrize("read", HTTP_READERS.values(), ids=HTTP_READERS.keys())


@each_client
@pytest.mark.parametrize("manners", [PROMPT, SLOW], ids=["prompt", "slow"])
async def test_whole_answers(door: Door, body: bytes, read: HttpReader, manners: Manners) -> None:
    assert await read(door.http(PATH), manners) == body


async def test_raw_answers_agree(door: Door) -> None:
    url = door.http("/replay", RAW)
    answers = [await read(url, PROMPT) for read in HTTP_READERS.values()]
    assert len(set(answers)) == 1
    assert json.loads(answers[0].splitlines()[0])["localTimestamp"].startswith(START)


async def test_many_at_once_agree(door: Door, body: bytes) -> None:
    readers = [*HTTP_READERS.values()] * 3
    answers = await asyncio.gather(*(read(door.http(PATH, OPTIONS), PROMPT) for read in readers))
    assert set(answers) == {body}


@each_client
async def test_leaving_frees_the_server(door: Door, read: HttpReader) -> None:
    left = door.after("disconnected")
    received = await read(door.http(PATH, ENDLESS), Manners(leave_after=10_000))
    assert len(received) >= 10_000
    await asyncio.to_thread(left)
    assert "Traceback" not in door.log.read_text()


@each_client
async def test_a_server_that_stops_is_seen(opened: Open, read: HttpReader) -> None:
    door = opened("--sample-data")
    reading = asyncio.ensure_future(read(door.http(PATH, ENDLESS), SLOW))
    await asyncio.to_thread(
        wait_until, lambda: door.metric("tardis_machine_messages_total") > 0, "nothing comes"
    )
    await asyncio.to_thread(door.stop)
    with pytest.raises(CutError) as caught:
        await reading
    assert caught.value.received.startswith(b'{"type":"book_snapshot"')
    assert "Traceback" not in door.log.read_text()
