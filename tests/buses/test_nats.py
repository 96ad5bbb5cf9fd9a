"""The NATS bus on a real server."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import nats as client
import pytest

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import BusUnavailableError
from tests.buses.arrivals import assert_promises_kept, from_stream
from tests.buses.events import deliver, events, records, routed
from tests.servers.nats import NatsServer

Make = Callable[..., EventBus]


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
    event = msgspec.structs.replace(events(1)[0], symbol="BTC.USD *>\r\nX")

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


def test_the_next_server_is_tried(nats: NatsServer, nats_bus: Make):
    bus = nats_bus(nats.url, servers=("nats://127.0.0.1:1", nats.url))

    assert bus.send(records(bus, 10), 10).delivered == 10


def test_check_reaches_the_server_and_creates_nothing(
    nats: NatsServer, nats_bus: Make, name: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    bus = nats_bus(nats.url)

    assert f"(will be created: {name}), stream {name}" in bus.check()
    assert from_stream(nats.url, name) == []

    bus.connect()
    assert bus.check() == f"{nats.url}, subjects {name}, streams {name}"
