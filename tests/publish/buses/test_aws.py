"""Kinesis and SQS: failures inside a success, throttling, time-outs, cuts and 500s."""

import base64
import hashlib
import itertools
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tardis_machine.bronze import NormalizedEvent
from tardis_machine.config import ConfigError
from tardis_machine.publish.buses.base import Order
from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    RecordRejectedError,
    ThrottledError,
)
from tardis_machine.publish.buses.kinesis import KinesisConfig, KinesisEventBus
from tardis_machine.publish.buses.sqs import SQSConfig, SQSEventBus
from tests.publish.buses.benches import AwsBench, FifoBench, KinesisBench, SqsBench
from tests.support.arrivals import assert_promises_kept
from tests.support.events import deliver, events, records, routed
from tests.support.servers.aws import KEYS, Call, Fault

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/bronze"


@pytest.fixture(params=[KinesisBench, SqsBench, FifoBench], ids=["kinesis", "sqs", "sqs-fifo"])
def bench(request: pytest.FixtureRequest) -> Iterator[AwsBench]:
    """Each of the services, behind the proxy that makes them fail."""
    made: AwsBench = request.param(request)
    yield made
    made.close()


@pytest.fixture
def kinesis(request: pytest.FixtureRequest) -> Iterator[KinesisBench]:
    made = KinesisBench(request)
    yield made
    made.close()


@pytest.fixture
def sqs(request: pytest.FixtureRequest) -> Iterator[SqsBench]:
    made = SqsBench(request)
    yield made
    made.close()


def ids(bench: AwsBench, call: Call) -> list[str]:
    return [bench.event_id(entry) for entry in call.entries]


def test_mistake_1_and_2_what_failed_inside_a_success_is_sent_again_alone(bench: AwsBench):
    bus = bench.make()
    sent = records(bus, 10)
    wanted = {sent[place].event.event_id for place in (2, 3, 9)}
    refused = bench.refuse_once(lambda e: bench.event_id(e) in wanted, "InternalFailure")

    result = bus.send(sent, 20)
    assert refused == wanted
    assert [place for place, _ in result.failures] == [2, 3, 9]
    assert all(error.retriable and "InternalFailure" in str(error) for _, error in result.failures)
    assert deliver(bus, [sent[place] for place, _ in result.failures]) == []

    first, second = bench.proxy.calls
    assert len(first.entries) == 10
    assert set(ids(bench, second)) == wanted
    assert len(bench.arrived()) == 10


def test_mistake_3_no_call_carries_a_key_behind_a_failed_record(bench: AwsBench):
    """Every seventh entry fails once. Overtaking happens inside a call, and nowhere else."""
    bus = bench.make()
    sent = records(bus, 400)
    chance = itertools.count()
    bench.refuse_once(lambda _: next(chance) % 7 == 0, "InternalFailure")

    deliver(bus, sent, batch=bus.limits.records)

    position = {record.event.event_id: record.event.position for record in sent}
    key = {record.event.event_id: record.key for record in sent}
    together = [
        {event_id: n for n, event_id in enumerate(ids(bench, c))} for c in bench.proxy.calls
    ]
    arrived = [arrival.headers["event-id"] for arrival in bench.arrived()]
    assert sorted(arrived) == sorted(position)
    place = {event_id: n for n, event_id in enumerate(arrived)}
    for earlier, later in itertools.combinations(sorted(position, key=position.__getitem__), 2):
        if key[earlier] == key[later] and place[earlier] > place[later]:
            assert any(earlier in call and later in call for call in together)
    assert bus.order is Order.BETWEEN_CALLS


def test_mistake_3_strictly_nothing_is_overtaken(bench: AwsBench):
    bus = bench.make(order="strict")
    sent = records(bus, 150, symbols=20)
    chance = itertools.count()
    bench.refuse_once(lambda _: next(chance) % 7 == 0, "InternalFailure")

    deliver(bus, sent, batch=bus.limits.records)

    assert_promises_kept(sent, bench.arrived())
    keys = {record.event.event_id: record.key for record in sent}
    for call in bench.proxy.calls:
        carried = [keys[event_id] for event_id in ids(bench, call)]
        assert len(set(carried)) == len(carried)
    assert bus.order is Order.PER_KEY


def test_mistake_4_calls_are_bounded_as_the_service_counts(bench: AwsBench):
    """The service itself refuses calls above its limits, and has not."""
    bus = bench.make(max_batch_bytes=1 << 20)
    sent = records(bus, 1_200, symbols=40, padding=400)

    assert deliver(bus, sent, batch=bus.limits.records) == []

    calls = bench.proxy.calls
    most = bus.config.max_batch_size
    assert all(len(call.entries) <= most for call in calls)
    weight = {record.event.event_id: record.weight for record in sent}
    assert all(sum(weight[each] for each in ids(bench, call)) <= 1 << 20 for call in calls)
    # Full calls, but for the last of each key's share: far from one call a message.
    assert len(calls) <= 1_200 / most * 1.6 + bus.config.in_flight


@pytest.mark.parametrize("sender", [True, False], ids=["whole call", "single records"])
def test_throttling_backs_off_per_destination(bench: AwsBench, sender: bool):
    """Nothing more goes to the destination that is throttled; the other gets all of its own."""
    books = bench.destination("-books")
    bus = bench.make(**{bench.route_setting: {"bookChange": books}})
    sent = records(bus, 400, symbols=50)
    code = "ProvisionedThroughputExceededException"

    def fault(call: Call) -> Fault | None:
        if call.destination == books:
            return None
        if sender:
            return Fault(status=400, code=code)
        return Fault(refuse={0: (code, False)})

    bench.proxy.fault = fault
    result = bus.send(sent, 20)

    failed = [sent[place] for place, _ in result.failures]
    assert {record.destination for record in failed} == {bench.destination()}
    assert any(isinstance(error, ThrottledError) for _, error in result.failures)
    assert len(bench.arrived("-books")) == 100
    throttled = [call for call in bench.proxy.calls if call.destination != books]
    assert len(throttled) <= bus.config.in_flight
    bench.proxy.fault = lambda _: None
    assert deliver(bus, failed) == []
    assert len(bench.arrived()) == 300


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, code="InternalFailure"),
        Fault(status=500, code="InternalFailure", taken=True),
        Fault(status=503, code="ServiceUnavailable"),
        Fault(cut=True),
        Fault(cut=True, taken=True),
    ],
    ids=["500", "500 though taken", "503", "cut", "cut though taken"],
)
def test_trouble_that_passes_loses_nothing_and_breaks_no_order(bench: AwsBench, fault: Fault):
    bus = bench.make()
    sent = records(bus, 300)
    chance = itertools.count()
    bench.proxy.fault = lambda _: fault if next(chance) % 3 == 0 else None

    assert deliver(bus, sent, batch=150) == []

    arrived = bench.arrived()
    assert_promises_kept(sent, arrived)
    if not fault.taken or isinstance(bench, FifoBench):
        assert len(arrived) == len(sent)


def test_a_call_without_answer_ends_with_the_time(bench: AwsBench):
    bus = bench.make()
    sent = records(bus, 20)
    bus.connect()
    bench.proxy.fault = lambda _: Fault(hang=True)

    result = bus.send(sent, 0.3)

    assert result.delivered == 0
    assert "not acknowledged in time" in str(result.failures[0].error)
    bench.proxy.release()
    assert deliver(bus, sent) == []
    assert_promises_kept(sent, bench.arrived())


def test_a_service_that_never_answers_is_said_to_be_so(
    bench: AwsBench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tardis_machine.publish.buses.aws._READ_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        bus = bench.make(endpoint_url=f"http://127.0.0.1:{mute.getsockname()[1]}")

        with pytest.raises(BusUnavailableError, match="timeout"):
            bus.check()


def test_a_slow_call_gets_all_of_the_time_that_a_batch_has(
    bench: AwsBench, monkeypatch: pytest.MonkeyPatch
):
    """What is cut short each time is sent anew each time, and never acknowledged."""
    bus = bench.make()
    bus.connect()  # the service may need some time for the first call
    bus.close()
    monkeypatch.setattr("tardis_machine.publish.buses.aws._READ_TIMEOUT_S", 1)
    bench.proxy.fault = lambda _: Fault(hang=True, taken=True)
    later = threading.Timer(3, bench.proxy.release)
    later.start()

    result = bus.send(records(bus, 3), 20)

    later.join()
    assert result.delivered == 3
    assert len(bench.arrived()) == 3


def test_a_refused_call_is_halved_until_the_culprit_is_found(bench: AwsBench):
    bus = bench.make()
    sent = records(bus, 40, symbols=1)
    culprit = sent[13].event.event_id

    def fault(call: Call) -> Fault | None:
        if culprit in ids(bench, call):
            return Fault(status=400, code="ValidationException")
        return None

    bench.proxy.fault = fault
    [failure] = deliver(bus, sent)

    assert failure.place == 13
    assert isinstance(failure.error, RecordRejectedError)
    assert len(bench.arrived()) == 39


def test_a_missing_destination_is_named_and_does_not_hold_the_others(bench: AwsBench):
    missing = bench.destination() + "-missing"
    settings: dict[str, Any] = {bench.route_setting: {"bookChange": missing}}
    if bench.bus == "kinesis":
        bench.make().connect()  # creates the other one
        settings["create"] = False
    bus = bench.make(**settings)

    with pytest.raises(BusUnavailableError, match="does not exist"):
        bus.check()
    unusable = bus.connect()
    result = bus.send(records(bus, 40), 20)

    assert set(unusable) == {missing}
    assert result.delivered == 30
    assert {str(error) for _, error in result.failures} == {str(unusable[missing])}
    assert all(error.retriable for _, error in result.failures)


def test_unknown_keys_are_trouble_of_the_whole_bus(bench: AwsBench):
    bus = bench.make()
    bus.connect()
    bench.proxy.fault = lambda _: Fault(status=400, code="ExpiredTokenException")

    result = bus.send(records(bus, 20), 5)

    assert {error.destination for _, error in result.failures if "Expired" in str(error)} == {None}
    assert all(error.retriable for _, error in result.failures)


def test_a_token_that_the_service_repeats_is_not_passed_on(bench: AwsBench):
    """To a wrong signature AWS answers with the whole request as it should have been signed."""
    said = (
        "The request signature we calculated does not match the signature you provided.\n\n"
        "The Canonical String for this request should have been\n"
        "'POST\n/\n\nhost:x\nx-amz-security-token:hush-token\n'"
    )
    bus = bench.make(session_token="hush-token")
    fault = Fault(status=403, code="InvalidSignatureException", message=said)
    bench.proxy.fault = lambda _: fault

    result = bus.send(records(bus, 1), 20)

    assert "does not match the signature" in str(result.failures[0].error)
    assert "hush-token" not in str(result.failures[0].error)


def test_a_page_instead_of_an_answer_is_cut_short(bench: AwsBench):
    bus = bench.make()
    bench.proxy.fault = lambda _: Fault(status=500, code="InternalFailure", message="x" * 3_000_000)

    result = bus.send(records(bus, 1), 20)

    assert "InternalFailure" in str(result.failures[0].error)
    assert len(str(result.failures[0].error)) < 1_500


def test_keys_of_the_flags_beat_those_of_the_sdk(bench: AwsBench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDAMBIENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ambient-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    chosen = bench.make()
    chosen.connect()
    credentials = chosen._session.get_credentials()
    assert credentials.access_key == KEYS["access_key_id"]
    assert chosen._client.meta.region_name == "eu-west-1"

    ambient = bench.make(access_key_id=None, secret_access_key=None, region=None)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    ambient._open(5)
    assert ambient._session.get_credentials().access_key == "AKIDAMBIENT"
    assert ambient._client.meta.region_name == "us-east-2"


@pytest.mark.parametrize("port", ["99999", "one", "0"])
def test_an_endpoint_without_a_port_that_can_be_is_refused(port: str):
    with pytest.raises(ConfigError) as caught:
        KinesisConfig(stream="s", endpoint_url=f"http://h:{port}").validate()

    assert caught.value.flag == "--kinesis-endpoint-url"


@pytest.mark.parametrize("name", ["AWS_DEFAULT_REGION", "AWS_PROFILE"])
def test_what_the_sdk_finds_and_cannot_use_is_said(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "@@")

    with pytest.raises(BusError, match="@@"):
        KinesisEventBus(KinesisConfig(stream="s")).check()


def test_without_any_region_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    bus = KinesisEventBus(KinesisConfig(stream="s"))

    with pytest.raises(BusError, match="--kinesis-region") as caught:
        bus.connect()

    assert not caught.value.retriable
    queue = SQSEventBus(SQSConfig(queue_url=QUEUE))
    queue._open(5)
    assert queue._client.meta.region_name == "eu-west-1"
    queue.close()


class TestKinesis:
    def test_a_record_has_value_and_key(self, kinesis: KinesisBench):
        bus = kinesis.make(static_headers={"desk": "prime", "team": "quant"})
        [event] = events(1)

        assert bus.send(routed(bus, [event]), 20).delivered == 1

        [arrival] = kinesis.arrived()
        assert arrival.key == "bitmex|S0|trade"
        expected = NormalizedEvent.FromString(event.value)
        expected.meta.update({"desk": "prime", "team": "quant"})
        assert arrival.envelope == expected

    def test_a_long_key_becomes_its_hash(self, kinesis: KinesisBench):
        template = "{{exchange}}" + "é" * 256
        bus = kinesis.make(partition_key_template=template)

        assert bus.send(records(bus, 1), 20).delivered == 1

        [arrival] = kinesis.arrived()
        long = "bitmex" + "é" * 256
        assert arrival.key == hashlib.sha256(long.encode()).hexdigest()

    def test_an_empty_key_is_a_line(self, kinesis: KinesisBench):
        bus = kinesis.make(partition_key_template="")

        assert bus.send(records(bus, 1), 20).delivered == 1
        assert kinesis.arrived()[0].key == "_"

    def test_a_stream_deleted_meanwhile_is_created_again_if_that_is_wanted(
        self, kinesis: KinesisBench
    ):
        bus = kinesis.make()
        sent = records(bus, 20)
        assert bus.send(sent[:10], 20).delivered == 10
        kinesis.service.delete_stream(StreamName=kinesis.name)

        assert deliver(bus, sent[10:]) == []

        assert_promises_kept(sent[10:], kinesis.arrived())

    def test_check_says_what_would_be_created(self, kinesis: KinesisBench):
        bus = kinesis.make()

        said = bus.check()

        assert said.startswith(f"{kinesis.proxy.url} (eu-west-1), streams {kinesis.name}")
        assert f"will be created: {kinesis.name}" in said
        assert kinesis.name not in kinesis.service.list_streams()["StreamNames"]
        bus.connect()
        assert "created" not in bus.check()


class TestSqs:
    def test_a_message_has_body_and_attributes(self, sqs: SqsBench):
        bus = sqs.make(
            static_attributes={"desk": "a:b"}, attribute_templates={"who": "{{symbol}}@{{meta.no}}"}
        )
        [event] = events(1)

        assert bus.send(routed(bus, [event]), 20).delivered == 1

        [arrival] = sqs.arrived()
        assert arrival.value == event.value
        assert arrival.headers == {
            "event-id": event.event_id,
            "payload-case": "trade",
            "content-type": "application/x-protobuf",
            "desk": "a:b",
            "who": "S0@_",
        }
        [entry] = sqs.proxy.calls[-1].entries
        assert base64.b64decode(entry["MessageBody"]) == event.value
        assert "MessageGroupId" not in entry

    def test_fifo_has_groups_and_drops_what_comes_twice(self, request: pytest.FixtureRequest):
        fifo = FifoBench(request)
        bus = fifo.make(message_group_template="{{symbol}} ünïcode")
        sent = records(bus, 30)

        for _ in range(2):
            assert bus.send(sent, 20).delivered == 30
        fifo.close()

        arrived = fifo.arrived()
        assert len(arrived) == 30
        assert {arrival.key for arrival in arrived} == {f"S{n}__n_code" for n in range(5)}
        assert_promises_kept(sent, arrived)

    def test_a_fault_of_the_sender_is_final(self, sqs: SqsBench):
        bus = sqs.make()
        sent = records(bus, 10)
        wanted = sent[4].event.event_id
        sqs.refuse(lambda e: sqs.event_id(e) == wanted, "InvalidMessageContents", sender=True)

        [failure] = deliver(bus, sent)

        assert isinstance(failure.error, RecordRejectedError)
        assert failure.place == 4
        assert len(sqs.arrived()) == 9

    def test_a_throttled_message_is_none_of_the_senders_faults(self, sqs: SqsBench):
        bus = sqs.make()
        sent = records(bus, 10)
        wanted = sent[4].event.event_id
        sqs.refuse_once(lambda e: sqs.event_id(e) == wanted, "KMS.ThrottlingException", sender=True)

        assert deliver(bus, sent) == []
        assert len(sqs.arrived()) == 10

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"static_attributes": {f"a{n}": "x" for n in range(8)}}, "at most 10"),
            (
                {
                    "static_attributes": {f"a{n}": "x" for n in range(4)},
                    "attribute_templates": {f"b{n}": "x" for n in range(4)},
                },
                "these make 11",
            ),
            ({"static_attributes": {"event-id": "x"}}, "of your own"),
            ({"static_attributes": {"AWS.x": "x"}}, "of your own"),
            ({"static_attributes": {"a": ""}}, "some text"),
            ({"static_attributes": {"a": "\x01"}}, "some text"),
            ({"static_attributes": {"a": "x"}, "attribute_templates": {"a": "x"}}, "already"),
            ({"attribute_templates": {"a": "{{nope}}"}}, "unknown placeholder"),
        ],
    )
    def test_attributes_that_no_message_could_carry_are_refused(
        self, settings: dict[str, Any], said: str
    ):
        with pytest.raises(ConfigError, match=said):
            SQSConfig(queue_url=QUEUE, **settings).validate()

    def test_ten_attributes_are_taken(self, sqs: SqsBench):
        bus = sqs.make(static_attributes={f"a{n}": "x" for n in range(7)})

        assert bus.send(records(bus, 1), 20).delivered == 1
        assert len(sqs.arrived()[0].headers) == 10
