"""Turns and delivery: order, fairness, what is sent before an error."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tardis_machine.replay import Batch
from tardis_machine.server.pace import Turns, deliver
from tests.server.conftest import until


class Script:
    """A replay whose batches and waits are written down."""

    malformed = 0

    def __init__(self, *steps: "bytes | Future[object] | Exception") -> None:
        self.steps = list(steps)

    def pending(self) -> "Future[object] | None":
        while self.steps and isinstance(first := self.steps[0], Future):
            if not first.done():
                return first
            self.steps.pop(0)
        return None

    def batches(self) -> Iterator[Batch]:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            if isinstance(step, bytes):
                yield Batch(step, step.count(b"\n"))

    def close(self) -> None:
        self.steps.clear()


class Sink:
    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int]] = []

    async def send(self, data: bytes, count: int) -> None:
        self.sent.append((data, count))


async def test_small_batches_go_out_together() -> None:
    script, sink = Script(b"a\n", b"", b"b\nc\n"), Sink()
    await deliver(script, script.batches(), sink.send, turns=Turns())
    assert sink.sent == [(b"a\nb\nc\n", 3)]


async def test_large_batches_go_out_at_once() -> None:
    large = b"x" * 70_000 + b"\n"
    script, sink = Script(large, large, b"a\n"), Sink()
    await deliver(script, script.batches(), sink.send, turns=Turns())
    assert sink.sent == [(large, 1), (large, 1), (b"a\n", 1)]


async def test_nothing_is_held_back_while_waiting() -> None:
    first: Future[object] = Future()
    second: Future[object] = Future()
    script, sink = Script(b"a\n", first, second, b"b\n"), Sink()
    running = asyncio.ensure_future(deliver(script, script.batches(), sink.send, turns=Turns()))
    await until(lambda: bool(sink.sent))
    assert sink.sent == [(b"a\n", 1)]
    first.set_result(None)
    await asyncio.sleep(0.01)
    assert not running.done()
    second.set_exception(OSError("whatever it was, the replay tells"))
    await running
    assert sink.sent[1:] == [(b"b\n", 1)]


async def test_what_precedes_an_error_is_sent() -> None:
    script, sink = Script(b"a\n", ValueError("bad")), Sink()
    with pytest.raises(ValueError, match="bad"):
        await deliver(script, script.batches(), sink.send, turns=Turns())
    assert sink.sent == [(b"a\n", 1)]


class FullJournal:
    """Has room only after someone has waited."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.room = False

    def append(self, data: bytes, count: int) -> bool:
        self.events.append(("append", data, count, self.room))
        room, self.room = self.room, False
        return room

    def append_hidden(self, data: bytes, count: int) -> bool:
        self.events.append(("hidden", data, count, self.room))
        room, self.room = self.room, False
        return room

    async def wait_for_space(self) -> None:
        self.room = True


async def test_the_journal_comes_before_the_client() -> None:
    journal = FullJournal()

    async def send(data: bytes, count: int) -> None:
        journal.events.append(("send", data, count))

    class Hidden(Script):
        def batches(self) -> Iterator[Batch]:
            yield Batch(b"a\n", 1, b"disconnect\n", 1)

    script = Hidden()
    await deliver(script, script.batches(), send, turns=Turns(), journal=journal)
    assert journal.events == [
        ("append", b"a\n", 1, False),
        ("append", b"a\n", 1, True),
        ("hidden", b"disconnect\n", 1, False),
        ("hidden", b"disconnect\n", 1, True),
        ("send", b"a\n", 1),
    ]


async def test_one_turn_per_round_of_the_loop() -> None:
    turns = Turns()
    rounds: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            await turns.take()
            rounds.append(name)

    async def watch() -> None:
        while len(rounds) < 9:
            before = len(rounds)
            await asyncio.sleep(0)
            assert len(rounds) - before <= 1

    await asyncio.gather(work("a"), work("b"), work("c"), watch())
    assert rounds == ["a", "b", "c"] * 3


async def test_a_cancelled_turn_is_passed_on() -> None:
    turns = Turns()
    first, second = (asyncio.ensure_future(turns.take()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    await turns.take()
    assert first.cancelled()
