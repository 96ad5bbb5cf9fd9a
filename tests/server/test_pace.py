"""Turns and delivery: order, fairness, what is sent before an error."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tardis_machine.journal import Ticket
from tardis_machine.replays import Batch
from tardis_machine.server.pace import Turns, deliver
from tests.support.waiting import until


class Script:
    """A replay whose batches and waits are written down; a number is how long until the next."""

    malformed = 0

    def __init__(self, *steps: "bytes | float | Future[object] | Exception") -> None:
        self.steps = list(steps)

    def due_in(self) -> float:
        return self.steps.pop(0) if self.steps and isinstance(self.steps[0], float) else 0.0

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


async def test_what_is_not_due_is_neither_journalled_nor_sent() -> None:
    script, journal = Script(1e-6, b"a\n", 1e-6, 3600.0, b"b\n"), SlowJournal()
    running = asyncio.ensure_future(
        deliver(script, script.batches(), journal.send, turns=Turns(), journal=journal)
    )
    await until(lambda: bool(journal.tickets))
    journal.tickets[0].settle()
    await until(lambda: script.steps == [b"b\n"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    # The answer begins before anything is due: a client need not wait for its headers.
    assert journal.events == [("send", b""), ("append", b"a\n"), ("send", b"a\n")]


async def test_what_precedes_an_error_is_sent() -> None:
    script, sink = Script(b"a\n", ValueError("bad")), Sink()
    with pytest.raises(ValueError, match="bad"):
        await deliver(script, script.batches(), sink.send, turns=Turns())
    assert sink.sent == [(b"a\n", 1)]


class SlowJournal:
    """Writes when it is told to; what it was given, and what was sent, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, bytes]] = []
        self.tickets: list[Ticket] = []

    def append(self, data: bytes, count: int) -> Ticket:
        return self._take("append", data)

    def append_hidden(self, data: bytes, count: int) -> Ticket:
        return self._take("hidden", data)

    async def send(self, data: bytes, count: int) -> None:
        self.events.append(("send", data))

    def _take(self, event: str, data: bytes) -> Ticket:
        self.events.append((event, data))
        self.tickets.append(Ticket())
        return self.tickets[-1]


async def test_the_journal_comes_before_the_client() -> None:
    journal = SlowJournal()

    class Hidden(Script):
        def batches(self) -> Iterator[Batch]:
            yield Batch(b"a\n", 1, b"disconnect\n", 1)

    script = Hidden()
    running = asyncio.ensure_future(
        deliver(script, script.batches(), journal.send, turns=Turns(), journal=journal)
    )
    await until(lambda: len(journal.tickets) == 2)
    journaled = [("append", b"a\n"), ("hidden", b"disconnect\n")]
    assert journal.events == journaled
    journal.tickets[0].settle()
    await until(lambda: journal.events == [*journaled, ("send", b"a\n")])
    assert not running.done()
    journal.tickets[1].settle()
    await running


async def test_entries_are_sent_as_soon_as_each_is_written() -> None:
    """A client that leaves meanwhile has been sent what was published."""
    journal = SlowJournal()
    pieces = [b"%d" % number + b"x" * 300_000 + b"\n" for number in range(3)]
    script = Script(*pieces)
    running = asyncio.ensure_future(
        deliver(script, script.batches(), journal.send, turns=Turns(), journal=journal)
    )
    await until(lambda: len(journal.tickets) == 3)
    for number, ticket in enumerate(journal.tickets):
        ticket.settle()
        await until(lambda at=number: journal.events[-1] == ("send", pieces[at]))
    await running


async def test_the_replay_goes_on_while_the_journal_writes_but_not_for_ever() -> None:
    journal = SlowJournal()
    pieces = [b"%d" % number + b"x" * 600_000 + b"\n" for number in range(10)]
    script = Script(*pieces)
    running = asyncio.ensure_future(
        deliver(script, script.batches(), journal.send, turns=Turns(), journal=journal)
    )
    await until(lambda: len(journal.tickets) == 2)
    await asyncio.sleep(0.01)
    assert len(journal.tickets) == 2
    assert not [each for each in journal.events if each[0] == "send"]
    settled = 0
    while not running.done():
        for ticket in journal.tickets[settled:]:
            ticket.settle()
        settled = len(journal.tickets)
        await asyncio.sleep(0)
    await running
    assert b"".join(data for event, data in journal.events if event == "send") == b"".join(pieces)


async def test_small_batches_are_journalled_together_and_in_order() -> None:
    journal = SlowJournal()

    class Hidden(Script):
        def batches(self) -> Iterator[Batch]:
            yield Batch(b"a\n", 1)
            yield Batch(b"b\n", 1, b"disconnect\n", 1)
            yield Batch(b"c\n", 1)

    script = Hidden()
    running = asyncio.ensure_future(
        deliver(script, script.batches(), journal.send, turns=Turns(), journal=journal)
    )
    await until(lambda: len(journal.tickets) == 3)
    for ticket in journal.tickets:
        ticket.settle()
    await running
    assert journal.events == [
        ("append", b"a\nb\n"),
        ("hidden", b"disconnect\n"),
        ("append", b"c\n"),
        ("send", b"a\nb\nc\n"),
    ]


async def test_what_was_journalled_before_the_journal_failed_is_sent() -> None:
    journal = SlowJournal()
    large = [b"%d" % number + b"x" * 300_000 + b"\n" for number in range(3)]
    script = Script(*large)
    running = asyncio.ensure_future(
        deliver(script, script.batches(), journal.send, turns=Turns(), journal=journal)
    )
    await until(lambda: len(journal.tickets) == 3)
    journal.tickets[0].settle()
    for ticket in journal.tickets[1:]:
        ticket.settle(OSError("the disk is broken"))
    with pytest.raises(OSError, match="the disk is broken"):
        await running
    assert [data for event, data in journal.events if event == "send"] == large[:1]


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
