"""`/ws-replay`: clients of exchanges get history instead."""

import asyncio
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import WSMsgType

from tardis_machine.exchanges import catalog
from tardis_machine.history.filters import Filter
from tardis_machine.replays.requests import Request, replay_options
from tardis_machine.server.native import NoSubscriptionsError, _Replay
from tests.support.native import FROM, TO, TRADES, connect, recorded, replayed, url
from tests.support.served import Served, Start
from tests.support.servers.exchange import PATIENCE_S
from tests.support.servers.tardis_api import Fault, TardisApi
from tests.support.waiting import until

OPTIONS = {"exchange": "bitmex", "from": FROM, "to": TO}


async def test_what_is_subscribed_to_is_replayed(served: Served) -> None:
    socket = await connect(served, TRADES, {"op": "subscribe", "args": ["quote:XBTUSD"]})
    found, code, reason = await replayed(socket)
    assert found == recorded("bitmex", Filter("quote", ("XBTUSD",)), Filter("trade", ("XBTUSD",)))
    assert found
    assert (code, reason) == (1000, "WS replay finished")


async def test_no_symbols_are_all_symbols(served: Served) -> None:
    found, _, _ = await replayed(await connect(served, {"op": "subscribe", "args": ["trade"]}))
    assert found == recorded("bitmex", Filter("trade"))


async def test_all_asks_for_everything(served: Served) -> None:
    socket = await connect(served, {"op": "subscribe", "args": ["trades:XBTUSD"]}, all="true")
    assert await replayed(socket) == (recorded("bitmex"), 1000, "WS replay finished")


async def test_exact_replay_has_the_messages_between_from_and_to(served: Served) -> None:
    border = {"from": "2024-03-01T00:00:30.5Z", "to": "2024-03-01T00:00:50.123456Z"}
    socket = await connect(served, TRADES, **border, exact="true")
    messages, code, _ = await replayed(socket)
    assert code == 1000
    ends = (b"2024-03-01T00:00:30.5", b"2024-03-01T00:00:50.123456")
    trades = Filter("trade", ("XBTUSD",))
    assert messages == recorded("bitmex", trades, first=ends[0], end=ends[1])
    assert 0 < len(messages) < len(recorded("bitmex", trades))


async def test_range_of_no_length_closes_as_finished(served: Served) -> None:
    sockets = [
        await connect(served, TRADES, to=FROM),
        await connect(served, TRADES, to=FROM, speed="1"),
        await connect(served, TRADES, to=FROM, session="one"),
        await connect(served, TRADES, to=FROM, session="one"),
    ]
    for result in await asyncio.gather(*map(replayed, sockets)):
        assert result == ([], 1000, "WS replay finished")


@pytest.mark.parametrize("said", [(), ("not JSON", {"op": "help"})], ids=["silent", "unrecognised"])
async def test_connection_without_subscription_closes_its_session(
    served: Served, said: tuple[Any, ...]
) -> None:
    sockets = [
        await connect(served, *said),
        await connect(served, *said, all="false"),
        await connect(served, *said, session="one"),
        await connect(served, TRADES, session="one"),
    ]
    for found, code, reason in await asyncio.gather(*map(replayed, sockets)):
        assert (found, code) == ([], 1011)
        assert reason.startswith("No subscriptions received for bitmex: ")
        assert reason.endswith("&all=true for everything")


async def test_silent_connection_that_leaves_in_time_closes_no_session(served: Served) -> None:
    silent = await connect(served, session="one")
    staying = await connect(served, TRADES, session="one")
    await silent.close()
    found, code, _ = await replayed(staying)
    assert (found, code) == (recorded("bitmex", Filter("trade", ("XBTUSD",))), 1000)


async def test_reason_of_missing_subscription_fits_into_a_close_frame() -> None:
    longest = max(catalog.CHANNELS, key=len)
    assert len(str(NoSubscriptionsError(longest)).encode()) <= 123


async def test_whatever_else_is_said_does_no_harm(served: Served) -> None:
    socket = await connect(
        served,
        *("", "not JSON", "[[[[", '{"op":"subscribe","args":7}', "\x00"),
        *([1, 2], None, {"op": "unsubscribe", "args": ["trade:XBTUSD"]}, {"op": "help"}),
        TRADES,
    )
    await socket.send_bytes(b"\xff\xfe")
    found = [(await socket.receive()).data.encode()]
    await socket.send_json({"op": "subscribe", "args": ["quote:XBTUSD"]})
    await socket.send_str("too late")
    rest, code, _ = await replayed(socket)
    assert found + rest == recorded("bitmex", Filter("trade", ("XBTUSD",)))
    assert code == 1000


async def test_channel_that_is_not_recorded_closes_its_session_and_is_named(
    served: Served,
) -> None:
    typo = {"op": "subscribe", "args": ["trades:XBTUSD"]}
    sockets = [
        await connect(served, typo),
        await connect(served, TRADES, typo),
        await connect(served, typo, TRADES, session="one"),
        await connect(served, TRADES, session="one"),
    ]
    for found, code, reason in await asyncio.gather(*map(replayed, sockets)):
        assert (found, code) == ([], 1011)
        assert reason.startswith("bitmex has no recordings of trades: expected any of ")


async def test_whoever_comes_as_the_last_of_a_session_leaves_begins_another() -> None:
    ended: list[bool] = []
    replay = _Replay(cast("Any", None), lambda: ended.append(replay.started))
    leaving = cast("Any", SimpleNamespace(gone=False, options=replay_options(Request(OPTIONS))))
    replay.begin()
    replay.join(leaving)
    replay.leave(leaving)
    assert ended == [True]
    assert replay._running is not None
    with pytest.raises(asyncio.CancelledError):
        await replay._running
    assert ended == [True]


async def test_a_session_is_replayed_together(served: Served) -> None:
    bitmex = await connect(served, TRADES, session="one")
    deribit = await connect(
        served,
        {"method": "public/subscribe", "params": {"channels": ["trades.BTC-PERPETUAL.raw"]}},
        exchange="deribit",
        session="one",
    )
    other = await connect(served, TRADES, session="two")
    results = await asyncio.gather(*map(replayed, (bitmex, deribit, other)))
    assert results[0][0] == recorded("bitmex", Filter("trade", ("XBTUSD",)))
    assert results[1][0] == recorded("deribit", Filter("trades", ("BTC-PERPETUAL",)))
    assert results[2][0] == results[0][0]
    assert [code for _, code, _ in results] == [1000] * 3
    ended = served.machine.metrics.responses.labels("/ws-replay", "finished")
    assert ended._value.get() == 2


async def test_a_session_s_connections_are_in_step(served: Served) -> None:
    """What is later goes out later, to whichever connection: two quick readers see it so."""
    sockets = [await connect(served, TRADES, session="step") for _ in range(2)]
    order: list[int] = []

    async def read(number: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await sockets[number].receive()).type is WSMsgType.TEXT:
                order.append(number)

    await asyncio.gather(read(0), read(1))
    total = len(recorded("bitmex", Filter("trade", ("XBTUSD",))))
    assert order.count(0) == order.count(1) == total


async def test_one_that_leaves_does_not_end_the_others(served: Served) -> None:
    leaving = await connect(served, TRADES, session="s")
    staying = await connect(served, TRADES, session="s")
    await leaving.close()
    found, code, _ = await replayed(staying)
    assert (len(found), code) == (len(recorded("bitmex", Filter("trade", ("XBTUSD",)))), 1000)


async def test_what_is_for_one_that_has_left_on_the_way_does_not_count_as_sent(
    served: Served,
) -> None:
    leaving = await connect(served, TRADES, session="s", speed="30")
    staying = await connect(served, TRADES, session="s", speed="30")
    await leaving.receive()
    await leaving.close()
    found, _, _ = await replayed(staying)
    sent = served.machine.metrics.messages.labels("/ws-replay")._value.get()
    assert len(found) < sent < 2 * len(found)


async def test_when_all_have_left_nothing_is_replayed(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    never = threading.Event()
    tardis_api.fail(*[Fault(wait_for=never)] * 4)
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    active = served.machine.metrics.active.labels("/ws-replay")
    socket = await connect(served, TRADES)
    await until(lambda: active._value.get() == 1)
    await socket.close()
    await until(lambda: active._value.get() == 0)
    never.set()


async def test_stopping_server_closes_with_1001(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    socket = await connect(served, TRADES, speed="1")
    assert (await socket.receive()).type is WSMsgType.TEXT
    stopping = asyncio.ensure_future(served.machine.stop())
    _, code, _ = await replayed(socket)
    await stopping
    assert code == 1001
    stopped = served.machine.metrics.responses.labels("/ws-replay", "stopped")
    await until(lambda: stopped._value.get() == 1)
    told = [record for record in caplog.records if record.message == "response ended"]
    sent = served.machine.metrics.messages.labels("/ws-replay")._value.get()
    assert [record.__dict__["messages"] for record in told] == [sent]
    assert sent > 0


async def test_a_client_that_stalls_is_cut(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    # More than sockets hold.
    long = b'2024-03-01T00:00:00.0000000Z {"table":"trade","is":"%b"}\n' % (b"x" * 100_000)
    tardis_api.lines = lambda *_: long * 200
    served = await start(
        sample_data=False,
        endpoint=tardis_api.endpoint,
        cache_dir=tmp_path,
        stall_timeout_s=0.4,
    )
    metrics = served.machine.metrics
    async with served.client.ws_connect(url(served, all="true")):
        await until(lambda: metrics.responses.labels("/ws-replay", "stalled")._value.get() == 1)
    assert metrics.limited.labels("stall_timeout_s")._value.get() == 1


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"exchange": "bitmax"}, 'invalid "exchange": "bitmax". did you mean bitmex?'),
        ({"from": "yesterday"}, 'invalid "from": "yesterday"'),
        ({"to": "2024-02-29"}, 'invalid "from" and "to"'),
        ({"all": "yes"}, 'invalid "all": yes, expected true or false'),
        ({"exact": "1"}, 'invalid "exact": 1, expected true or false'),
    ],
)
async def test_a_bad_query_closes_at_once(
    served: Served, query: dict[str, str], reason: str
) -> None:
    _, code, text = await replayed(await connect(served, **query))
    assert code == 1011
    assert text.startswith(reason)


async def test_an_error_of_history_closes_every_connection(
    start: Start, tardis_api: TardisApi, tmp_path: Path
) -> None:
    served = await start(sample_data=False, endpoint=tardis_api.endpoint, cache_dir=tmp_path)
    tardis_api.fail(*[Fault(status=401, body="no key")] * 8)
    sockets = [await connect(served, TRADES, session="s") for _ in range(2)]
    for _, code, text in await asyncio.gather(*map(replayed, sockets)):
        assert code == 1011
        assert "no key" in text
