"""Replays of sample data over a websocket and by the library, to compare."""

import json
from typing import Any

from aiohttp import WSMsgType

from tardis_machine.history import sample
from tardis_machine.messages import Message
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.json_options import read_requests
from tardis_machine.replays.requests import replay_normalized_options
from tests.support.served import Served

OPTIONS: dict[str, Any] = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:02",
    "dataTypes": ["trade", "book_change"],
}


def library(options: Any) -> bytes:
    """Return the messages that the library replays for the options of a request."""
    with sample.sample_history() as history:
        replay = NormalizedReplay[Message](
            replay_normalized_options(read_requests(json.dumps(options))), history=history
        )
        return b"".join(batch.data for batch in replay.batches())


async def frames(served: Served, options: Any) -> tuple[list[str], int | None, str]:
    """Return the messages of a websocket replay, and the code and reason of its close."""
    found = []
    url = served.ws("/ws-replay-normalized", options)
    async with served.client.ws_connect(url, max_msg_size=0) as socket:
        while True:
            message = await socket.receive()
            if message.type is WSMsgType.TEXT:
                found.append(message.data)
            else:
                assert message.type is WSMsgType.CLOSE
                return found, message.data, message.extra or ""
