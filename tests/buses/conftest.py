"""Buses on real servers, each test with topics and streams of its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.kafka import KafkaConfig, KafkaEventBus
from tardis_machine.publish.buses.nats import NatsConfig, NatsEventBus

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name for a topic or stream that no other test uses."""
    return f"bronze-{next(_numbers)}"


@pytest.fixture
def opened() -> Iterator[Callable[[EventBus], EventBus]]:
    """Close the buses a test opens."""
    buses: list[EventBus] = []

    def remember(bus: EventBus) -> EventBus:
        buses.append(bus)
        return bus

    yield remember
    for bus in buses:
        bus.close()


@pytest.fixture
def kafka_bus(opened: Callable[[EventBus], EventBus], name: str) -> Callable[..., EventBus]:
    """Make a Kafka bus for an address; the topic is created unless told otherwise."""

    def make(address: str, **settings: Any) -> EventBus:
        config = KafkaConfig(**{"brokers": (address,), "topic": name, "create": True, **settings})
        config.validate()
        return opened(KafkaEventBus(config))

    return make


@pytest.fixture
def nats_bus(opened: Callable[[EventBus], EventBus], name: str) -> Callable[..., EventBus]:
    """Make a NATS bus for a URL; stream and subject have the test's name."""

    def make(url: str, **settings: Any) -> EventBus:
        shared = {"servers": (url,), "subject": name, "stream": name, "create": True}
        config = NatsConfig(**{**shared, **settings})
        config.validate()
        return opened(NatsEventBus(config))

    return make
