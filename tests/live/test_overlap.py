"""Replacement of a connection before its end, without lost or repeated frames."""

import asyncio
import contextlib
import itertools
import random
from typing import Any

import pytest

from tardis_machine.live import connection, overlap
from tardis_machine.live.overlap import SKEW_S, SUBSCRIBE_S, Overlap, OverlapError
from tests.support.live_messages import BTC
from tests.support.live_streams import streaming
from tests.support.servers.exchange import ScriptedExchange

OLD, NEW = 0, 1


@pytest.mark.parametrize("seed", range(20))
def test_replaced_connection_loses_and_repeats_no_frame(seed: int) -> None:
    chance = random.Random(seed)
    # How late each of three streams comes over each connection.
    lags = [[chance.uniform(0, 0.9 * SKEW_S) for _ in range(3)] for _ in (OLD, NEW)]
    sent = [(number / 10, b"%d:%d" % (number % 3, number)) for number in range(150)]
    arrivals = sorted(
        (at + lags[side][int(frame[:1])], side, frame) for at, frame in sent for side in (OLD, NEW)
    )
    watched, taken, rest = Overlap(), [], iter(arrivals)
    for now, side, frame in rest:
        if side == OLD:
            watched.add_old(frame, now)
            taken.append(frame)
        else:
            watched.add_new(frame, now)
        if watched.is_ready(now):
            break
    assert now >= SUBSCRIBE_S + SKEW_S
    taken += watched.upcoming(now)
    expected = watched.expected(now)
    for _, side, frame in rest:
        if side == NEW:
            if expected.get(frame):
                expected[frame] -= 1
            else:
                taken.append(frame)
    assert not any(expected.values())
    for stream in b"012":
        its = [frame for frame in taken if frame[0] == stream]
        assert its == [frame for _, frame in sent if frame[0] == stream]


def test_equal_frames_are_counted() -> None:
    watched = Overlap()
    watched.add_old(b"a", 0)
    watched.add_new(b"a", 0)
    for now in (SUBSCRIBE_S + 1, SUBSCRIBE_S + 1.1):
        watched.add_old(b"a", now)
    watched.add_new(b"a", SUBSCRIBE_S + 1.2)
    assert watched.is_ready(SUBSCRIBE_S + SKEW_S)
    assert watched.expected(SUBSCRIBE_S + SKEW_S) == {b"a": 1}


@pytest.mark.parametrize("side", [OLD, NEW])
def test_connections_with_different_frames_raise(side: int) -> None:
    watched = Overlap()
    watched.add_new(b"first", 0)
    watched.add_old(b"before it was subscribed", 1)  # is no difference
    (watched.add_old if side == OLD else watched.add_new)(b"sent at 1", SUBSCRIBE_S + 0.1)
    assert not watched.is_ready(SUBSCRIBE_S + SKEW_S - 0.1)
    with pytest.raises(OverlapError, match="sent at 1"):
        watched.is_ready(SUBSCRIBE_S + SKEW_S + 0.2)


def test_overlap_without_common_frames_is_not_ready() -> None:
    watched = Overlap()
    assert not watched.is_ready(1000)
    watched.add_new(b"a", 1000)
    watched.add_old(b"a", 1000)
    assert not watched.is_ready(2000)


def test_overlap_with_too_many_frames_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_MAX_FRAMES", 10)
    watched = Overlap()
    for number in range(11):
        watched.add_old(b"%d" % number, 0)
    with pytest.raises(OverlapError, match="more than 10"):
        watched.is_ready(0)


def trade(number: int) -> dict[str, Any]:
    data = {"e": "trade", "E": number, "T": number, "s": BTC, "t": number, "p": "1", "q": "2"}
    return {"stream": f"{BTC.lower()}@trade", "data": data | {"X": "MARKET", "m": True}}


@pytest.mark.parametrize("ahead", ["old", "new", None], ids=["old", "new", "different"])
async def test_connection_is_replaced_before_its_end_if_both_send_the_same(
    monkeypatch: pytest.MonkeyPatch, ahead: str | None
) -> None:
    """The one is five frames ahead of the other, or what they bring is not the same."""
    monkeypatch.setattr(connection, "RENEW_BEFORE_S", 86_400 - 0.1)
    monkeypatch.setattr(connection, "SKEW_S", 60.0)
    monkeypatch.setattr(overlap, "SUBSCRIBE_S", 0.1)
    monkeypatch.setattr(overlap, "SKEW_S", 0.1 if ahead is None else 60.0)
    if ahead is not None:  # it waits for that long, which no test can
        monkeypatch.setattr(Overlap, "is_ready", lambda self, _: self._matched > 0)
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["trade"], [BTC]) as reader,
    ):
        old = await exchange.accepted()
        subscribed = await old.received()
        new = await exchange.accepted()
        assert await new.received() == subscribed
        await new.send({"result": None, "id": 1})
        lags = {old: 5 if ahead == "new" else 0, new: 5 if ahead == "old" else 0}
        for number in itertools.count(1):
            for peer, lag in lags.items():
                if number > lag:
                    its = -number if ahead is None and peer is new else number - lag
                    with contextlib.suppress(ConnectionError):  # the one that is left
                        await peer.send(trade(its))
            if old.ended.is_set() or new.ended.is_set():
                break
            await asyncio.sleep(0.01)
        stays = old if ahead is None else new
        assert not stays.ended.is_set()
        for its in range(number - lags[stays] + 1, number + 2):
            await stays.send(trade(its))
        for expected in range(1, number + 2):
            message = await reader.next()
            assert (message["type"], message["id"]) == ("trade", str(expected))
