"""Confluent's framing, read by Confluent's own deserializer."""

from collections.abc import Callable

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import BusUnavailableError
from tests.buses.arrivals import from_kafka
from tests.buses.events import deliver, records
from tests.servers.kafka import KafkaBroker

pytestmark = pytest.mark.kafka

Make = Callable[..., EventBus]


def test_confluents_deserializer_reads_what_is_published(
    kafka: KafkaBroker, kafka_bus: Make, name: str
):
    bus = kafka_bus(
        kafka.address,
        topic_routing={"bookChange": f"{name}-books"},
        schema_registry_url="mock://registry",
        schema_registry_auto_register=True,
    )
    sent = records(bus, 40)

    deliver(bus, sent)

    registry = bus._registry  # a mock's schemas are known to nobody else
    read = ProtobufDeserializer(NormalizedEvent, {"use.deprecated.format": False}, registry)
    values = {record.event.event_id: record.value for record in sent}
    arrived = from_kafka(kafka.address, name, f"{name}-books")
    assert len(arrived) == 40
    for arrival in arrived:
        context = SerializationContext(arrival.destination, MessageField.VALUE)
        event = read(arrival.value, context)
        assert event == NormalizedEvent.FromString(values[arrival.headers["event-id"]])
    assert sorted(registry.get_subjects()) == [f"{name}-books-value", f"{name}-value"]


def test_nothing_is_registered_unless_told(kafka: KafkaBroker, kafka_bus: Make):
    bus = kafka_bus(kafka.address, schema_registry_url="mock://registry")

    with pytest.raises(BusUnavailableError, match="schema registry"):
        bus.connect()

    assert bus._registry.get_subjects() == []


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
