"""A replay is an iterator: by `for`, `async for` and `next`, once, and closed when it ends."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

from tardis_machine import replay, replay_normalized
from tardis_machine.history import HistoryError
from tardis_machine.messages import Trade
from tardis_machine.replays import MessageReplay, ReplayEndedError
from tests.library.asked import SPAN, WHOLE

MINUTES = {"to": WHOLE["to"]}
FILTERS = [{"channel": "trade", "symbols": ["XBTUSD"]}]


def normalized(**more: Any) -> MessageReplay[Any, Any]:
    return replay_normalized("bitmex", data_types=["trade"], **{**SPAN, **more})


def raw(**more: Any) -> MessageReplay[Any, Any]:
    return replay("bitmex", filters=FILTERS, **{**SPAN, **more})


def merged(**more: Any) -> MessageReplay[Any, Any]:
    sample = more.pop("sample", True)
    span = {name: SPAN[name] for name in ("from_", "to")} | more
    asked = [{"exchange": name, **span} for name in ("bitmex", "deribit")]
    return replay(asked, sample=sample)  # type: ignore[call-overload, no-any-return]


each_kind = pytest.mark.parametrize("asked", [normalized, raw, merged])
Asked = Callable[..., MessageReplay[Any, Any]]


@each_kind
async def test_for_async_for_and_next_give_the_same(asked: Asked) -> None:
    messages = list(asked())
    assert len(messages) > 50
    assert [message async for message in asked()] == messages
    nexts = asked()
    assert [next(nexts) for _ in messages] == messages
    with pytest.raises(StopIteration):
        next(nexts)


@each_kind
async def test_a_loop_goes_on_where_another_was_left(asked: Asked) -> None:
    messages = list(asked())
    left = asked()
    got = [next(left), next(left)]
    for message in left:
        got.append(message)
        break
    async for message in left:
        got.append(message)
        break
    got.extend(left)
    assert got == messages


@each_kind
def test_loops_and_next_take_turns(asked: Asked) -> None:
    messages = list(asked(**MINUTES))
    twice = asked(**MINUTES)
    got = list(chain.from_iterable(zip(twice, twice, strict=False)))
    assert got == messages[: len(got)]
    assert len(messages) - len(got) <= 1
    nested = asked(**MINUTES)
    got = []
    for message in nested:
        got.append(message)
        got.extend(islice(nested, 2))
        got.extend(each for each in [next(nested, None)] if each is not None)
    assert got == messages


def test_a_loop_left_at_a_disconnect_loses_nothing() -> None:
    def asked() -> MessageReplay[Any, Any]:
        return replay("deribit", with_disconnects=True, **WHOLE)

    messages = list(asked())
    left = asked()
    got = []
    for message in left:
        got.append(message)
        if message is None:
            break
    assert len(got) < len(messages)
    got.extend(left)
    assert got == messages


@each_kind
async def test_a_second_reading_is_an_error(asked: Asked) -> None:
    read = asked()
    assert list(read)
    for again in (iter, aiter, MessageReplay.batches, list):
        with pytest.raises(ReplayEndedError, match="was read to its end: it gives its messages on"):
            again(read)
    being_read = asked()
    next(being_read)
    with pytest.raises(ReplayEndedError, match="is being read"):
        being_read.batches()
    by_batches = asked()
    held = by_batches.batches()
    assert next(held) is not None
    with pytest.raises(ReplayEndedError, match="is being read"):
        iter(by_batches)


@each_kind
async def test_context_managers_close_it(asked: Asked) -> None:
    with asked() as first:
        next(first)
    async with asked() as second:
        await anext(second)
    third = asked()
    third.close()
    for closed in (first, second, third):
        with pytest.raises(ReplayEndedError, match="was closed"):
            next(closed)
        with pytest.raises(ReplayEndedError, match="was closed"):
            await anext(closed)
        with pytest.raises(ReplayEndedError, match="was closed"):
            closed.batches()


@each_kind
def test_what_is_missing_is_an_error_for_each(asked: Asked) -> None:
    with pytest.raises(HistoryError, match="there is only synthetic sample data"):
        list(asked(from_="2023-01-01", to="2023-01-02"))


async def test_coroutines_may_share_a_replay() -> None:
    def asked() -> MessageReplay[Any, Any]:
        return replay_normalized("bitmex", data_types=["trade", "book_change"], **WHOLE)

    async def work() -> None:
        async for message in shared:
            got.append(message)
            await asyncio.sleep(0)

    shared = asked()
    got: list[Any] = []
    await asyncio.gather(work(), work(), work())
    assert got == list(asked())


async def test_closing_ends_who_waits() -> None:
    waiting = normalized()
    reading = asyncio.ensure_future(anext(waiting))
    await asyncio.sleep(0)
    waiting.close()
    with pytest.raises(ReplayEndedError, match="was closed"):
        await reading


async def test_the_event_loop_goes_on_beside_a_replay() -> None:
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(beside())
    with normalized() as counted:
        batches = sum(1 for _ in counted.batches())
    assert len([each async for each in normalized()]) > 0
    other.cancel()
    assert turns >= batches


def test_one_that_is_dropped_leaves_nothing_behind() -> None:
    dropped = normalized(**WHOLE)
    next(dropped)
    history = weakref.ref(dropped._history)
    del dropped
    gc.collect()
    assert history() is None


def test_a_replay_says_what_it_is() -> None:
    told = normalized()
    what = "NormalizedReplay of bitmex 2024-03-01T00:00:00.000000Z to 2024-03-01T00:01:00.000000Z"
    assert repr(told) == f"<{what}: 0% read>"
    list(told)
    assert repr(told) == f"<{what}: read>"


def test_messages_are_typed_and_tell_their_time() -> None:
    trade = next(replay_normalized("bitmex", data_types=["trade"], **SPAN))
    assert isinstance(trade, Trade)
    assert trade.local_timestamp.datetime.isoformat().startswith("2024-03-01T00:00:0")
    assert trade.timestamp.datetime.timestamp() * 1_000_000 == pytest.approx(trade.timestamp, abs=1)
