"""Delivery waits for responses at full speed, and for how long."""

import asyncio
import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tardis_machine.journal import Directory, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.ring import Mover
from tardis_machine.journal.segment import HEADER_BYTES
from tardis_machine.publish.buses.base import Limits
from tardis_machine.publish.buses.file import FileConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.courtesy import Courtesy
from tardis_machine.publish.dead_letters import DeadLetters
from tardis_machine.publish.delivery import Delivery
from tardis_machine.publish.encoding import Encoding
from tests.publish.promises import assert_balanced
from tests.support.events import lines
from tests.support.outbox import Start, respond, write
from tests.support.scripted_bus import ScriptedBus
from tests.support.waiting import until, wait_until

FULL_SPEED = 400_000
"""Bytes a millisecond."""


class Server:
    """Writes at a speed, looked at every few milliseconds."""

    def __init__(self, longest_s: float) -> None:
        self.ms = 5_000
        self.written = 1 << 40  # long before
        self.courtesy = Courtesy(lambda: self.written, longest_s, lambda: self.ms / 1000)

    def write(self, ms: int, speed: int, every_ms: int = 3) -> int:
        """Give for how many milliseconds delivery waited."""
        waited = 0
        for _ in range(0, ms, every_ms):
            self.ms += every_ms
            self.written += speed * every_ms
            waited += every_ms * self.courtesy.gives_way()
        return waited


def test_a_response_at_full_speed_is_waited_for_to_its_end() -> None:
    server = Server(2)
    assert server.write(900, FULL_SPEED) > 890
    assert server.write(900, 0) < 30
    assert server.courtesy.total_s == pytest.approx(0.9, abs=0.03)


def test_a_slow_response_and_a_live_stream_are_not_waited_for() -> None:
    server = Server(2)
    assert server.write(5_000, FULL_SPEED // 20) == 0


def test_a_client_that_stops_for_a_moment_does_not_end_it() -> None:
    server = Server(2)
    server.write(100, FULL_SPEED)
    assert server.write(12, 0) == 12


def test_a_response_without_an_end_is_waited_for_once() -> None:
    server = Server(0.5)
    assert server.write(60_000, FULL_SPEED) == pytest.approx(500, abs=10)


def test_responses_one_upon_the_other_leave_half_of_the_time() -> None:
    server = Server(0.5)
    waited = sum(server.write(300, FULL_SPEED) + server.write(30, 0) for _ in range(200))
    assert waited == pytest.approx(200 * 330 / 2, rel=0.1)


def test_who_is_not_to_wait_does_not() -> None:
    assert Server(0).write(900, FULL_SPEED) == 0


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "journal", "p", ["scripted"], max_bytes=1 << 24, fsync=None)
    yield writer
    writer.close()


class Held(NamedTuple):
    """A delivery that gives way while `busy` is set."""

    delivery: Delivery
    bus: ScriptedBus
    busy: threading.Event


@pytest.fixture
def start(writer: Writer, tmp_path: Path) -> Iterator[Callable[[float], Held]]:
    started: list[Delivery] = []

    def start(delay_s: float) -> Held:
        held = Held(
            Delivery(
                bus := ScriptedBus(lambda *_: {}, Limits(1_000, 1 << 20, delay_s)),
                PublishConfig(),
                Encoding([frozenset()]),
                DeadLetters(tmp_path / "dead", "scripted"),
                lambda _: None,
                gives_way=(busy := threading.Event()).is_set,
            ),
            bus,
            busy,
        )
        [log] = Directory(tmp_path / "journal").logs()
        held.delivery.follow(log)
        held.delivery.start()
        started.append(held.delivery)
        return held

    yield start
    for delivery in started:
        assert delivery.stop(time.monotonic() + 10)


def test_nothing_is_begun_meanwhile_unless_time_is_short(
    writer: Writer, start: Callable[[float], Held]
) -> None:
    delivery, bus, busy = start(0.0)
    append(writer, 0)
    wait_until(lambda: len(bus.taken) == 5)
    busy.set()
    time.sleep(0.1)  # what was asked before
    append(writer, 5)
    time.sleep(0.3)
    assert (len(bus.taken), delivery.held) == (5, 0)
    busy.clear()
    wait_until(lambda: len(bus.taken) == 10)
    busy.set()
    time.sleep(0.1)
    append(writer, 10)
    delivery.drain()
    wait_until(lambda: len(bus.taken) == 15)


def test_what_is_encoded_already_is_not_sent_meanwhile(
    writer: Writer, start: Callable[[float], Held]
) -> None:
    delivery, bus, busy = start(1.0)
    append(writer, 0)
    wait_until(lambda: delivery.held == 5)
    busy.set()
    time.sleep(1.5)
    assert not bus.taken
    busy.clear()
    wait_until(lambda: len(bus.taken) == 5)


def test_a_mover_knows_how_much_its_server_has_written_and_lets_go_of_the_ring(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, "p", ["scripted"], max_bytes=1 << 30, ring_bytes=1 << 20)
    ring = writer.ring
    if ring is None:
        pytest.skip("no ring here: without the compiled kernel, or on this file system")
    mover = Mover(writer.path, ring.waits, None)
    assert mover.written() == 0
    thread = mover.start()
    for position in range(0, 20_000, 1_000):  # several times what there is room for
        append(writer, position, 1_000)
    wait_until(lambda: mover.written() > 0 and ring.is_empty)
    [log] = Directory(tmp_path).logs()
    with ring.path.open("rb") as same:
        with pytest.raises(BlockingIOError):
            fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert mover.written() == writer._size - HEADER_BYTES
        writer.close()
        thread.join(10)
        assert not thread.is_alive()
        assert log.end().messages == 20_000
        fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert mover.written() == 0


async def test_a_publisher_gives_way_to_its_server_and_delivers_all(
    publish: Start, tmp_path: Path
) -> None:
    outbox = await publish({"file": FileConfig(path=tmp_path / "events.ndjson")})
    scribe = outbox._scribe
    if scribe is None or scribe.writer.ring is None:
        await outbox.stop()
        pytest.skip("no ring here: without the compiled kernel, or on this file system")
    await until(lambda: outbox._snapshot is not None)
    response, ndjson, count = respond(outbox), lines(2_000), 0

    def gave_way() -> bool:
        return outbox._snapshot is not None and outbox._snapshot.gave_way_s > 0

    for _ in range(20):
        for _ in range(10):
            await write(response, ndjson)
            count += 2_000
        await asyncio.sleep(1)  # it tells every half second
        if gave_way():
            break
    assert gave_way()
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=count, delivered=count)


def append(writer: Writer, position: int, count: int = 5) -> None:
    assert writer.append(encode_provenance(Provenance("p", "r")), lines(count), count, position)
