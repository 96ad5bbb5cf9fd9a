"""The mistakes of well-known sinks, ruled out by name for Kafka and NATS.

Those of the journal and of the publisher (6 shutdown, 9 backoff, 12 disk buffer) are ruled out in
their own tests; here is what the buses themselves could get wrong.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import RecordRejectedError
from tardis_machine.publish.record import Record
from tests.buses.arrivals import assert_promises_kept, from_kafka, from_stream
from tests.buses.events import deliver, events, records, resized, routed
from tests.buses.test_nats import with_jetstream
from tests.servers.kafka import KafkaBroker
from tests.servers.nats import NatsServer
from tests.servers.proxy import Proxy

Make = Callable[..., EventBus]
StartNats = Callable[..., NatsServer]


def limit_topic(address: str, topic: str, size: int) -> None:
    """Change how large a message a topic takes."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address})
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result()
    # The controller has it; the broker follows.
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        if described.result()["max.message.bytes"].value == str(size):
            return
    raise TimeoutError("the topic's limit did not change")


def produce_requests(said: bytearray) -> int:
    """Count the produce requests in what one client said to a broker."""
    count, place = 0, 0
    while place + 6 <= len(said):
        size = int.from_bytes(said[place : place + 4], "big")
        count += said[place + 4 : place + 6] == b"\0\0"
        place += 4 + size
    return count


@pytest.mark.kafka
class TestKafka:
    def test_1_a_failure_inside_a_success_is_reported(
        self, kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        bus = kafka_bus(kafka.address)
        sent = records(bus, 100)
        sent[40] = resized(bus, sent[40], 2_000_000)

        result = bus.send(sent, 20)

        assert result.delivered == 99
        assert [failure.place for failure in result.failures] == [40]
        assert len(from_kafka(kafka.address, name)) == 99

    def test_2_and_3_a_refused_batch_is_neither_repeated_whole_nor_overtaken(
        self, kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        """The topic's limit falls while the producer runs: the broker refuses a whole batch.

        Those behind it are small enough, and would get in before the innocent ones of that batch.
        """
        bus = kafka_bus(kafka.address, config={"batch.num.messages": "10"})
        first, rest = records(bus, 10), records(bus, 3_000, start=10)
        deliver(bus, first)
        large = 1_703
        # Noise, since the broker looks at what compression has made of it.
        rest[large] = resized(bus, rest[large], 8_000, noise=8)
        limit_topic(kafka.address, name, 5_000)

        rejected = deliver(bus, rest, batch=3_000, timeout_s=20)

        assert len(rejected) == 1
        assert isinstance(rejected[0].error, RecordRejectedError)
        del rest[large]
        arrived = from_kafka(kafka.address, name)
        assert len(arrived) == len(first) + len(rest)
        assert_promises_kept(first + rest, arrived)

    def test_2_and_3_a_record_refused_for_itself_is_found_among_its_batch(
        self, kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        """A compacted topic refuses records without a key, and says so of the whole batch."""
        admin = AdminClient({"bootstrap.servers": kafka.address})
        compacted = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([compacted])[name].result()
        bus = kafka_bus(kafka.address, config={"batch.num.messages": "10"})
        sent = records(bus, 400)
        keyless = {7, 250}
        for place in keyless:
            sent[place] = sent[place]._replace(target=sent[place].target._replace(key=None))

        rejected = deliver(bus, sent, batch=400, timeout_s=20)

        assert len(rejected) == len(keyless)
        accepted = [record for place, record in enumerate(sent) if place not in keyless]
        arrived = from_kafka(kafka.address, name)
        assert len(arrived) == len(accepted)
        assert_promises_kept(accepted, arrived)

    def test_2_and_3_a_cut_connection_repeats_nothing_and_breaks_no_order(
        self, proxied_kafka: tuple[KafkaBroker, Proxy], kafka_bus: Make, name: str
    ):
        broker, proxy = proxied_kafka
        bus = kafka_bus(f"127.0.0.1:{proxy.port}", config={"batch.num.messages": "10"})
        sent = records(bus, 6_000, padding=300)
        chance = random.Random(5)
        for start in range(0, len(sent), 1_000):
            proxy.cut_after(chance.randrange(2_000, 60_000))
            deliver(bus, sent[start : start + 1_000], timeout_s=30)

        arrived = from_kafka(broker.address, name)
        assert_promises_kept(sent, arrived)
        # One producer lived through all of it, and the broker knows what it has from it already.
        assert len(arrived) == len(sent)

    def test_3_a_killed_broker_breaks_no_order(
        self, mortal_kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        broker = mortal_kafka
        bus = kafka_bus(broker.address)
        sent = records(bus, 20_000)
        deliver(bus, sent[:100])

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(deliver, bus, sent[100:], batch=200, timeout_s=2)
            time.sleep(0.1)
            broker.kill()
            broker.start()
            assert done.result() == []

        assert_promises_kept(sent, from_kafka(broker.address, name))

    def test_4_a_batch_is_bounded_by_bytes_and_takes_few_requests(
        self, proxied_kafka: tuple[KafkaBroker, Proxy], kafka_bus: Make
    ):
        _, proxy = proxied_kafka
        bus = kafka_bus(f"127.0.0.1:{proxy.port}")
        bus.connect()
        bus.send(records(bus, 1), 20)
        proxy.cut()
        proxy.said.clear()

        assert bus.send(records(bus, 2_000, start=1), 20).delivered == 2_000

        assert 1 <= produce_requests(proxy.said) <= 20
        assert bus.limits.bytes <= 64 << 20
        assert bus.limits.records <= 100_000

    def test_5_nothing_is_kept_for_a_broker_that_is_away(
        self, mortal_kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        broker = mortal_kafka
        bus = kafka_bus(broker.address)
        deliver(bus, records(bus, 10))
        broker.kill()
        sent = records(bus, 2_000, start=10, padding=2_000)
        before = _resident_bytes()

        for _ in range(3):
            result = bus.send(sent, 0.5)
            assert (result.delivered, len(result.failures)) == (0, len(sent))
            assert all(failure.error.retriable for failure in result.failures)

        assert _resident_bytes() - before < 4 * sum(len(record.value) for record in sent)
        broker.start()
        after = records(bus, 10, start=5_000)
        deliver(bus, after)
        assert_promises_kept(records(bus, 10) + after, from_kafka(broker.address, name))

    def test_7_an_oversized_record_is_rejected_for_good_and_blocks_nothing(
        self, kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        admin = AdminClient({"bootstrap.servers": kafka.address})
        modest = NewTopic(name, 1, 1, config={"max.message.bytes": "20000"})
        admin.create_topics([modest])[name].result()
        bus = kafka_bus(kafka.address)
        sent = records(bus, 1_000)
        sent[1] = resized(bus, sent[1], 20_000)
        sent[2] = resized(bus, sent[2], 19_500)

        [failure] = deliver(bus, sent)

        assert isinstance(failure.error, RecordRejectedError)
        assert "20000 at most" in str(failure.error)
        assert len(from_kafka(kafka.address, name)) == 999

    def test_8_a_key_template_does_not_override_the_route(
        self, kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        bus = kafka_bus(
            kafka.address,
            topic_routing={"bookChange": f"{name}-books"},
            key_template="{{payloadCase}}/{{symbol}}",
        )
        deliver(bus, records(bus, 4))

        [change] = from_kafka(kafka.address, f"{name}-books")
        assert change.key == "bookChange/S3"
        assert len(from_kafka(kafka.address, name)) == 3

    def test_9_sending_ends_when_time_is_up(
        self, mortal_kafka: KafkaBroker, kafka_bus: Make, name: str
    ):
        """The broker hangs: it neither answers nor closes."""
        broker = mortal_kafka
        bus = kafka_bus(broker.address)
        sent = records(bus, 200)
        deliver(bus, sent[:100])
        broker.pause()
        try:
            result = bus.send(sent[100:], 0.5)
        finally:
            broker.resume()

        assert result.delivered == 0
        assert "not acknowledged in time" in str(result.failures[0].error)
        deliver(bus, sent[100:])
        assert_promises_kept(sent, from_kafka(broker.address, name))

    def test_10_neither_secrets_nor_events_are_logged(
        self,
        secure_kafka: KafkaBroker,
        kafka_bus: Make,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ):
        caplog.set_level(logging.DEBUG)
        bus = kafka_bus(
            f"127.0.0.1:{secure_kafka.ports['SASL_PLAINTEXT']}",
            sasl_mechanism="PLAIN",
            sasl_username="writer",
            sasl_password="wrong-battery",
        )

        result = bus.send(records(bus, 10), 2)

        assert "uthentication" in str(result.failures[0].error)
        everything = caplog.text + "".join(capfd.readouterr()) + str(result)
        everything += "".join(str(vars(record)) for record in caplog.records)
        assert "wrong-battery" not in everything
        assert all(record.levelno <= logging.INFO for record in caplog.records)
        assert "S0" not in everything

    def test_11_acknowledgements_are_not_awaited_one_by_one(
        self, proxied_kafka: tuple[KafkaBroker, Proxy], kafka_bus: Make
    ):
        _, proxy = proxied_kafka
        bus = kafka_bus(f"127.0.0.1:{proxy.port}", compression="none")
        bus.send(records(bus, 1), 20)
        proxy.hold_answers()
        already = proxy.said.count(b"event-id")

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(bus.send, records(bus, 1_000, start=1), 30)
            proxy.wait_until(lambda said: said.count(b"event-id") - already >= 100)
            proxy.release_answers()
            assert sending.result().delivered == 1_000


class TestNats:
    def test_1_and_2_a_failure_inside_a_success_is_reported_alone(
        self, nats: NatsServer, nats_bus: Make, name: str
    ):
        """The stream itself refuses one message, with an answer like any other."""
        with_jetstream(
            nats.url, lambda js: js.add_stream(name=name, subjects=[name], max_msg_size=2_000)
        )
        bus = nats_bus(nats.url)
        sent = records(bus, 100)
        sent[40] = resized(bus, sent[40], 3_000)

        result = bus.send(sent, 10)

        assert result.delivered == 99
        [(place, error)] = result.failures
        assert place == 40
        assert isinstance(error, RecordRejectedError)
        assert len(from_stream(nats.url, name)) == 99

    def test_3_a_full_stream_breaks_no_order(self, nats: NatsServer, nats_bus: Make, name: str):
        """Room comes free while messages are refused: none may slip in before an earlier one."""
        with_jetstream(
            nats.url,
            lambda js: js.add_stream(name=name, subjects=[name], max_msgs=500, discard="new"),
        )
        bus = nats_bus(nats.url)
        sent = records(bus, 3_000)
        kept: list[str] = []
        stop = threading.Event()

        def take() -> None:
            while not stop.wait(0.05):
                kept.extend(_taken(nats.url, name))

        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(take)
            deliver(bus, sent, batch=1_000)
            stop.set()
            taking.result()
        kept.extend(_taken(nats.url, name))

        assert kept == [record.event.event_id for record in sent]

    def test_3_a_cut_connection_breaks_no_order(
        self, start_nats: StartNats, nats_bus: Make, name: str, proxy: Proxy
    ):
        server = start_nats()
        proxy.target = server.port
        bus = nats_bus(f"nats://127.0.0.1:{proxy.port}")
        sent = records(bus, 6_000, padding=300)
        chance = random.Random(5)
        duplicates = 0
        for start in range(0, len(sent), 1_000):
            proxy.cut_after(chance.randrange(2_000, 600_000))
            left = sent[start : start + 1_000]
            while left:
                result = bus.send(left, 10)
                duplicates += result.duplicates
                left = [left[failure.place] for failure in result.failures]

        arrived = from_stream(server.url, name)
        assert len(arrived) == len(sent)
        assert_promises_kept(sent, arrived)
        assert duplicates > 0

    def test_3_a_killed_server_breaks_no_order(
        self, start_nats: StartNats, nats_bus: Make, name: str
    ):
        server = start_nats()
        bus = nats_bus(server.url)
        sent = records(bus, 20_000)
        deliver(bus, sent[:100])

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(deliver, bus, sent[100:], batch=1_000, timeout_s=2)
            for pause in (0.05, 0.1, 0.1):
                time.sleep(pause)
                server.kill()
                server.start()
            assert done.result() == []

        assert_promises_kept(sent, from_stream(server.url, name))

    def test_4_a_batch_is_bounded_by_bytes_and_by_count(self, nats: NatsServer, nats_bus: Make):
        bus = nats_bus(nats.url, max_batch_size=300, max_batch_delay_ms=7)

        assert bus.limits.bytes <= 64 << 20
        assert (bus.limits.records, bus.limits.delay_s) == (300, 0.007)

    def test_5_nothing_is_kept_for_a_server_that_is_away(
        self, start_nats: StartNats, nats_bus: Make, name: str
    ):
        server = start_nats()
        bus = nats_bus(server.url)
        deliver(bus, records(bus, 10))
        server.kill()
        sent = records(bus, 2_000, start=10, padding=2_000)
        before = _resident_bytes()

        for _ in range(20):
            result = bus.send(sent, 0.5)
            assert (result.delivered, len(result.failures)) == (0, len(sent))
            assert all(failure.error.retriable for failure in result.failures)

        assert _resident_bytes() - before < 4 * sum(len(record.value) for record in sent)
        server.start()
        after = records(bus, 10, start=5_000)
        deliver(bus, after)
        assert_promises_kept(records(bus, 10) + after, from_stream(server.url, name))

    def test_7_an_oversized_message_is_rejected_for_good_and_blocks_nothing(
        self, start_nats: StartNats, nats_bus: Make, name: str
    ):
        """Headers count too, and a server hangs up on whoever sends too much."""
        server = start_nats("max_payload: 10000")
        bus = nats_bus(server.url)
        sent = records(bus, 500)
        sent[1] = resized(bus, sent[1], 10_000)
        sent[2] = resized(bus, sent[2], 10_000 - _frame_size(sent[2]) + 1)
        sent[3] = resized(bus, sent[3], 10_000 - _frame_size(sent[3]))

        rejected = deliver(bus, sent)

        assert [failure.place for failure in rejected] == [1, 2]
        assert "10000 at most" in str(rejected[0].error)
        assert len(from_stream(server.url, name)) == 498

    def test_8_a_template_does_not_override_the_route(
        self, nats: NatsServer, nats_bus: Make, name: str
    ):
        bus = nats_bus(
            nats.url,
            subject_template=f"{name}.{{{{payloadCase}}}}.{{{{symbol}}}}",
            subject_routing={"bookChange": f"{name}.routed"},
        )
        deliver(bus, records(bus, 4))

        subjects = [arrival.destination for arrival in from_stream(nats.url, name)]
        assert subjects == [*(f"{name}.trade.S{n}" for n in range(3)), f"{name}.routed"]

    def test_9_sending_ends_when_time_is_up(self, start_nats: StartNats, nats_bus: Make, name: str):
        """The server hangs: it neither answers nor closes."""
        server = start_nats()
        bus = nats_bus(server.url)
        sent = records(bus, 200)
        deliver(bus, sent[:100])
        server.pause()
        try:
            result = bus.send(sent[100:], 0.5)
        finally:
            server.resume()

        assert result.delivered == 0
        assert "not acknowledged in time" in str(result.failures[0].error)
        deliver(bus, sent[100:])
        assert_promises_kept(sent, from_stream(server.url, name))

    @pytest.mark.parametrize(
        ("accepts", "uses"),
        [
            ("user: writer, password: right-horse", {"user": "writer", "pass_": "wrong-battery"}),
            ("token: right-horse", {"token": "wrong-battery"}),
        ],
    )
    def test_10_neither_secrets_nor_events_are_logged(
        self,
        start_nats: StartNats,
        nats_bus: Make,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
        accepts: str,
        uses: dict[str, str],
    ):
        caplog.set_level(logging.DEBUG)
        server = start_nats(f"authorization {{ {accepts} }}")
        bus = nats_bus(server.url, **uses)

        result = bus.send(records(bus, 10), 2)

        assert "uthorization" in str(result.failures[0].error)
        everything = caplog.text + "".join(capfd.readouterr()) + str(result)
        everything += "".join(str(vars(record)) for record in caplog.records)
        assert "wrong-battery" not in everything
        assert "S0" not in everything

    def test_11_acknowledgements_are_not_awaited_one_by_one(
        self, nats: NatsServer, nats_bus: Make, proxy: Proxy
    ):
        proxy.target = nats.port
        bus = nats_bus(f"nats://127.0.0.1:{proxy.port}")
        bus.connect()
        proxy.hold_answers()

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(bus.send, records(bus, 5_000), 30)
            proxy.wait_until(lambda said: said.count(b"HPUB ") >= 2_000)
            most = proxy.said.count(b"HPUB ")
            proxy.release_answers()
            assert sending.result().delivered == 5_000
        assert most == 2_000


@pytest.mark.parametrize("case", ["trade", "bookChange"])
def test_8_without_a_template_the_routed_destination_is_the_key(
    nats: NatsServer, nats_bus: Make, name: str, case: str
):
    bus = nats_bus(nats.url, subject_routing={case: f"{name}.{case}"})

    found = {record.destination: record.key for record in routed(bus, events(8))}

    assert found == {name: name, f"{name}.{case}": f"{name}.{case}"}


def _taken(url: str, stream: str) -> list[str]:
    """Read a stream, then delete what was read."""
    arrived = [arrival.headers["event-id"] for arrival in from_stream(url, stream)]
    if arrived:
        with_jetstream(url, lambda js: _purge_first(js, stream, len(arrived)))
    return arrived


async def _purge_first(js: Any, stream: str, count: int) -> None:
    info = await js.stream_info(stream)
    await js.purge_stream(stream, seq=info.state.first_seq + count)


def _frame_size(record: Record) -> int:
    lines = [*record.headers, ("Nats-Msg-Id", record.event.event_id)]
    return len("NATS/1.0\r\n\r\n") + sum(len(f"{name}: {value}\r\n") for name, value in lines)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096
