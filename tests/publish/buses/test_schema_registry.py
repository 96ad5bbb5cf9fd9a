"""Confluent's framing over the registry's HTTP, read by Confluent's own deserializer."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tardis_machine.bronze import NormalizedEvent
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import BusUnavailableError
from tests.support.arrivals import from_kafka
from tests.support.events import deliver, records
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.registry import Registry

pytestmark = pytest.mark.kafka

Make = Callable[..., EventBus]


def registered(registry: Registry, **settings: Any) -> dict[str, Any]:
    return {
        "schema_registry_url": registry.url,
        "schema_registry_auto_register": True,
        **settings,
    }


def test_confluents_deserializer_reads_what_is_published(
    kafka: KafkaBroker, kafka_bus: Make, name: str, registry: Registry
):
    routing = {"bookChange": f"{name}-books"}
    bus = kafka_bus(kafka.address, topic_routing=routing, **registered(registry))
    sent = records(bus, 40)

    deliver(bus, sent)

    values = {record.event.event_id: record.value for record in sent}
    arrived = from_kafka(kafka.address, name, f"{name}-books")
    assert len(arrived) == 40
    with SchemaRegistryClient({"url": registry.url}) as client:
        read = ProtobufDeserializer(NormalizedEvent, {"use.deprecated.format": False}, client)
        for arrival in arrived:
            context = SerializationContext(arrival.destination, MessageField.VALUE)
            event = read(arrival.value, context)
            assert event == NormalizedEvent.FromString(values[arrival.headers["event-id"]])
            # Magic byte, the id of the subject's schema, the message's place in it.
            [number] = registry.subjects[f"{arrival.destination}-value"]
            assert arrival.value[:5] == b"\0" + number.to_bytes(4, "big")
    assert {f"{name}-books-value", f"{name}-value"} <= set(registry.subjects)
    assert ("POST", f"/subjects/{name}-value/versions") in registry.requests


def test_what_is_registered_is_found_and_nothing_is_registered_unless_told(
    kafka: KafkaBroker, kafka_bus: Make, name: str, registry: Registry
):
    cautious = kafka_bus(kafka.address, schema_registry_url=registry.url)
    with pytest.raises(BusUnavailableError, match="schema registry"):
        cautious.connect()
    assert registry.subjects == {}

    kafka_bus(kafka.address, **registered(registry)).connect()
    before = dict(registry.subjects)
    registry.requests.clear()

    assert cautious.send(records(cautious, 5), 20).delivered == 5
    assert registry.subjects == before
    assert not any(path.endswith("/versions") and m == "POST" for m, path in registry.requests)
    assert ", schema registry" in cautious.check()


def test_user_and_password_are_shown_to_the_registry_alone(
    kafka: KafkaBroker, kafka_bus: Make, registry: Registry
):
    registry.login = ("writer", "right-horse")
    user = {"schema_registry_auth_username": "writer"}
    known = kafka_bus(
        kafka.address, **registered(registry), **user, schema_registry_auth_password="right-horse"
    )
    stranger = kafka_bus(
        kafka.address, **registered(registry), **user, schema_registry_auth_password="wrong-battery"
    )

    assert known.send(records(known, 5), 20).delivered == 5
    result = stranger.send(records(stranger, 5), 5)

    assert result.delivered == 0
    assert all(failure.error.retriable for failure in result.failures)
    assert "wrong-battery" not in str(result)
    assert "Unauthorized" in str(result.failures[0].error)


def test_a_registry_out_of_reach_is_trouble_that_passes(kafka: KafkaBroker, kafka_bus: Make):
    bus = kafka_bus(
        kafka.address,
        schema_registry_url="http://127.0.0.1:1",
        schema_registry_auth_username="u",
        schema_registry_auth_password="wrong-battery",
        schema_registry_auto_register=True,
    )

    result = bus.send(records(bus, 3), 5)

    assert result.delivered == 0
    assert all(failure.error.retriable for failure in result.failures)
    assert "wrong-battery" not in str(result.failures[0].error)
