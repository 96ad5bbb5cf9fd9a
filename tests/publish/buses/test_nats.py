"""The NATS bus on a real server."""

import asyncio
import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import nats as client
import pytest

from tardis_machine.config import ConfigError
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import (
    BusUnavailableError,
    NotSentError,
    RecordRejectedError,
)
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.loads import fitting
from tardis_machine.publish.record import Record
from tests.support.arrivals import assert_promises_kept, from_stream
from tests.support.events import deliver, events, records, resized, routed
from tests.support.servers.nats import NatsServer
from tests.support.servers.proxy import Proxy

Make = Callable[..., EventBus]
StartNats = Callable[..., NatsServer]


def with_jetstream(url: str, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Do something to a server's streams."""

    async def run() -> Any:
        connection = await client.connect(url)
        try:
            return await work(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(run())


def test_a_message_has_subject_headers_and_id(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(nats.url, static_headers={"desk": "a:b"})
    [event] = events(1)

    result = bus.send(routed(bus, [event]), 10)

    assert (result.delivered, result.duplicates, result.failures) == (1, 0, [])
    [arrival] = from_stream(nats.url, name)
    assert arrival.destination == name
    assert arrival.value == event.value
    assert arrival.envelope.trade.trade_id == "0"
    assert arrival.headers == {
        "event-id": event.event_id,
        "Nats-Msg-Id": event.event_id,
        "payload-case": "trade",
        "content-type": "application/x-protobuf",
        "desk": "a:b",
    }


def test_everything_arrives_once_and_in_order(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(nats.url)
    sent = records(bus, 5_000)

    result = bus.send(sent, 30)

    assert result.delivered == 5_000
    arrived = from_stream(nats.url, name)
    assert [arrival.headers["event-id"] for arrival in arrived] == [
        record.event.event_id for record in sent
    ]


def test_what_is_stored_already_counts_as_a_duplicate(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(nats.url)
    bus.send(records(bus, 30), 10)

    again = bus.send(records(bus, 50), 10)

    assert (again.delivered, again.duplicates) == (50, 30)
    assert len(from_stream(nats.url, name)) == 50


def test_route_beats_template_and_values_are_cleaned(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(
        nats.url,
        subject_template=f"{name}.{{{{exchange}}}}.{{{{meta.desk}}}}.{{{{meta.none}}}}.{{{{symbol}}}}",
        subject_routing={"bookChange": f"{name}.books"},
    )
    sent = records(bus, 8, symbols=2)

    deliver(bus, sent)

    arrived = from_stream(nats.url, name)
    assert {arrival.destination for arrival in arrived} == {
        f"{name}.bitmex.delta_one._.S0",
        f"{name}.bitmex.delta_one._.S1",
        f"{name}.books",
    }
    assert_promises_kept(sent, arrived)


def test_a_symbol_cannot_smuggle_in_tokens(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(nats.url, subject_template=f"{name}.{{{{symbol}}}}")
    [event] = events(1)
    series = event.series._replace(symbol="BTC.USD *>\r\nX")
    event = msgspec.structs.replace(event, series=series)

    assert bus.send(routed(bus, [event]), 10).delivered == 1

    [arrival] = from_stream(nats.url, name)
    assert arrival.destination == f"{name}.BTC_USD_____X"


def test_a_subject_without_stream_is_named_and_not_created(
    nats: NatsServer, nats_bus: Make, name: str
):
    bus = nats_bus(nats.url, create=False, stream=None)

    with pytest.raises(BusUnavailableError, match=f"{name}: no stream.*--nats-create") as caught:
        bus.connect()

    assert caught.value.retriable
    assert from_stream(nats.url, name) == []


def test_a_subject_of_another_stream_is_refused(nats: NatsServer, nats_bus: Make, name: str):
    with_jetstream(nats.url, lambda js: js.add_stream(name=f"{name}-other", subjects=[name]))
    bus = nats_bus(nats.url, create=False)

    with pytest.raises(BusUnavailableError, match=f"taken by stream {name}-other"):
        bus.connect()


@pytest.mark.parametrize("template", [None, "{name}.{{{{symbol}}}}"])
def test_a_stream_that_acknowledges_nothing_is_refused(
    nats: NatsServer, nats_bus: Make, name: str, template: str | None
):
    """Though the stream of another subject does: everything would be sent again for ever."""
    subjects = [name, f"{name}.*"]
    with_jetstream(nats.url, lambda js: js.add_stream(name=name, subjects=subjects, no_ack=True))
    books = f"{name}-books"
    with_jetstream(nats.url, lambda js: js.add_stream(name=books, subjects=[books]))
    bus = nats_bus(
        nats.url,
        stream=None,
        create=False,
        subject_routing={"bookChange": books},
        subject_template=template and template.format(name=name),
    )

    with pytest.raises(BusUnavailableError, match=r"no_ack.*--nats-mode core"):
        bus.check()
    sent = records(bus, 20)
    result = bus.send(sent, 10)

    assert {"no_ack" in str(failure.error) for failure in result.failures} == {True}
    assert from_stream(nats.url, name) == []
    # What a template makes is not told apart from a pattern: the whole bus has to wait then.
    taken = [] if template else [record for record in sent if record.destination == books]
    assert len(from_stream(nats.url, books)) == result.delivered == len(taken)


@pytest.mark.parametrize("mode", ["jetstream", "core"])
def test_a_subject_without_permission_fails_alone(
    start_nats: StartNats, nats_bus: Make, name: str, mode: str
):
    """The server says so once and answers nothing: its silence is not the bus's."""
    server = start_nats(
        "authorization { users: [ { user: all, password: p }, { user: some, password: p, "
        f'permissions: {{ publish: {{ allow: ">", deny: "{name}.S1" }} }} }} ] }}'
    )
    everybody = server.url.replace("//", "//all:p@")
    with_jetstream(everybody, lambda js: js.add_stream(name=name, subjects=[f"{name}.*"]))
    bus = nats_bus(
        server.url,
        user="some",
        pass_="p",
        mode=mode,
        create=False,
        subject_template=f"{name}.{{{{symbol}}}}",
    )
    sent = records(bus, 500)
    others = [record for record in sent if record.destination != f"{name}.S1"]

    result = bus.send(sent, 5)
    causes = [(sent[p], e) for p, e in result.failures if not isinstance(e, NotSentError)]
    assert {record.destination for record, _ in causes} == {f"{name}.S1"}
    assert {str(e) for _, e in causes} == {f"nats {name}.S1: no permission to publish"}
    failed = [sent[failure.place] for failure in result.failures]
    assert bus.send([record for record in failed if record in others], 5).failures == []

    assert_promises_kept(others, from_stream(everybody, name))


def test_a_stream_deleted_meanwhile_fails_retriably(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(nats.url, create=False)
    with_jetstream(nats.url, lambda js: js.add_stream(name=name, subjects=[name]))
    sent = records(bus, 100)
    assert bus.send(sent[:50], 10).delivered == 50
    with_jetstream(nats.url, lambda js: js.delete_stream(name))

    result = bus.send(sent[50:], 10)

    assert result.delivered == 0
    assert all(failure.error.retriable for failure in result.failures)
    assert "no stream takes this subject" in str(result.failures[0].error)


@pytest.mark.parametrize("template", [None, "{}.{{{{symbol}}}}"])
def test_a_stream_deleted_meanwhile_is_created_again_if_that_is_wanted(
    nats: NatsServer, nats_bus: Make, name: str, template: str | None
):
    bus = nats_bus(nats.url, subject_template=template and template.format(name))
    sent = records(bus, 100)
    assert bus.send(sent[:50], 10).delivered == 50
    with_jetstream(nats.url, lambda js: js.delete_stream(name))

    assert deliver(bus, sent[50:]) == []

    assert_promises_kept(sent[50:], from_stream(nats.url, name))


def test_core_mode_hands_over_without_a_stream(nats: NatsServer, nats_bus: Make, name: str):
    bus = nats_bus(nats.url, mode="core", stream=None, create=False)

    async def listen() -> list[dict[str, str] | None]:
        connection = await client.connect(nats.url)
        subscription = await connection.subscribe(name)
        await connection.flush()
        sent = await asyncio.to_thread(bus.send, records(bus, 100), 10)
        assert sent.delivered == 100
        found = [(await subscription.next_msg(5)).headers for _ in range(100)]
        await connection.close()
        return found

    arrived = asyncio.run(listen())

    assert [headers["event-id"] for headers in arrived if headers] == [
        event.event_id for event in events(100)
    ]
    [warning] = bus.config.warnings()
    assert "lost" in warning


def test_an_idle_connection_is_asked_before_it_is_trusted(
    start_nats: Callable[..., NatsServer], nats_bus: Make, monkeypatch: pytest.MonkeyPatch
):
    server = start_nats()
    bus = nats_bus(server.url)
    assert bus.send(records(bus, 10), 10).delivered == 10
    server.kill()
    server.start()
    monkeypatch.setattr("tardis_machine.publish.buses.nats._IDLE_S", 0.0)

    assert bus.send(records(bus, 10, start=10), 10).delivered == 10


@pytest.mark.filterwarnings("ignore:parameter .timeout. of type:DeprecationWarning")
@pytest.mark.parametrize("scheme", ["nats", "tls", "ws", "wss"])
def test_a_server_that_accepts_and_says_nothing_is_named(nats_bus: Make, scheme: str):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        server = f"{scheme}://127.0.0.1:{mute.getsockname()[1]}"
        bus = nats_bus(server)

        with pytest.raises(BusUnavailableError, match=f"{server} does not answer"):
            bus.connect(1)


def test_the_next_server_is_tried(nats: NatsServer, nats_bus: Make):
    bus = nats_bus(nats.url, servers=("nats://127.0.0.1:1", nats.url))

    assert bus.send(records(bus, 10), 10).delivered == 10


@pytest.mark.cluster
def test_a_stream_whose_leader_dies_loses_nothing_and_keeps_its_order(
    nats_cluster: list[NatsServer], nats_bus: Make, name: str
):
    """Three servers, three copies; whoever leads is killed twice, while messages are under way."""
    urls = tuple(server.url for server in nats_cluster)
    _when_ready(urls[0], lambda js: js.add_stream(name=name, subjects=[name], num_replicas=3))
    bus = nats_bus(urls[0], servers=urls)
    sent = records(bus, 20_000)
    alive = nats_cluster[0]

    def stream(is_so: Callable[[Any], bool]) -> Any:
        return _when_ready(alive.url, lambda js: js.stream_info(name), is_so)

    with ThreadPoolExecutor(1) as pool:
        for half in (sent[:10_000], sent[10_000:]):
            # All have what was sent before: those that stay decide together, without loss.
            info = stream(lambda info: all(each.current for each in info.cluster.replicas))
            led, count = info.cluster.leader, info.state.messages
            leader = nats_cluster[int(led.removeprefix("n"))]
            alive = next(server for server in nats_cluster if server is not leader)
            done = pool.submit(deliver, bus, half, pause_s=0.05)
            stream(lambda info, count=count: info.state.messages > count)
            leader.kill()
            stream(lambda info, led=led: info.cluster.leader != led)
            leader.start()
            assert done.result() == []

    # Who leads the stream is not all there is to agree on: a consumer may have to wait as well.
    arrivals = _patiently(lambda: from_stream(alive.url, name) or None)
    assert_promises_kept(sent, arrivals)


def _when_ready(
    url: str,
    work: Callable[[Any], Coroutine[Any, Any, Any]],
    is_so: Callable[[Any], bool] = lambda _: True,
) -> Any:
    """Do something to the streams of a cluster once it has a leader, until the answer is so."""

    def led() -> Any:
        found = with_jetstream(url, work)
        has_leader = found.cluster is not None and found.cluster.leader
        return found if has_leader and is_so(found) else None

    return _patiently(led)


def _patiently(work: Callable[[], Any]) -> Any:
    """Try until something is found."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(client.errors.Error, OSError):
            found = work()
            if found is not None:
                return found
        assert time.monotonic() < deadline, "no leader"
        time.sleep(0.01)


def test_check_reaches_the_server_and_creates_nothing(
    nats: NatsServer, nats_bus: Make, name: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    bus = nats_bus(nats.url)

    assert f"(will be created: {name}), stream {name}" in bus.check()
    assert from_stream(nats.url, name) == []

    bus.connect()
    assert bus.check() == f"{nats.url}, subjects {name}, streams {name}"


def test_mistake_1_and_2_a_failure_inside_a_success_is_reported_alone(
    nats: NatsServer, nats_bus: Make, name: str
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


def test_mistake_3_a_full_stream_breaks_no_order(nats: NatsServer, nats_bus: Make, name: str):
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


def test_mistake_3_a_cut_connection_breaks_no_order(
    start_nats: StartNats, nats_bus: Make, name: str, proxy: Proxy
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


def test_mistake_4_a_batch_is_bounded_by_bytes_and_no_message_is_a_call_of_its_own(
    nats: NatsServer, nats_bus: Make, proxy: Proxy
):
    proxy.target = nats.port
    bus = nats_bus(f"nats://127.0.0.1:{proxy.port}")
    bus.connect()
    heavy = [resized(bus, record, 300_000) for record in records(bus, 60)]
    count, _ = fitting(heavy, bus.limits.records, bus.limits.bytes)

    proxy.said.clear()
    assert bus.send(heavy[:count], 30).delivered == count < len(heavy)
    assert bus.limits.bytes // 2 < len(proxy.said) <= bus.limits.bytes

    proxy.said.clear()
    assert bus.send(records(bus, 2_000, start=100), 30).delivered == 2_000
    assert proxy.said.count(b"HPUB ") == 2_000
    assert proxy.said.count(b"PING") <= 20


def test_mistake_7_an_oversized_message_is_rejected_for_good_and_blocks_nothing(
    start_nats: StartNats, nats_bus: Make, name: str
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


@pytest.mark.parametrize(
    ("accepts", "uses"),
    [
        ("user: writer, password: right-horse", {"user": "writer", "pass_": "wrong-battery"}),
        ("token: right-horse", {"token": "wrong-battery"}),
    ],
)
def test_mistake_10_neither_secrets_nor_events_are_logged(
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


def test_mistake_11_acknowledgements_are_not_awaited_one_by_one(
    nats: NatsServer, nats_bus: Make, proxy: Proxy
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
def test_mistake_8_without_a_template_the_routed_destination_is_the_key(
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


@pytest.mark.parametrize("mode", ["jetstream", "core"])
def test_a_server_that_reads_nothing_holds_nobody_longer_than_the_time(
    start_nats: Callable[..., NatsServer], nats_bus: Make, mode: str
):
    """More than the sockets' buffers take: not even sending comes to an end."""
    server = start_nats()
    of_mode = {} if mode == "jetstream" else {"mode": mode, "stream": None, "create": False}
    bus = nats_bus(server.url, **of_mode)
    sent = [resized(bus, record, 50_000) for record in records(bus, 800)]
    bus.connect()
    server.pause()
    began = time.monotonic()

    result = bus.send(sent, 1)

    assert time.monotonic() - began < 30
    assert result.delivered == 0
    assert "not acknowledged in time" in str(result.failures[0].error)
    server.resume()
    assert deliver(bus, sent, timeout_s=30) == []


@pytest.mark.parametrize("name", ["a/b", "a(b", '"a"', "a@b"])
def test_a_header_that_no_message_can_have_is_refused(name: str):
    with pytest.raises(ConfigError, match="letters, digits") as caught:
        NatsConfig(servers=("h",), subject="s", static_headers={name: "x"}).validate()

    assert caught.value.flag == "--nats-static-headers"


def test_headers_that_no_stream_takes_are_refused(nats: NatsServer, nats_bus: Make, name: str):
    [event] = events(1)
    longest = event.series._replace(payload_case="groupedBookSnapshot")
    event = msgspec.structs.replace(event, series=longest)
    bus = nats_bus(nats.url, static_headers={"x": "y"})
    [record] = routed(bus, [event])
    headers = {"x": "y" * (1 + 65_535 - record.target.weight)}

    bus = nats_bus(nats.url, static_headers=headers)
    assert bus.send(routed(bus, [event]), 10).delivered == 1

    headers["x"] += "y"
    with pytest.raises(ConfigError, match="65536 bytes, and a stream takes 65535") as caught:
        nats_bus(nats.url, static_headers=headers)
    assert caught.value.flag == "--nats-static-headers"
    assert len(str(caught.value)) < 200
    nats_bus(nats.url, mode="core", stream=None, create=False, static_headers=headers)


def test_every_header_that_is_taken_can_be_sent(nats: NatsServer, nats_bus: Make, name: str):
    header = "!#$%&'*+-.^_`|~09azAZ"
    bus = nats_bus(nats.url, static_headers={header: "x"})

    assert bus.send(records(bus, 1), 10).delivered == 1
    [arrival] = from_stream(nats.url, name)
    assert arrival.headers[header] == "x"
