"""The mistakes of well-known sinks, ruled out by name for every bus.

Those that only one bus could make are ruled out in its own tests; those of the journal and the
publisher (6 shutdown, 9 backoff, 12 disk buffer) in theirs, with every bus again.
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import RecordRejectedError
from tardis_machine.publish.record import Record
from tests.publish.buses.benches import Bench
from tests.support.arrivals import assert_promises_kept
from tests.support.events import deliver, records, resized
from tests.support.waiting import wait_until


def heaviest(bus: EventBus, record: Record, limit: int) -> int:
    """Give the size of the largest value with which a record stays within a limit."""
    size = limit - record.target.weight
    while resized(bus, record, size).weight > limit:
        size -= 1
    return size


def test_1_and_2_what_fails_inside_a_success_is_reported_and_alone(bench: Bench):
    bus, limit = bench.limited()
    sent = records(bus, 100)
    sent[40] = resized(bus, sent[40], limit + 1)

    result = bus.send(sent, 20)

    assert result.delivered == 99
    [(place, error)] = result.failures
    assert place == 40
    assert isinstance(error, RecordRejectedError)
    del sent[40]
    arrived = bench.arrived()
    assert len(arrived) == 99
    assert_promises_kept(sent, arrived)


@pytest.mark.faults
def test_3_a_server_killed_under_load_breaks_no_order(bench: Bench):
    server = bench.mortal()
    bus = bench.make()
    sent = records(bus, 8_000)
    deliver(bus, sent[:100], timeout_s=20)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(deliver, bus, sent[100:], batch=200, timeout_s=2, pause_s=0.05)
        for pause in (0.1, 0.2):
            time.sleep(pause)
            server.kill()
            server.start()
        assert done.result() == []

    assert_promises_kept(sent, bench.arrived())


@pytest.mark.faults
def test_5_nothing_is_kept_for_a_server_that_is_away(bench: Bench):
    server = bench.mortal()
    bus = bench.make()
    first = records(bus, 10)
    deliver(bus, first, timeout_s=20)
    server.kill()
    sent = records(bus, 6_000, start=10, padding=300)
    for _ in range(6):  # what a client needs at all, it has then
        bus.send(sent, 0.5)

    # What is kept is kept each time; memory that is taken once, for whatever else, is not meant.
    most = 4 * sum(len(record.value) for record in sent)
    assert most < 16 << 20
    assert any(_growth(bus, sent) < most for _ in range(3))
    server.start()
    after = records(bus, 10, start=50_000)
    deliver(bus, after)
    assert_promises_kept(first + after, bench.arrived())


def _growth(bus: EventBus, sent: list[Record]) -> int:
    """Tell what fifteen fruitless attempts leave in memory."""
    before = _resident_bytes()
    for _ in range(15):
        result = bus.send(sent, 0.5)
        assert (result.delivered, len(result.failures)) == (0, len(sent))
        assert all(failure.error.retriable for failure in result.failures)
    return _resident_bytes() - before


def test_7_what_is_too_heavy_is_rejected_for_good_and_blocks_nothing(bench: Bench):
    """To the byte: what the service still takes goes through."""
    bus, limit = bench.limited()
    sent = records(bus, 50)
    sent[2] = resized(bus, sent[2], heaviest(bus, sent[2], limit), noise=7)
    sent[3] = resized(bus, sent[3], heaviest(bus, sent[3], limit) + 1, noise=7)

    [failure] = deliver(bus, sent, timeout_s=20)

    assert isinstance(failure.error, RecordRejectedError)
    assert f"{limit} at most" in str(failure.error)
    assert len(bench.arrived()) == 49


def test_8_a_template_does_not_override_the_route(bench: Bench):
    routed = bench.destination("-books")
    settings = {bench.route_setting: {"bookChange": routed}}
    settings[bench.key_setting] = f"{bench.destination()}.{{{{exchange}}}}"
    bus = bench.make(**settings)

    deliver(bus, records(bus, 8), timeout_s=20)

    books = bench.arrived("-books")
    assert {arrival.destination for arrival in books} == {routed}
    assert {arrival.envelope.WhichOneof("payload") for arrival in books} == {"book_change"}
    assert len(books) == 2


def test_9_sending_ends_when_time_is_up(bench: Bench):
    """The server hangs: it neither answers nor closes."""
    bench.mortal()
    bus = bench.make()
    sent = records(bus, 200)
    deliver(bus, sent[:100], timeout_s=20)
    with bench.hanging():
        began = time.monotonic()
        result = bus.send(sent[100:], 0.5)
        assert time.monotonic() - began < 60

    assert result.delivered == 0
    assert "not acknowledged in time" in str(result.failures[0].error)
    deliver(bus, sent[100:], timeout_s=20)
    assert_promises_kept(sent, bench.arrived())


def test_10_neither_secrets_nor_events_are_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    bus, secret = bench.stranger()
    caplog.set_level(logging.DEBUG, "tardis_machine")
    caplog.set_level(logging.INFO)

    result = bus.send(records(bus, 10), 2)

    assert result.delivered == 0
    everything = caplog.text + "".join(capfd.readouterr()) + str(result) + repr(bus.config)
    everything += "".join(str(vars(record)) for record in caplog.records)
    assert secret not in everything
    assert all(record.levelno <= logging.INFO for record in caplog.records)
    assert "S0" not in everything


def test_11_acknowledgements_are_not_awaited_one_by_one(bench: Bench):
    with bench.unanswered() as sent:
        bus = bench.make(**bench.plain)
        assert bus.send(records(bus, 1), 20).delivered == 1
        before = sent()
        bench.hold()
        pool = ThreadPoolExecutor(1)
        sending = pool.submit(bus.send, records(bus, 2_500, start=1, symbols=100), 30)
        wait_until(lambda: sent() - before >= bench.at_once)
        assert not sending.done()
    assert sending.result().delivered == 2_500
    pool.shutdown()


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096
