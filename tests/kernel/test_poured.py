"""Published replays that the kernel pours: written down before, whole, cut where times end."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET

import pytest

from tardis_machine.engine.choice import kernel
from tardis_machine.journal import (
    Directory,
    Entry,
    Flow,
    Provenance,
    Reader,
    Scribe,
    Ticket,
    WhenFull,
    Writer,
)
from tardis_machine.journal import ring as rings
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.publish.outbox import ResponseJournal
from tardis_machine.replays import normalizer as normalize
from tardis_machine.replays.merger import Chunk, Merged, StreamMerger
from tardis_machine.replays.normalizer import Framing, Normalizer, Pour
from tardis_machine.server.outlet import Outlet
from tardis_machine.server.pace import Journal, Turns, deliver, poured_by
from tests.kernel.outlets import UNFRAMED, connected
from tests.support.bitmex import trade
from tests.support.normalizers import ReadyBlocks, normalizer

pytestmark = [
    pytest.mark.skipif(kernel().module is None, reason="nothing is poured without one"),
    pytest.mark.slow,
]

LINES = 40_000
ENOUGH = 512 * 1024


class Made:
    """A replay of one stream."""

    malformed = 0

    def __init__(self, stream: Normalizer, pour: Pour | None) -> None:
        stream.pour = pour
        self._merge = StreamMerger([stream])

    def due_in(self) -> float:
        return 0.0

    def pending(self) -> Future[object] | None:
        return self._merge.pending()

    def chunks(self) -> Iterator[Chunk]:
        return map(Merged.chunk, self._merge.steps())

    def close(self) -> None:
        pass


def blocks(seed: int, cuts: int = 40, unusual: float = 0.0002, length: int = LINES) -> list[bytes]:
    """Lines of which many share a local time, some come late, and some are none; cut anywhere.

    Some are left to the mapper: they do not look as usual.
    """
    chance, oddity = random.Random(seed), random.Random(seed)
    us = 1_000
    lines = []
    for number in range(length):
        us += chance.choice((0, 0, 0, 1, 7))
        late = chance.random() < 0.001
        lines.append(trade(us - 5 if late else us, price=number))
        if chance.random() < 0.0005:
            lines.append(b"neither here nor there\n")
        if oddity.random() < unusual:
            lines[-1] = lines[-1].replace(b":[{", b": [{")
    for _ in range(2):
        lines.insert(chance.randrange(length), b"\n")
    borders = sorted(chance.sample(range(len(lines)), cuts))
    return [b"".join(lines[one:other]) for one, other in pairwise([0, *borders, len(lines)])]


class Late(ReadyBlocks):
    """Blocks of which some have to be waited for."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        super().__init__(blocks)
        self._every = len(blocks) // 8 + 1
        self._numbers = count()
        self._waited: Future[object] | None = None

    def pending(self) -> Future[object] | None:
        if self._waited is None:
            self._waited = Future()
            if next(self._numbers) % self._every:
                self._waited.set_result(None)
            else:
                asyncio.get_running_loop().call_later(0.002, self._waited.set_result, None)
        return None if self._waited.done() else self._waited

    def __next__(self) -> bytes:
        self._waited = None
        return super().__next__()


def stream(given: Sequence[bytes]) -> Normalizer:
    return normalizer(of=Late(given), sends_disconnects=False)


def expected(given: Sequence[bytes]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """What the client gets, and what it is not told of: behind how many messages."""
    sent, hidden, total = b"", [], 0
    for chunk in Made(normalizer(*given, sends_disconnects=False), None).chunks():
        sent += chunk.data
        total += chunk.count
        if chunk.hidden:
            hidden.append((total, chunk.hidden))
    return sent, hidden


def scribe(path: Path, ring_bytes: int) -> Scribe:
    """A journal with a ring that nobody else empties."""
    if sys.platform != "linux" or rings._kind_of_disk(path) not in rings._IN_PLACE:
        pytest.skip("there is no ring on this file system: see --basetemp")
    return Scribe(Writer(path, "p", ["bus"], max_bytes=1 << 30, ring_bytes=ring_bytes))


async def let_in(journal: Scribe) -> None:
    """Have the ring take entries from the first: its thread lets it with one that it writes."""
    await journal.submit(Flow(b"", WhenFull.PACE), b"so that the ring may be used\n", 1, 0)


def written(path: Path) -> list[Entry]:
    """Read the journal as a publisher would."""
    (log,) = Directory(path).logs()
    reader = Reader(log, 0, 0, 0)
    found = []
    while (entry := reader.read()) is not None:
        assert isinstance(entry, Entry)
        found.append(entry)
    return found


class Client:
    """Both ends of a connection: what is sent, what of it was poured, what has arrived."""

    def __init__(
        self, outlet: Outlet, pour: Pour, reader: asyncio.StreamReader, pause_s: float = 0.0
    ) -> None:
        self.pour = pour
        self.poured = 0
        self.received = bytearray()
        self._outlet = outlet
        self._pause_s = pause_s
        self._reading = asyncio.ensure_future(self._read(reader))

    async def send(self, data: bytes, count: int) -> None:
        await self._outlet.pour_out(self.pour, data)
        self.poured += self.pour.settle()[0]

    async def end(self) -> bytes:
        """Everything, once the connection is closed."""
        self._outlet.end_pour()
        self._outlet._require_connection().close()
        await self._reading
        return bytes(self.received)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while part := await reader.read(1 << 20):
            self.received += part
            await asyncio.sleep(self._pause_s)


@asynccontextmanager
async def client(framing: Framing = "nothing", pause_s: float = 0.0) -> AsyncIterator[Client]:
    """One that pauses gets little at a time."""
    async with connected() as (outlet, reader):
        if pause_s:
            socket = outlet._require_connection().get_extra_info("socket")
            socket.setsockopt(SOL_SOCKET, SO_SNDBUF, 64 << 10)
        pour = outlet.make_pour(framing)
        assert pour is not None
        yield Client(outlet, pour, reader, pause_s)


async def run(
    given: Sequence[bytes], to: Client, journal: Journal, *, is_late: bool = True
) -> None:
    of = stream(given) if is_late else normalizer(*given, sends_disconnects=False)
    made = Made(of, poured_by(to.pour, journal))
    await deliver(made, made.chunks(), to.send, turns=Turns(), journal=journal, pour=to.pour)  # type: ignore[arg-type]


def response(scribe: Scribe, name: str = "") -> ResponseJournal:
    provenance = encode_provenance(Provenance("p", name))
    return ResponseJournal(scribe, Flow(provenance, WhenFull.PACE))


def local_times(data: bytes) -> list[bytes]:
    return [line.partition(b'"localTimestamp":"')[2][:27] for line in data.splitlines()]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cuts", [40, 6])
@pytest.mark.parametrize("ring_bytes", [8 << 20, ENOUGH + (64 << 10)], ids=["roomy", "narrow"])
async def test_what_is_poured_is_in_the_journal_whole_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring_bytes: int, cuts: int, seed: int
) -> None:
    if cuts < 10:  # a run may give more than enough
        monkeypatch.setattr(normalize, "_RUN_S", 10.0)
    # Of fewer lines, some that are waited for or hidden may leave nothing to be poured.
    given = blocks(seed, cuts, length=3 * LINES)
    sent, hidden = expected(given)
    journal = scribe(tmp_path, ring_bytes)
    await let_in(journal)
    async with client() as to:
        await run(given, to, response(journal))
        assert await to.end() == sent
    journal.close()
    entries = written(tmp_path)[1:]
    shown = [each for each in entries if not each.hidden]
    assert b"".join(each.data for each in shown) == sent
    position = 0
    for each in entries:
        assert each.position == position
        if not each.hidden:
            assert each.messages == each.data.count(b"\n")
            position += each.messages
    assert [(each.position, each.data) for each in entries if each.hidden] == hidden
    assert hidden
    # Else one of the properties below says nothing.
    assert len(shown) > len(hidden) + 4
    if ring_bytes == 8 << 20:
        assert to.poured


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("framing", UNFRAMED)
@pytest.mark.parametrize("ring_bytes", [8 << 20, 2 << 20], ids=["roomy", "narrow"])
async def test_responses_that_are_made_in_the_same_ring_are_apart(
    tmp_path: Path, ring_bytes: int, framing: Framing, seed: int
) -> None:
    """One is read slowly, one has many lines for its mapper; a live stream comes in between."""
    given = [blocks(seed, unusual=share) for share in (0.0002, 0.0, 0.01)]
    journal = scribe(tmp_path, ring_bytes)
    assert journal.writer.ring is not None
    rings.Mover(journal.writer.path, journal.writer.ring.waits, None).start()
    live = Flow(encode_provenance(Provenance("p", "live")), WhenFull.DROP)
    frames: list[bytes] = []

    async def stream_live() -> None:
        for number in count():
            frames.append(b"%d\n" % number * (1 + number % 50))
            await journal.write(live, frames[-1], 1, number)
            await asyncio.sleep(0.001 * (number % 7))

    async def ask(number: int) -> bytes:
        async with client(framing, 0.002 if number == 0 else 0.0) as to:
            await run(given[number], to, response(journal, str(number)), is_late=False)
            return UNFRAMED[framing](await to.end())

    streaming = asyncio.ensure_future(stream_live())
    received = await asyncio.gather(*map(ask, range(len(given))))
    streaming.cancel()
    journal.close()
    found: dict[bytes, bytes] = {}
    for each in written(tmp_path):
        if not each.hidden:
            found[each.provenance] = found.get(each.provenance, b"") + each.data
    for number, these in enumerate(given):
        sent, _ = expected(these)
        assert received[number] == sent
        assert found[encode_provenance(Provenance("p", str(number)))] == sent
    assert found[live.provenance] == b"".join(frames)
    assert len(frames) > 10


async def test_a_text_is_made_where_the_journal_has_it(tmp_path: Path) -> None:
    """What stands in the ring's memory behind its head was not copied there."""
    journal = scribe(tmp_path, 8 << 20)
    ring = journal.writer.ring
    assert ring is not None
    await let_in(journal)
    lines = b"".join([trade(us, price=us) for us in range(1_000, 9_000)])
    sent, _ = expected([lines])
    made = normalizer(lines)
    made.read()
    found = 0
    async with client() as to:
        made.pour = poured_by(to.pour, response(journal))
        while made.reached is not None:
            await to.send(b"", 0)
            made.run(is_next=True)
            if made.needs_block:
                made.read()
            at = ring._memory.find(b'{"type":"trade"', rings._ROOM + ring.shared.head)
            if at >= 0:
                found += 1
                assert ring._memory[at : at + 1000] in sent
            if found == 2:
                # Somebody else needs the room: what was made there is somewhere else then.
                await journal.write(Flow(b"", WhenFull.PACE), b"\n" * ENOUGH, 1, 1)
        rest = made.take().data
        assert await to.end() + rest == sent
    assert found == 2
    journal.close()


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_poured_never_ends_inside_a_local_time(tmp_path: Path, seed: int) -> None:
    given = blocks(seed)
    journal = scribe(tmp_path, 8 << 20)
    async with client() as to:
        await run(given, to, response(journal))
        await to.end()
    journal.close()
    latest = b""
    cuts = 0
    for one, other in pairwise(written(tmp_path)):
        latest = max(latest, *local_times(one.data))
        if not one.hidden and not other.hidden:  # a disconnect ends what precedes it
            assert local_times(other.data)[0] > latest
            cuts += 1
    assert cuts > 2


async def test_what_cannot_be_written_down_is_not_sent(tmp_path: Path) -> None:
    """The ring takes nothing: neither does the client get anything before it is written."""
    given = blocks(1)
    sent, _ = expected(given)
    ring = scribe(tmp_path, 8 << 20)
    shared = ring.writer.ring
    assert shared is not None

    class Waiting:
        def __init__(self) -> None:
            self.given = b""
            self.written = 0
            self.tickets: list[Ticket] = []

        def write(self) -> None:
            self.written = len(self.given)
            for ticket in self.tickets:
                ticket.settle()

        def admit(self, pour: Pour) -> bool:
            pour.journal(shared.shared, b"", 0, lambda: None)
            return True

        def append(self, data: bytes, count: int) -> Ticket:
            self.given += data
            self.tickets.append(Ticket())
            if len(self.tickets) % 3:
                self.write()  # and the pour is open again
            return self.tickets[-1]

        def append_hidden(self, data: bytes, count: int) -> Ticket:
            self.tickets.append(Ticket())
            return self.tickets[-1]

    journal = Waiting()
    async with client() as to:
        running = asyncio.ensure_future(run(given, to, journal))
        while not running.done():
            await asyncio.sleep(0.005)
            assert len(to.received) <= journal.written
            journal.write()
        await running
        assert await to.end() == sent
    ring.close()
    assert journal.given == sent


@pytest.mark.parametrize(
    ("data_types", "late_us"),
    [
        # So long an interval is left to Python, line by line.
        (["trade", "trade_bar_999999999999999ms"], 0),
        (["trade"], 10_000_000),
    ],
    ids=["no shape", "times that go back"],
)
def test_what_waits_to_be_poured_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_types: list[str], late_us: int
) -> None:
    monkeypatch.setattr(normalize, "_LEFT_S", 1000.0)
    lines = [trade(20_000_000), *(trade(20_000_001 + at - late_us) for at in range(LINES))]
    made = normalizer(b"".join(lines), data_types=data_types)
    given = []
    with tmp_path.joinpath("sent").open("wb") as sent:  # which takes everything at once
        module = kernel().module
        assert module is not None
        made.pour = pour = module.Pour(sent.fileno(), "nothing")
        while made.reached is not None:
            pour.is_open = True
            if made.needs_block:
                made.read()
            else:
                made.run(is_next=True)
            if not made.pours:
                given.append(made.take())
        pour.close()
    poured = tmp_path.joinpath("sent").read_bytes()
    assert poured.count(b"\n") + sum(each.count for each in given) == LINES + 1
    assert max(len(each.data) for each in given) < 5 * ENOUGH
    assert sum(len(each.data) for each in given) + len(poured) > 10 * ENOUGH
